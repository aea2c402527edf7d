"""Memory limits for reading files: the size of the contents is known or counted before it exceeds the limit."""

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
"""A line of at most this many characters is always accepted."""
SPLIT = 64
"""The factor by which a line may grow in memory when parsed: three characters of JSON make an object."""
PART = 0.5
"""The default fraction of the machine's memory that one file may take."""


@contextmanager
def reading_at_most(limit: int | None) -> Iterator[None]:
    """Limit the memory that each file read within may take; None is half of the machine's."""
    require(limit is None or limit >= 1, f"read_limit must be at least 1 byte, got {limit}.")
    before = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(before)


def limit() -> int:
    """The current limit for one file, in bytes."""
    given = _LIMIT.get()
    return _half_of_memory() if given is None else given


def check_size(size: int, what: str) -> None:
    """Reject contents that are larger than the limit."""
    most = limit()
    if size > most:  # not `require`: this is called for every row, and the message takes longer than the check
        raise InvalidInput(
            f"{what} would take {_readable(size)} in memory, more than the limit of {_readable(most)} per file: raise "
            "read_limit (--read_limit BYTES) if that is intended."
        )


def lines(file: IO[str], what: str) -> Iterator[str]:
    """Yield the lines of a text file; rejects a line so long that parsing it could exceed the limit."""
    longest = max(SHORT, limit() // SPLIT)
    number = 0
    while line := file.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise InvalidInput(
                f"{what}, line {number} has more than {longest:,} characters: break it, or raise read_limit "
                "(--read_limit BYTES) if that is intended."
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
    """A byte stream that raises an error once more than the limit has been read, such as from a small gzip file."""

    def __init__(self, inner: IO[bytes], what: str) -> None:
        self._inner, self._what, self._left = inner, what, limit()

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true, so that a header can be read first."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Seek; going back to the start resets the count."""
        if offset == 0 and whence == 0:
            self._left = limit()
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        """The current position."""
        return self._inner.tell()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read into a buffer, and count the bytes."""
        data = self._inner.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise InvalidInput(
                f"{self._what} unpacks to more than the limit of {_readable(limit())} per file: raise read_limit "
                "(--read_limit BYTES) if that is intended."
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file."""
        self._inner.close()
        super().close()
