"""Clients' names: hashed once for all that draw by name, and without an entry for each where they are only numbered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import eq
from typing import overload

from torch import Tensor

from corymb.keys import hash_names

DIGITS = "0123456789"
MAX_INT64_DIGITS = 18
"""Digits that always fit into a 64-bit integer."""


class Numbered(Sequence[str]):
    """Names that are a prefix and consecutive numbers, made when they are read: a million of them take no memory.

    >>> names = Numbered("client-", range(1_000_000), digits=2)
    >>> names[7], names[-1], names.index("client-123"), "client-007" in names
    ('client-07', 'client-999999', 123, False)
    """

    def __init__(self, prefix: str, numbers: range, digits: int = 1) -> None:
        self._prefix, self._numbers = prefix, numbers
        self._name = f"{prefix.replace('%', '%%')}%0{digits}d".__mod__

    @staticmethod
    def of(names: Sequence[str]) -> Numbered | None:
        """These names, if they are of that kind; else None."""
        first = names[0] if names else ""
        prefix = first.rstrip(DIGITS)
        digits = len(first) - len(prefix)
        if not 0 < digits <= MAX_INT64_DIGITS:
            return None
        start = int(first[len(prefix) :])
        found = Numbered(prefix, range(start, start + len(names)), digits)
        return found if found[-1] == names[-1] and all(map(eq, found, names)) else None

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        found = self._numbers[place]
        return tuple(map(self._name, found)) if isinstance(found, range) else self._name(found)

    def __iter__(self) -> Iterator[str]:
        return map(self._name, self._numbers)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._place(name) is not None

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """The place of a name; ValueError if there is none from `start` on and before `stop`."""
        place = self._place(value)
        if place is None or place not in range(len(self))[start:stop]:
            raise ValueError(f"there is no name {value!r}")
        return place

    def _place(self, name: str) -> int | None:
        number = name.removeprefix(self._prefix)
        longest = len(self._name(self._numbers.stop))
        if not (number.isascii() and number.isdigit() and len(name) <= longest):
            return None
        place = int(number) - self._numbers.start
        return place if 0 <= place < len(self) and self[place] == name else None


class ClientNames(Sequence[str]):
    """The names of clients; equal to a tuple or a list of the same names.

    >>> ClientNames.of(["a", "b"]) == ("a", "b"), ClientNames.of(["9", "10"])
    (True, ('9', '10'))
    """

    def __init__(self, kept: tuple[str, ...] | Numbered) -> None:
        self._kept = kept

    @staticmethod
    def of(names: Iterable[str]) -> ClientNames:
        """These names, in as little memory as they need."""
        if isinstance(names, ClientNames):
            return names
        kept = names if isinstance(names, (tuple, Numbered)) else tuple(names)
        return ClientNames((isinstance(kept, tuple) and Numbered.of(kept)) or kept)

    @property
    def numbered(self) -> bool:
        """Whether the names are a prefix and consecutive numbers: they differ, and are in the order of all engines."""
        return isinstance(self._kept, Numbered)

    @cached_property
    def hashes(self) -> Tensor:
        """The hash of each name, computed once: n."""
        return hash_names(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        return self._kept[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """The place of a name; ValueError if there is none from `start` on and before `stop`."""
        return self._kept.index(value, start, len(self) if stop is None else stop)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (ClientNames, tuple, list)):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
