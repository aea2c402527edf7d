"""The engine protocol: how a call reaches clients, and what an engine returns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from corymb.core.client import ClientFn
from corymb.core.lengths import Near
from corymb.core.names import DIGITS, MAX_INT64_DIGITS, ClientNames
from corymb.core.objective import Objective
from corymb.keys import Key
from corymb.trees import Signature, Tree, flatten, leaves, map_tensors

T = TypeVar("T")
Verb = Literal["map", "sum"]
Rejection = tuple[int, str]
"""A client's position and why its reply does not count."""


class Rows(Protocol):
    """All clients' examples, concatenated client by client."""

    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...
    @property
    def offsets(self) -> Tensor: ...


class ClientData(Protocol):
    """The members of a data set that an engine needs."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def train(self) -> Rows: ...
    @property
    def test(self) -> Rows: ...
    @property
    def schema(self) -> Mapping[str, Any]: ...
    def fingerprint(self) -> str: ...


class Version(NamedTuple):
    """A place in a run: the clock, and the number of the call since its last tick. Later versions compare greater."""

    clock: int
    call: int


START = Version(0, 0)
"""Before the first call: client memory is empty."""


class Each(NamedTuple):
    """An argument with rows, of which each client asked is sent one: its own, or the one indexed by `of`."""

    rows: Tree
    of: Tensor | None = None

    def at(self, places: Tensor) -> Tree:
        """The rows of the clients at these places among those asked."""
        wanted = places if self.of is None else self.of.to(places.device)[places]
        return map_tensors(lambda leaf: leaf[wanted.to(leaf.device)], self.rows)

    def check(self, n: int) -> None:
        """Raise ValueError unless there is one valid row for each of n clients."""
        rows = [len(leaf) for leaf in leaves(self.rows)]
        if self.of is None:
            for got in rows:
                if got != n:
                    raise ValueError(f"each(...) has {got} rows for {n} clients asked: give one row per client")
            return
        if len(self.of) != n:
            raise ValueError(f"each(..., of=...) has {len(self.of)} indices for {n} clients asked: give one per client")
        k = min(rows, default=0)
        if n and (int(self.of.min()) < 0 or int(self.of.max()) >= k):
            raise ValueError(
                f"each(..., of=...) has indices {self.of.min()} to {self.of.max()}, but there are {k} rows"
            )


def each(rows: T, of: Tensor | None = None) -> T:
    """Send each client asked its own row; any other argument goes to all of them.

    Arguments:
        rows: A tensor, or a tree of tensors, with a row for each client asked, in the order asked.
        of: The row of each client, where several have the same: `each(models, of=labels)` sends each client the model
            of its label, without a copy for every client at the server.
    """
    check_rows(rows, "each")
    return Each(rows, of)  # type: ignore[return-value]


def check_rows(rows: Tree, what: str) -> None:
    """Reject values without rows: a list or a NumPy array would be sent to every client as a whole."""
    odd = next((leaf for leaf in flatten(rows)[0] if not isinstance(leaf, Tensor)), None)
    if odd is not None:
        raise TypeError(
            f"{what}(...) wants tensors with a row for each client, in a dict or tuple if there are several: got a "
            f"{type(rows).__name__}{'' if odd is rows else f' with a {type(odd).__name__} in it'}. torch.as_tensor "
            "converts a list or an array."
        )


class Call(NamedTuple):
    """One call to clients, as an engine receives it."""

    fn: ClientFn[..., Any]
    args: tuple[Tree, ...]
    options: dict[str, Tree]
    key: Key
    verb: Verb
    version: Version
    """The call's place in the run; memory writes of its clients are stored under it."""
    since: Mapping[str, Version]
    """For each host, the version of the last call that the server accepted from it; `START` if there is none. The host
    discards everything written later before it runs the call."""
    readonly: bool = False
    near: Near | None = None
    """Where replies are expected: used to check them, never sent to clients."""
    guard: bool = True
    """Whether updates that are far longer than the others' are refused."""
    like: Signature | None = None
    """The signature that replies must have, if known from earlier replies; else that of most clients wins."""

    def of(self, places: Tensor) -> Call:
        """The same call for some of the clients asked, with the rows of `each` restricted to theirs."""

        def cut(value: Tree) -> Tree:
            return Each(value.at(places)) if isinstance(value, Each) else value

        return self._replace(
            args=tuple(map(cut, self.args)),
            options={name: cut(value) for name, value in self.options.items()},
            near=None if self.near is None else self.near.at(places),
        )


class TimeIsUp(Exception):
    """Raised between two clients when the call's time has run out; no client is at fault and the call is void."""


