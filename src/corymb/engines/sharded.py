"""Distributes clients over several devices of one machine: one process, with a thread and a vectorised engine for each.

Every device sums up its own clients; only partial sums (k models for each level of length, see `corymb.core.intake`)
and requested rows go to the first device. Replies of all devices are judged together, as in one engine: the same
clients are refused, and results agree with one engine's up to rounding. Partial sums are added in the order of the
devices, whichever finishes first, so that runs are reproducible bit for bit.

There is one client memory, on the CPU, with one journal.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.choices import KernelName
from corymb.core.client import Slot, Split
from corymb.core.engine import Call, ClientData, Journal, Part, in_order
from corymb.core.intake import Intake
from corymb.core.objective import Objective
from corymb.engines.host import ClientHost, OfHost, blame
from corymb.engines.memory import MemoryStore
from corymb.engines.placement import Placement
from corymb.engines.shard import shard_of
from corymb.engines.vectorised.engine import VectorisedEngine
from corymb.settings import InvalidInput, require
from corymb.trees import map_tensors


class _Shard(NamedTuple):
    """A device's engine, and the ids (among all clients) of its clients."""

    engine: VectorisedEngine
    members: Tensor

    @property
    def device(self) -> torch.device:
        return self.engine.host.device

    def fill(self, call: Call, ids: Tensor, places: Tensor, intake: Intake) -> tuple[int, list[tuple[int, Exception]]]:
        """Run a call at this shard's clients among `ids`, which are at the places `places`."""
        args, options = map_tensors(lambda leaf: leaf.to(self.device), (call.args, call.options))
        here = call._replace(args=args, options=options).of(places)
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            answered, errors = self.engine.fill(here, _local(self.members, ids[places]), _Renamed(intake, self.members))
        return answered, [(int(self.members[client]), error) for client, error in errors]


class _Renamed:
    """Forwards replies to an intake, translating a shard's client numbers to global ids."""

    def __init__(self, intake: Intake, members: Tensor) -> None:
        self.intake, self.members = intake, members

    def add_rows(self, ids: Tensor, rows: Any, writes: dict[str, Slot]) -> None:
        """Take in stacked replies."""
        self.intake.add_rows(self.members[ids], rows, writes)

    def reject(self, client: int, reason: str) -> None:
        """Record why a client has no reply that counts."""
        self.intake.reject(int(self.members[client]), reason)


class _View:
    """A shard's view of the common client memory: with its own client numbers, on its own device."""

    def __init__(self, store: MemoryStore, members: Tensor, device: torch.device) -> None:
        self.store, self.members, self.device = store, members, device

    def read(self, ids: Tensor, padded: Mapping[Split, int]) -> dict[str, Slot]:
        """The slots of some clients, stacked."""
        return map_tensors(lambda leaf: leaf.to(self.device), self.store.read(self.members[ids], padded))


