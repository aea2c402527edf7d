"""How much of a file is read: what its contents would take in memory is known, or counted, before it is too much."""

from __future__ import annotations

import contextvars
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from corymb.settings import InvalidInput, require

_LIMIT: contextvars.ContextVar[int | None] = contextvars.ContextVar("read_limit", default=None)
SHORT = 2**16
"""A line of so many characters is never too long."""
SPLIT = 64
"""Times that a line may grow when it is taken apart: three characters of JSON make an object."""
PART = 0.5
"""The part of the machine's memory that one file may take unless told otherwise."""


@contextmanager
def reading_at_most(limit: int | None) -> Iterator[None]:
    """Read files that take at most so many bytes in memory; None for half of the machine's."""
    require(limit is None or limit >= 1, f"read_limit is a number of bytes from 1 up, got {limit}.")
    before = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(before)


def limit() -> int:
    """The bytes that one file may take now."""
    given = _LIMIT.get()
    return _half_of_memory() if given is None else given


def check_size(size: int, what: str) -> None:
    """Refuse contents that say they are larger than the limit."""
    most = limit()
    require(
        size <= most,
        f"{what} would take {_readable(size)} in memory, more than the {_readable(most)} that a file may: give "
        "read_limit (--read_limit BYTES) if that is right.",
    )


def lines(file: IO[str], what: str) -> Iterator[str]:
    """The lines of a text file, of which none is so long that what is made of it would take too much memory."""
    longest = max(SHORT, limit() // SPLIT)
    number = 0
    while line := file.readline(longest + 1):
        number += 1
        require(
            len(line) <= longest,
            f"{what}, line {number} has more than {longest:,} characters: break it, or give a larger read_limit "
            "(--read_limit BYTES) if that is right.",
        )
        yield line


def _half_of_memory() -> int:
    try:
        return int(PART * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # not on this system
        return 8 * 2**30


def _readable(size: int) -> str:
    amount, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.3g} {unit}"


class Counted(io.RawIOBase):
    """A stream of bytes that ends with an error once more than the limit has been read: what was packed small."""

    def __init__(self, inner: IO[bytes], what: str) -> None:
        self._inner, self._what, self._left = inner, what, limit()

    def readable(self) -> bool:
        """It is read."""
        return True

    def seekable(self) -> bool:
        """So that a header can be looked at first."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go back to the beginning, from where everything counts again."""
        if offset == 0 and whence == 0:
            self._left = limit()
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        """Where it is."""
        return self._inner.tell()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Some more bytes."""
        data = self._inner.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise InvalidInput(
                f"{self._what} unpacks to more than the {_readable(limit())} that a file may take: give read_limit "
                "(--read_limit BYTES) if that is right."
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file."""
        self._inner.close()
        super().close()
