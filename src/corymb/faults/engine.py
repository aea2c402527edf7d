"""An engine with faulty clients or connections, chosen by a seed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corymb.core.client import Client, ClientFn
from corymb.core.engine import Call, Engine, Journal, Part, each
from corymb.core.objective import Objective
from corymb.faults.kinds import KINDS, Kind
from corymb.keys import fold, hash_names, root, uniform
from corymb.settings import InvalidInput, did_you_mean, require
from corymb.trees import Tree, as_tensors, signature, tree_map


@dataclass(frozen=True)
class Fault:
    """One kind of fault, and its clients: a share of all clients, drawn by name, or named clients."""

    name: str
    share: float = 0.0
    clients: tuple[str, ...] = ()
    always: bool = True
    """Whether the same clients are faulty in every call; else each call draws new ones, as for dropout."""

    def __post_init__(self) -> None:
        require(self.name in KINDS, f"There is no fault {self.name!r}. {did_you_mean(self.name, KINDS)}")
        require(0 <= self.share <= 1, f"The share of clients with fault {self.name!r} is {self.share}: wanted 0 to 1.")

    @property
    def kind(self) -> Kind:
        """The kind of fault."""
        return KINDS[self.name]


def read_faults(text: str) -> list[Fault]:
    """Faults from their form on the command line: `nan:0.1,dropout:0.3`, or `huge@client-3`.

    Clients that drop out, are late or answer twice are drawn again in every call; other faults stay with their clients.
    """
    found = []
    for part in text.split(","):
        name, at, client = part.strip().partition("@")
        if at:
            found.append(Fault(name, clients=(client,)))
            continue
        name, colon, share = part.strip().partition(":")
        try:
            number = float(share) if colon else 0.1
        except ValueError:
            raise InvalidInput(
                f"--faults {part.strip()!r}: wanted NAME:SHARE, such as nan:0.1, or NAME@CLIENT."
            ) from None
        found.append(Fault(name, share=number, always=name not in ("dropout", "delay", "duplicate")))
    return found


def write_faults(faults: Sequence[Fault]) -> str:
    """Faults in the form that `read_faults` reads, so that a resumed run has the same.

    >>> write_faults(read_faults("nan:0.1, huge@client-3"))
    'nan:0.1,huge@client-3'
    """
    parts = []
    for fault in faults:
        parts += [f"{fault.name}:{fault.share}"] if fault.share or not fault.clients else []
        parts += [f"{fault.name}@{client}" for client in fault.clients]
    return ",".join(parts)


def inject(engine: Engine, faults: Sequence[Fault], seed: int = 0) -> Engine:
    """The engine with faults injected. If clients are separate hosts, their faults are injected on their side."""
    known = set(engine.names)
    for fault in faults:
        unknown = next((name for name in fault.clients if name not in known), None)
        require(unknown is None, f"Fault {fault.name!r} is for client {unknown!r}, which does not exist.")
    if hasattr(engine, "with_nodes"):
        hosts = engine.with_nodes(lambda node: Faulty(node, faults, seed, transit=False))
        return Faulty(hosts, faults, seed, clients=False)
    return Faulty(engine, faults, seed)


class Faulty:
    """A wrapper of an engine that forwards everything, except for what its faults change."""

    def __init__(
        self, engine: Any, faults: Sequence[Fault], seed: int = 0, *, clients: bool = True, transit: bool = True
    ) -> None:
        self.engine, self.faults, self.seed = engine, list(faults), seed
        self._of_clients, self._in_transit = clients, transit
        self._earlier: dict[str, Part] = {}

    def __getattr__(self, name: str) -> Any:
        if name in ("engine", "__setstate__"):  # not set yet while a copy is made
            raise AttributeError(name)
        return getattr(self.engine, name)

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> Faulty:
        """A new session with the same faults, another objective and empty client memory."""
        opened = copy.copy(self)
        opened.engine, opened._earlier = self.engine.open(objective, journal, session), {}
        return opened

    def describe(self) -> dict[str, Any]:
        """Everything that can change the bits of results, for the run's record."""
        return {**self.engine.describe(), "faults": write_faults(self.faults)}

    def bad(self, fault: Fault, call: Call | None, ids: Tensor) -> Tensor:
        """A mask of the clients that have a fault in a call; it depends only on their own names."""
        names = [self.engine.names[i] for i in ids.tolist()]
        hashes = hash_names(names)
        key = fold(root(self.seed), "faults", fault.name)
        if not fault.always and call is not None:
            key = fold(key, call.version.clock, call.version.call)
        drawn = uniform(fold(key, hashes)) < fault.share if len(names) else torch.zeros(0, dtype=torch.bool)
        return drawn | torch.tensor([name in fault.clients for name in names], dtype=torch.bool)

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Run a call with faults. Read-only calls (evaluation) are not disturbed."""
        if call.readonly:
            yield from self.engine.run(call, ids)
            return
        if self._in_transit:
            stay = (~self._those("dropout", call, ids)).nonzero().flatten()
            call, ids = (call, ids) if len(stay) == len(ids) else (call.of(stay), ids[stay])
        if not len(ids):
            return
        asked = self._with_bad_clients(call, ids) if self._of_clients else call
        parts = self.engine.run(asked, ids)
        yield from self._deliver(call, parts) if self._in_transit else parts

    # ---- bad clients

    def _with_bad_clients(self, call: Call, ids: Tensor) -> Call:
        faults = [f for f in self.faults if f.kind.change or f.kind.replace or f.kind.data]
        code = torch.zeros(len(ids), dtype=torch.int64)
        for number, fault in enumerate(faults, 1):
            code = torch.where((code == 0) & self.bad(fault, call, ids), number, code)
        if not bool(code.any()):
            return call
        present = {number: fault.kind for number, fault in enumerate(faults, 1) if bool((code == number).any())}

        def body(client: Client, *args: Tree, fault_code: Tensor, **options: Tree) -> Tree:
            for number, kind in present.items():
                if kind.data:
                    client = _mislabelled(client, fault_code == number)
            reply = as_tensors(call.fn.body(client, *args, **options))
            for number, kind in present.items():
                if kind.change is not None:
                    reply = _chosen(fault_code == number, as_tensors(kind.change(reply, client)), reply)
            for number, kind in present.items():
                if kind.replace is not None and int(fault_code) == number:  # not under vmap: clients run one by one
                    return kind.replace(reply)
            return reply

        body.__module__, body.__qualname__ = call.fn.body.__module__, call.fn.body.__qualname__
        options = {**call.options, "fault_code": each(code)}
        return call._replace(fn=ClientFn(body), options=options)

    # ---- bad connections

    def _deliver(self, call: Call, parts: Iterator[Part]) -> Iterator[Part]:
        """Delay, duplicate or replace parts by earlier ones; the last two only if all of a part's clients are bad."""
        late = []
        for part in parts:
            if bool(self._those("stale", call, part.ids).all()) and len(part.ids):
                part = self._old(call, part)
            if bool(self._those("delay", call, part.ids).any()):
                late.append(part)
                continue
            yield part
            if len(part.ids) and bool(self._those("duplicate", call, part.ids).all()):
                yield part
        yield from late

    def _those(self, name: str, call: Call, ids: Tensor) -> Tensor:
        mask = torch.zeros(len(ids), dtype=torch.bool)
        for fault in self.faults:
            if fault.name == name:
                mask |= self.bad(fault, call, ids)
        return mask

    def _old(self, call: Call, part: Part) -> Part:
        place = f"{call.fn.name} {part.ids.tolist()}"
        old = self._earlier.setdefault(place, part)
        return old if signature(old.value) == signature(part.value) else part


def _chosen(bad: Tensor, wrong: Tree, reply: Tree) -> Tree:
    return tree_map(lambda w, r: torch.where(bad.to(r.device), w.to(r), r), wrong, reply)


def _mislabelled(client: Client, bad: Tensor) -> Client:
    other = copy.copy(client)
    y = client.train.y
    other.train = client.train._replace(y=torch.where(bad.to(y.device), y.amax() + y.amin() - y, y))
    return other
