"""One engine's clients: their examples on a device, their memory, and how a call reaches one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from corymb.core.client import Client, Examples, Memory, Objective, Slot, Split
from corymb.core.federation import Call, Each
from corymb.core.intake import Tally
from corymb.engines.memory import Journal, MemoryStore, one_client
from corymb.keys import fold, hash_name
from corymb.trees import as_tensors, map_tensors


class RaggedLike(Protocol):
    """All clients' examples, one client after another."""

    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...
    @property
    def offsets(self) -> Tensor: ...


class ClientData(Protocol):
    """What an engine needs of a data set."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def train(self) -> RaggedLike: ...
    @property
    def test(self) -> RaggedLike: ...


@dataclass(frozen=True)
class Placement:
    """Where and how exactly clients compute."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    mixed: bool = False
    """Matrix products in bfloat16, everything kept in `dtype`."""
    tf32: bool = False
    """Matrix products on the GPU in TF32."""

    def describe(self) -> dict[str, Any]:
        """What changes bits, for the record of a run."""
        dtype = str(self.dtype).removeprefix("torch.")
        precision = "bfloat16" if self.mixed else "tf32" if self.tf32 else dtype
        return {"device": self.device, "precision": precision, "threads": torch.get_num_threads()}

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The precision of clients' arithmetic; averages of their replies stay outside."""
        kind = torch.device(self.device).type
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        try:
            with torch.autocast(kind, torch.bfloat16) if self.mixed else nullcontext():
                yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


class ExampleTable:
    """Flat examples of all clients on a device; hands out one client's, or a padded stack of several clients'."""

    def __init__(self, ragged: RaggedLike, device: torch.device, dtype: torch.dtype) -> None:
        self.x, self.y = (_placed(t, device, dtype) for t in (ragged.x, ragged.y))
        self.offsets = ragged.offsets.cpu().to(torch.int64)
        self.sizes = self.offsets.diff()
        self.device, self.dtype = device, dtype

    def one(self, client: int) -> Examples:
        """One client's examples, without padding."""
        rows = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        x, y = self.x[rows], self.y[rows]
        return Examples(x, y, torch.ones(len(y), device=self.device, dtype=self.dtype))

    def stack(self, ids: Tensor) -> Examples:
        """Several clients' examples, n m ...: short clients are filled up with weight 0."""
        sizes, starts = self.sizes[ids], self.offsets[ids]
        longest = int(sizes.max())
        if bool((sizes == longest).all()) and bool((starts.diff() == longest).all()):  # neighbours: no copy
            rows = slice(int(starts[0]), int(starts[0]) + longest * len(ids))
            x, y = (t[rows].unflatten(0, (len(ids), longest)) for t in (self.x, self.y))
            return Examples(x, y, torch.ones(len(ids), longest, device=self.device, dtype=self.dtype))
        places = torch.arange(longest)
        real = (places < sizes[:, None]).to(self.device)
        # A row of padding repeats the client's last example: a finite loss there is finite in the padding too.
        rows_of = (starts[:, None] + torch.minimum(places, (sizes[:, None] - 1).clamp_min(0))).clamp_max(
            len(self.y) - 1
        )
        rows_of = rows_of.to(self.device)
        x, y = self.x[rows_of], self.y[rows_of]
        if bool((sizes == 0).any()):  # a client without examples has nothing to repeat, and must not see another's
            some = (sizes > 0).to(self.device)
            x, y = (torch.where(some.reshape(-1, *[1] * (t.dim() - 1)), t, 0) for t in (x, y))
        return Examples(x, y, real.to(self.dtype))

    def longest(self, ids: Tensor) -> int:
        """The number of rows of `stack(ids)` for each client."""
        return int(self.sizes[ids].max())


def _placed(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)


class Outcome(NamedTuple):
    """What running a client function gave: the reply, and what the client keeps."""

    value: Any
    writes: dict[str, Slot]


