"""Where clients are and how a call reaches them: what an engine must be, what it is asked and what it hands back."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from corymb.core.client import ClientFn
from corymb.core.guard import Near
from corymb.core.objective import Objective
from corymb.keys import Key
from corymb.trees import Signature, Tree, flatten, leaves, map_tensors

T = TypeVar("T")
DIGITS = "0123456789"
LONGEST = 18
"""Digits that any 64-bit number has room for."""
Verb = Literal["map", "sum"]
Rejection = tuple[int, str]
"""A client's position, and why its reply does not count."""


class Rows(Protocol):
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
    def train(self) -> Rows: ...
    @property
    def test(self) -> Rows: ...
    @property
    def schema(self) -> Mapping[str, Any]: ...
    def fingerprint(self) -> str: ...


class Version(NamedTuple):
    """A place in a run: the clock, and the number of the call since its last tick. Later places compare greater."""

    clock: int
    call: int


START = Version(0, 0)
"""Before the first call: client memory is empty."""


class Each(NamedTuple):
    """An argument of which each client asked gets one row: its own, or the one that `of` names for it."""

    rows: Tree
    of: Tensor | None = None

    def at(self, places: Tensor) -> Tree:
        """The rows for the clients at these places of those asked."""
        wanted = places if self.of is None else self.of.to(places.device)[places]
        return map_tensors(lambda leaf: leaf[wanted.to(leaf.device)], self.rows)

    def check(self, n: int) -> None:
        """Refuse rows that are not n, and names of rows that are not there."""
        rows = [len(leaf) for leaf in leaves(self.rows)]
        if self.of is None:
            for got in rows:
                if got != n:
                    raise ValueError(f"each(...) has {got} rows for {n} clients asked: give one row a client")
            return
        if len(self.of) != n:
            raise ValueError(f"each(..., of=...) names {len(self.of)} rows for {n} clients asked")
        k = min(rows, default=0)
        if n and (int(self.of.min()) < 0 or int(self.of.max()) >= k):
            raise ValueError(f"each(..., of=...) names rows {self.of.min()} to {self.of.max()}, there are {k}")


def each(rows: T, of: Tensor | None = None) -> T:
    """Send each client asked its own row; any other argument goes to all alike.

    Arguments:
        rows: A tensor, or a tree of tensors, with a row for each client asked, in the order asked.
        of: The row of each client, where several have the same: `each(models, of=labels)` sends each client the model
            of its label, without a copy for every client at the server.
    """
    check_rows(rows, "each")
    return Each(rows, of)  # type: ignore[return-value]


def check_rows(rows: Tree, what: str) -> None:
    """Refuse what has no rows: a list or a NumPy array would be taken for a value that goes to everybody whole."""
    odd = next((leaf for leaf in flatten(rows)[0] if not isinstance(leaf, Tensor)), None)
    if odd is not None:
        raise TypeError(
            f"{what}(...) wants tensors with a row for each client, in a dict or tuple if there are several: got a "
            f"{type(rows).__name__}{'' if odd is rows else f' with a {type(odd).__name__} in it'}. torch.as_tensor "
            "makes a tensor of a list or an array."
        )


class Call(NamedTuple):
    """One question to clients, as an engine gets it."""

    fn: ClientFn[..., Any]
    args: tuple[Tree, ...]
    options: dict[str, Tree]
    key: Key
    verb: Verb
    version: Version
    """Where in the run it is asked; what clients write into their memory belongs to it."""
    since: Mapping[str, Version]
    """For each host the version of the last call that the server accepted from it; `START` for a host without one.
    Whatever a host wrote later never counted: it forgets that before it runs the call."""
    readonly: bool = False
    near: Near | None = None
    """Where replies are expected: for those who check them, not for clients, to whom it is not sent."""
    guard: bool = True
    """Whether updates that are far longer than the others' are refused."""
    like: Signature | None = None
    """The form that replies must have, where others have answered before; else that of most is right."""

    def of(self, places: Tensor) -> Call:
        """The same call for some of those asked: rows of `each` are cut to theirs."""

        def cut(value: Tree) -> Tree:
            return Each(value.at(places)) if isinstance(value, Each) else value

        return self._replace(
            args=tuple(map(cut, self.args)),
            options={name: cut(value) for name, value in self.options.items()},
            near=None if self.near is None else self.near.at(places),
        )