class ShardedEngine:
    """Runs a call on several devices at once. `placements` differ in their devices only; the first gets the results.

    Clients are dealt to devices by size, so that each has about as many examples. `memory` is the budget in bytes of a
    chunk on each of them.
    """

    def __init__(
        self,
        objective: Objective,
        data: ClientData,
        placements: Sequence[Placement],
        *,
        memory: int | None = None,
        kernel: KernelName | None = None,
        journal: Journal | None = None,
    ) -> None:
        require(len(placements) >= 1, "A sharded engine needs at least one device, got none.")
        self.host = ClientHost(objective, data, replace(placements[0], device="cpu"), journal)
        self.objective, order = objective, in_order(data.names)
        self._shards = [
            _Shard(
                VectorisedEngine(
                    _on(objective, where), shard_of(data, order[members].tolist()), where, memory=memory, kernel=kernel
                ),
                members,
            )
            for where, members in zip(placements, _dealt(self.host.sizes, len(placements)), strict=False)
        ]
        self._wire_up()

    names = OfHost(lambda host: host.names)
    hosts = OfHost(lambda host: host.hosts)
    sizes = OfHost(lambda host: host.sizes)
    schema = OfHost(lambda host: host.schema)
    fingerprint = OfHost(lambda host: host.fingerprint)

    def _wire_up(self) -> None:
        """Give all shards the common memory and the common `on_begin` callback."""
        self.commit, lock = self.host.commit, threading.Lock()
        for engine, members in self._shards:

            def on_begin(clients: Sequence[int], members: Tensor = members) -> None:
                with lock:
                    self.host.on_begin(members[torch.as_tensor(clients)].tolist())

            engine.host.memory = _View(self.host.memory, members, engine.host.device)  # type: ignore[assignment]
            engine.host.on_begin = on_begin

    def describe(self) -> dict[str, Any]:
        """Everything that can change the bits of results, for the run's record."""
        return {**self._shards[0].engine.describe(), "device": ",".join(str(shard.device) for shard in self._shards)}

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> ShardedEngine:
        """A new session with another objective and empty client memory; examples are shared."""
        opened = copy.copy(self)
        opened.host, opened.objective = self.host.opened(objective, journal), objective
        opened._shards = [
            shard._replace(engine=shard.engine.open(_on(objective, shard.engine.host.placement)))
            for shard in self._shards
        ]
        opened._wire_up()
        return opened

    def refresh(self, data: ClientData) -> list[str]:
        """Replace the examples of the clients in `data`; returns the names of the memory slots that were cleared."""
        cleared = self.host.refresh(data)
        position = {name: i for i, name in enumerate(self.names)}
        everybody = torch.tensor([position[name] for name in data.names])
        for engine, members in self._shards:
            places = torch.isin(everybody, members).nonzero().flatten()
            new = shard_of(data, places.tolist())
            for split, rows in (("train", new.train), ("test", new.test)):
                table = engine.host.examples[split]  # type: ignore[index]
                table.replace(_local(members, everybody[places]), rows)
        return cleared

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Run a call at the clients, on all devices at once."""
        call = self.host.deliver(call)
        asked = [(shard, torch.isin(ids, shard.members).nonzero().flatten()) for shard in self._shards]
        asked = [(shard, places) for shard, places in asked if len(places)]
        whole = self._intake(call, ids)
        # A placement changes torch settings of the whole process, so they must not be restored by a single thread.
        with self._shards[0].engine.host.placement.computing(), ThreadPoolExecutor(max(1, len(asked))) as pool:
            intakes = [self._intake(call, ids) for _ in asked]
            futures = [
                pool.submit(shard.fill, call, ids, places, intake)
                for (shard, places), intake in zip(asked, intakes, strict=True)
            ]
            done = [future.result() for future in futures]
        first = self._shards[0].device
        for intake in intakes:
            whole.merge(intake, first)
        answered, errors = sum(count for count, _ in done), [error for _, problems in done for error in problems]
        errors = sorted(errors, key=lambda error: error[0])
        blame(answered, errors, whole, everybody=len(ids) == len(self.names))
        yield self.host.settle(call, whole)

    def _intake(self, call: Call, ids: Tensor) -> Intake:
        return Intake.at_host(call, ids, self.sizes)


def _dealt(sizes: Tensor, parts: int) -> list[Tensor]:
    """The ascending client ids for each of several devices; there are at most as many parts as clients."""
    order, parts = sizes.argsort(stable=True, descending=True), max(1, min(parts, len(sizes)))
    return [order[part::parts].sort().values for part in range(parts)]


def _local(members: Tensor, ids: Tensor) -> Tensor:
    """The numbers within a shard of these client ids."""
    return torch.searchsorted(members, ids)


def _on(objective: Objective, where: Placement) -> Objective:
    to = getattr(objective, "to", None)
    if to is None:
        raise InvalidInput(f"{type(objective).__name__} has no to(device, dtype): it cannot run on several devices.")
    moved: Objective = to(where.device, where.dtype)
    return moved