class ClientHost:
    """All clients of an in-process engine."""

    def __init__(
        self, objective: Objective, data: ClientData, where: Placement, journal: Journal | None = None
    ) -> None:
        self.objective, self.where, self.journal = objective, where, journal
        self._read_journal = False
        self.device = device = torch.device(where.device)
        dtype = where.dtype
        self.names = list(data.names)
        self.shelves: dict[Split, ExampleTable] = {
            "train": ExampleTable(data.train, device, dtype),
            "test": ExampleTable(data.test, device, dtype),
        }
        self.sizes = self.shelves["train"].sizes
        self.memory = MemoryStore({split: shelf.sizes for split, shelf in self.shelves.items()})
        self._hashes = torch.tensor([hash_name(name) for name in self.names], dtype=torch.int64)

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Make client memory durable, where there is a journal; what no kept clock needs is dropped."""
        if self.journal is None:
            self.memory.forget_before(min(keep, default=clock))
            return
        self.journal.commit(clock, keep, *self.memory.export())
        self.memory.forget_before(clock)  # what was before is in the journal

    def rewind(self, clock: int) -> None:
        """Client memory as it was at `clock`; what this process never knew, or no longer, comes from the journal."""
        if self.journal is not None and not (self._read_journal and self.memory.reaches(clock)):
            self.memory.restore(clock, self.journal.read(clock), self.device)
            self._read_journal = True
        else:
            self.memory.rewind(clock)

    def delivered(self, call: Call) -> Call:
        """The call with its arguments where the clients are."""
        args, options = map_tensors(lambda leaf: leaf.to(self.device), (call.args, call.options))
        return call._replace(args=args, options=options)

    def keys(self, call: Call, ids: Tensor) -> Tensor:
        """The key of each client for this call."""
        return fold(call.key, self._hashes[ids]).to(self.device)

    def ask_one(self, call: Call, client: int, place: int) -> Outcome:
        """Run a call for one client by itself; `place` is its row in arguments made with `each`."""
        ids = torch.tensor([client])
        padded = {split: shelf.longest(ids) for split, shelf in self.shelves.items()}
        memory = Memory(one_client(self.memory.read(ids, padded)), lengths=padded, readonly=call.readonly)
        subject = Client(
            train=self.shelves["train"].one(client),
            test=self.shelves["test"].one(client),
            objective=self.objective,
            memory=memory,
            key=self.keys(call, ids)[0],
        )
        where = torch.tensor(place)
        args = [a.at(where) if isinstance(a, Each) else a for a in call.args]
        options = {n: o.at(where) if isinstance(o, Each) else o for n, o in call.options.items()}
        with self.where.computing():
            value = as_tensors(call.fn.body(subject, *args, **options))
        return Outcome(value, memory.writes)

    def ask_each(
        self, call: Call, clients: Iterable[tuple[int, int]], tally: Tally
    ) -> tuple[int, list[tuple[int, Exception]]]:
        """Run a call for clients one after another: how many answered, and the errors of those that raised."""
        answered, errors = 0, []
        for client, place in clients:
            try:
                outcome = self.ask_one(call, client, place)
            except Exception as error:  # whose fault it is, is decided when all have been asked
                errors.append((client, error))
                continue
            ids = torch.tensor([client])
            rows = map_tensors(lambda leaf: leaf.unsqueeze(0), outcome.value)
            writes = {name: _row(slot) for name, slot in outcome.writes.items()}
            tally.add(ids, rows, self.sizes[ids].to(self.device), writes)
            answered += 1
        return answered, errors


def _row(slot: Slot) -> Slot:
    return Slot(map_tensors(lambda leaf: leaf.unsqueeze(0), slot.value), slot.present.reshape(1), slot.along)


def settle(answered: int, errors: Sequence[tuple[int, Exception]], tally: Tally) -> None:
    """Errors of a whole call: everybody's is a bug and is raised; some clients' are theirs, and they are named."""
    if errors and not answered:
        raise errors[0][1]
    for client, error in errors:
        tally.reject(client, f"raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