class TimeIsUp(Exception):
    """Raised between two clients' work, and nobody's fault: the call does not count."""


class Part(NamedTuple):
    """What a host hands back for some of its clients: their rows, or their partial sums."""

    ids: Tensor
    value: Tree
    rejected: Sequence[Rejection]
    host: str = ""
    """Who sent it, as the engine knows, not as the part says."""
    spread: bool = False
    """Whether each client sent a value of its own for every sum (`Shares`): so the receiver can count bytes."""
    error: str = ""
    """What went wrong at every client of the host that was asked, where that was the same thing."""
    cause: Exception | None = None
    """The same with its traceback, from a host in this process: where it was raised, and nothing of what was there."""
    sound: bool = False
    """Whether a host in this process has looked at the numbers of its sums, as the door does. Messages have no place
    for it: of what comes from elsewhere nobody has."""


Pages = dict[str, dict[str, Tree]]
"""Rows of memory slots as plain values, by slot: ids, values, present, along, made."""


class Journal(Protocol):
    """Where client memory outlasts the process of the engine that keeps it."""

    def commit(self, clock: int, keep: Collection[int], pages: Pages, whole: bool) -> None:
        """Keep what was written up to `clock`: what changed since the last commit, or everything (`whole`)."""
        ...

    def read(self, clock: int) -> list[Pages]:
        """What leads to the state at `clock`, to be applied in order."""
        ...


class Engine(Protocol):
    """Where clients are: the whole of what an engine must be.

    Clients stand in the order of their names (`in_order`) on every engine.
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
        """What clients' examples are like, as plain values: see `corymb.data.schema.DataSchema`."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal exactly where the clients' data are."""
        ...

    @property
    def hosts(self) -> Sequence[str]:
        """Who answers for each client: n names, all the same where one process holds everybody."""
        ...

    def describe(self) -> dict[str, Any]:
        """What changes bits, for the record of a run."""
        ...

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the clients at positions `ids`, which rise; parts may come in any order and cover any of them."""
        ...

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> Self:
        """The same clients with another objective and nothing in their memory: a session of its own.

        `journal` is for client memory that is kept in this process. Hosts elsewhere have their own: `session` is what
        they know it by, and one that they know already is taken up again.
        """
        ...

    def refresh(self, data: ClientData) -> list[str]:
        """Give the clients that `data` names new examples, between rounds.

        Memory slots whose rows follow a client's examples would no longer fit: they are cleared for these clients, and
        named in what is returned. Nobody can go back to before this.
        """
        ...

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Client memory up to `clock` is durable where it outlasts the process; only clocks in `keep` stay reachable.

        No message: a host in another process keeps a journal of its own and goes by `Call.since`.
        """
        ...


def in_order(names: Sequence[str]) -> Tensor:
    """The positions of names in the one order of all engines: as text, with runs of digits as numbers.

    >>> names = ["site-10", "site-9", "a"]
    >>> [names[i] for i in in_order(names)]
    ['a', 'site-9', 'site-10']
    """
    numbers = _numbers(names)
    if numbers is not None and len(np.unique(numbers)) == len(numbers):
        return torch.from_numpy(numbers.argsort())
    return torch.tensor(sorted(range(len(names)), key=lambda i: _pieces(names[i])), dtype=torch.int64)


def _numbers(names: Sequence[str]) -> np.ndarray | None:
    """The numbers of names that differ in a last run of digits only: a million sort keys would take 300 MB."""
    first, last = min(names, default=""), max(names, default="")  # all names begin as these two do
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    prefix = len(first[:same].rstrip(DIGITS))
    if not all(0 < len(name) - prefix <= LONGEST and name.isascii() and name[prefix:].isdigit() for name in names):
        return None
    return np.fromiter((int(name[prefix:]) for name in names), np.int64, len(names))


def _pieces(name: str) -> tuple[list[str | int], str]:
    pieces: list[str | int] = list(re.split(r"([0-9]+)", name))
    pieces[1::2] = [int(digits) for digits in pieces[1::2]]
    return pieces, name  # 07 and 7 are the same number, not the same name