class Part(NamedTuple):
    """What a host returns for some of its clients: their rows, or their partial sums."""

    ids: Tensor
    value: Tree
    rejected: Sequence[Rejection]
    host: str = ""
    """The sender, set by the engine and never taken from the message."""
    spread: bool = False
    """Whether each client sent a separate value for every sum (`Shares`); needed to count bytes."""
    error: str = ""
    """The error, if every asked client of the host failed with the same one."""
    cause: Exception | None = None
    """The same error as an exception, from a host in this process: its traceback has locations, but no local values."""
    sound: bool = False
    """Whether a host in this process has already checked the values of its sums. Never sent: parts from other processes
    are always checked."""


Pages = dict[str, dict[str, Tree]]
"""Rows of memory slots as plain values, by slot: ids, values, present, along, made."""


class Journal(Protocol):
    """Durable storage of client memory: it outlives the engine's process."""

    def commit(self, clock: int, keep: Collection[int], pages: Pages, whole: bool) -> None:
        """Store what was written up to `clock`: the changes since the last commit, or everything (`whole`)."""
        ...

    def read(self, clock: int) -> list[Pages]:
        """The pages that restore the state at `clock`, to be applied in order."""
        ...


class Engine(Protocol):
    """Runs calls at clients, in this process or elsewhere.

    On every engine, clients are ordered by name (`in_order`).
    """

    @property
    def objective(self) -> Objective: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def sizes(self) -> Tensor:
        """How many training examples each client reports: n."""
        ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of clients' examples as plain values: see `corymb.data.schema.DataSchema`."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal exactly if the clients' data are equal."""
        ...

    @property
    def hosts(self) -> Sequence[str]:
        """The host of each client: n names, all the same if one process holds every client."""
        ...

    def describe(self) -> dict[str, Any]:
        """Everything that can change the bits of results, for the run's record."""
        ...

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Run a call at the clients at positions `ids` (ascending); parts may cover any of them, in any order."""
        ...

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> Self:
        """A new session: the same clients with another objective and empty memory.

        `journal` stores client memory that is kept in this process. Hosts in other processes have their own journals,
        identified by `session`; a session they already know is resumed.
        """
        ...

    def refresh(self, data: ClientData) -> list[str]:
        """Give the clients that `data` names new examples, between rounds.

        Memory slots whose rows follow a client's examples no longer fit: they are cleared for these clients, and their
        names are returned. Memory cannot be rewound to an earlier state.
        """
        ...

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Make client memory up to `clock` durable if there is a journal; only clocks in `keep` stay reachable.

        This sends no message: a host in another process has its own journal and follows `Call.since`.
        """
        ...


class OneHost(Sequence[str]):
    """The hosts of n clients that one process holds, without n entries.

    >>> hosts = OneHost(3)
    >>> list(hosts), hosts.count("")
    (['', '', ''], 3)
    """

    def __init__(self, clients: int) -> None:
        self._of_each = range(clients)

    def __len__(self) -> int:
        return len(self._of_each)

    @overload
    def __getitem__(self, client: int) -> str: ...
    @overload
    def __getitem__(self, client: slice) -> OneHost: ...
    def __getitem__(self, client: int | slice) -> str | OneHost:
        found = self._of_each[client]
        return OneHost(len(found)) if isinstance(found, range) else ""

    def __iter__(self) -> Iterator[str]:
        return repeat("", len(self))

    def count(self, value: object) -> int:
        """How many clients this host has."""
        return len(self) if value == "" else 0


def in_order(names: Sequence[str]) -> Tensor:
    """The positions that sort names as every engine does: as text, with runs of digits compared as numbers.

    >>> names = ["site-10", "site-9", "a"]
    >>> [names[i] for i in in_order(names)]
    ['a', 'site-9', 'site-10']
    """
    if isinstance(names, ClientNames) and names.numbered:
        return torch.arange(len(names))
    numbers = _numbers(names)
    if numbers is not None and bool((numbers[1:] > numbers[:-1]).all()):
        return torch.arange(len(numbers))
    if numbers is not None and len(np.unique(numbers)) == len(numbers):
        return torch.from_numpy(numbers.argsort())
    return torch.tensor(sorted(range(len(names)), key=lambda i: _pieces(names[i])), dtype=torch.int64)


def _numbers(names: Sequence[str]) -> np.ndarray | None:
    """The trailing numbers of names that differ only there, else None: a million sort keys would take 300 MB."""
    first, last = min(names, default=""), max(names, default="")  # their common prefix is that of all names
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    prefix = len(first[:same].rstrip(DIGITS))
    if not all(
        0 < len(name) - prefix <= MAX_INT64_DIGITS and name.isascii() and name[prefix:].isdigit() for name in names
    ):
        return None
    return np.fromiter((int(name[prefix:]) for name in names), np.int64, len(names))


def _pieces(name: str) -> tuple[list[str | int], str]:
    pieces: list[str | int] = list(re.split(r"([0-9]+)", name))
    pieces[1::2] = [int(digits) for digits in pieces[1::2]]
    return pieces, name  # the name breaks ties: 07 and 7 are the same number
