"""Many clients at once: client functions under vmap, their work with data handed to a kernel.

Clients are sorted by size, cut into chunks that fit a memory budget and padded with weight 0; sums are streamed chunk
by chunk, so that memory holds k models and one chunk, not n models.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from corymb.core.client import Client, Memory, Objective, Slot, Split, TestExamplesWanted
from corymb.core.federation import Call, Each
from corymb.core.intake import Part, Tally
from corymb.engines.host import ClientData, ClientHost, Outcome, Placement, settle
from corymb.engines.memory import Journal
from corymb.engines.vectorised.kernels import KernelName, Kernels
from corymb.engines.vectorised.probe import probe
from corymb.trees import as_tensors, flatten, unflatten

log = logging.getLogger(__name__)
CPU_BUDGET = 256 * 2**20  # a working set far larger than the caches gains nothing
UNEVEN = 1.5  # the longest client of a chunk may be this much longer than the shortest
Errors = list[tuple[int, Exception]]


class VectorisedEngine:
    """Runs a call for many clients at once in this process, on CPU or GPU.

    `memory` is the budget of one chunk in bytes (`None`: from the device), `kernel` overrides the choice of kernel.
    `journal` is where client memory outlasts the process.
    """

    def __init__(
        self,
        objective: Objective,
        data: ClientData,
        where: Placement = Placement(),  # noqa: B008
        *,
        memory: int | None = None,
        kernel: KernelName | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._room = ClientHost(objective, data, where, journal)
        self.objective, self.names, self.sizes = objective, self._room.names, self._room.sizes
        self.kernels: Kernels = probe(self._room, only=kernel)
        self.budget = memory or _budget(self._room.device)
        self._serial: set[str] = set()  # client functions that vmap cannot take
        self._look_at_test: set[str] = set()

    def describe(self) -> dict[str, Any]:
        """What changes bits, for the record of a run."""
        chunk = max(1, self.budget // self._bytes_of(int(self.sizes.max())))
        kernel = self.kernels.only or self.kernels.pick(None)
        return {
            "engine": "vectorised",
            **self._room.where.describe(),
            "kernel": kernel,
            "memory": self.budget,
            "chunk": min(chunk, len(self.names)),
        }

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the clients, chunk by chunk."""
        call = self._room.delivered(call)
        tally, answered, errors = Tally(call.verb), 0, Errors()
        order = self.sizes[ids].argsort(stable=True)
        while len(order):
            n = self._fitting(self.sizes[ids[order]])
            more, problems = self._ask(call, ids[order[:n]], order[:n], tally)
            answered, errors, order = answered + more, errors + problems, order[n:]
        settle(answered, errors, tally)
        part, writes = tally.result()
        for owners, slots in writes:
            self._room.memory.write(call.clock, owners, slots)
        yield part

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Make client memory durable, where there is a journal; what no kept clock needs is dropped."""
        self._room.commit(clock, keep)

    def rewind(self, clock: int) -> None:
        """Client memory as it was at `clock`."""
        self._room.rewind(clock)

    # ---- chunks

    def _bytes_of(self, size: int) -> int:
        """What one client with `size` examples takes in a chunk, roughly and on the safe side."""
        traits, shelf = self.kernels.traits, self._room.shelves["train"]
        example = shelf.x[:1].nbytes + shelf.y[:1].nbytes + 16 + 3 * traits.activation_bytes
        copies = 4 if self.kernels.pick(None) == "fused" else 8  # the model, its start, its reply, steps in flight
        return size * example + copies * traits.parameter_bytes + 64

    def _fitting(self, sizes: Tensor) -> int:
        """How many of the clients (sorted by size) go into the next chunk."""
        first = int(sizes[0])
        n = int((sizes <= max(UNEVEN * first, first + 8)).sum())
        low, high = 1, n  # the need grows with the number: bisect
        while low < high:
            middle = (low + high + 1) // 2
            fits = middle * self._bytes_of(int(sizes[middle - 1])) <= self.budget
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    # ---- one chunk

    def _ask(self, call: Call, ids: Tensor, places: Tensor, tally: Tally) -> tuple[int, Errors]:
        """Ask a chunk; how many answered, and the errors of those that raised."""
        if call.fn.name in self._serial:
            return self._room.ask_each(call, zip(ids.tolist(), places.tolist(), strict=True), tally)
        try:
            value, writes = self._stacked(call, ids, places)
        except Exception as error:  # whose fault it is, is found out below
            if _out_of_memory(error) and len(ids) > 1:
                self.budget = max(1, self.budget // 2)
                log.warning("out of memory with %d clients at once: chunks are halved", len(ids))
                return self._halves(call, ids, places, tally)
            return self._find_fault(call, ids, places, tally, error)
        tally.add(ids, value, self.sizes[ids].to(self._room.device), writes)
        return len(ids), []

    def _halves(self, call: Call, ids: Tensor, places: Tensor, tally: Tally) -> tuple[int, Errors]:
        half = len(ids) // 2
        first, problems = self._ask(call, ids[:half], places[:half], tally)
        second, more = self._ask(call, ids[half:], places[half:], tally)
        return first + second, problems + more

    def _find_fault(
        self, call: Call, ids: Tensor, places: Tensor, tally: Tally, error: Exception
    ) -> tuple[int, Errors]:
        """A chunk raised: vmap cannot take the function, or some clients are at fault, or it is everybody's bug."""
        if len(ids) > 1 and self._works(call, ids[:1], places[:1]):
            return self._halves(call, ids, places, tally)
        errors = Errors()
        for i, (client, place) in enumerate(zip(ids.tolist(), places.tolist(), strict=True)):
            answered, problems = self._room.ask_each(call, [(client, place)], tally)
            errors += problems
            if answered:  # by itself, but not under vmap?
                if not self._works(call, ids[i : i + 1], places[i : i + 1]):
                    self._serial.add(call.fn.name)
                    log.warning("%s runs client by client: vmap cannot take it (%s)", call.fn.name, _line(error))
                rest = (0, Errors()) if i + 1 == len(ids) else self._ask(call, ids[i + 1 :], places[i + 1 :], tally)
                return 1 + rest[0], errors + rest[1]
        return 0, errors

    def _works(self, call: Call, ids: Tensor, places: Tensor) -> bool:
        try:
            self._stacked(call, ids, places)
        except Exception:  # the caller finds out which it is
            return False
        return True

    def _stacked(self, call: Call, ids: Tensor, places: Tensor) -> Outcome:
        try:
            return self._under_vmap(call, ids, places)
        except TestExamplesWanted:
            self._look_at_test.add(call.fn.name)
            return self._under_vmap(call, ids, places)

    def _under_vmap(self, call: Call, ids: Tensor, places: Tensor) -> Outcome:
        room = self._room
        splits: list[Split] = ["train", "test"] if call.fn.name in self._look_at_test else ["train"]
        examples = {split: room.shelves[split].stack(ids) for split in splits}
        padded = {split: shelf.longest(ids) for split, shelf in room.shelves.items()}
        stored = room.memory.read(ids, padded)
        along = {name: slot.along for name, slot in stored.items()}
        slots = {name: (slot.value, slot.present) for name, slot in stored.items()}
        rows = [_rows_at(arg, places) for arg in (*call.args, *call.options.values())]
        inputs, structure = flatten((examples, slots, room.keys(call, ids), rows))
        answer: dict[str, Any] = {}

        def one(*leaves: Tensor) -> tuple[Tensor, ...]:
            given, kept, key, own = unflatten(structure, leaves)
            memory = Memory(
                {name: Slot(value, present, along[name]) for name, (value, present) in kept.items()},
                lengths=padded,
                readonly=call.readonly,
            )
            subject = Client(
                train=given["train"],
                test=given.get("test"),
                objective=room.objective,
                memory=memory,
                key=key,
                kernel=self.kernels,
            )
            every = [
                row if isinstance(arg, Each) else arg
                for arg, row in zip((*call.args, *call.options.values()), own, strict=True)
            ]
            n = len(call.args)
            value = call.fn.body(subject, *every[:n], **dict(zip(call.options, every[n:], strict=True)))
            writes = {name: (slot.value, slot.present) for name, slot in memory.writes.items()}
            answer["along"] = {name: slot.along for name, slot in memory.writes.items()}
            out, answer["structure"] = flatten(as_tensors((value, writes)))
            return tuple(leaf.to(room.device) for leaf in out)

        with room.where.computing():
            outputs = vmap(one)(*inputs)
        value, writes = unflatten(answer["structure"], outputs)
        return Outcome(value, {name: Slot(v, present, answer["along"][name]) for name, (v, present) in writes.items()})


def _rows_at(arg: Any, places: Tensor) -> Any:
    return arg.at(places) if isinstance(arg, Each) else None


def _budget(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // 3  # allocations are estimated, and fragments cost
    return CPU_BUDGET


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
