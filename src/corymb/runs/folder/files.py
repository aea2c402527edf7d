"""Crash-safe files: each is either complete or absent, and only one process writes at a time."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from corymb.runs.folder.chain import FIRST, LINK, chained
from corymb.runs.folder.layout import TEMPORARY
from corymb.settings import InvalidInput


def write_file(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it; the rename is durable once its folder is synced."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with suppress(FileNotFoundError):
            temporary.unlink()  # left by a crash, or a link that must not be followed
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise explained(error, path) from None


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


RESUME = "Earlier rounds are saved; free some space, then resume"


def explained(error: OSError, path: Path, what_now: str = RESUME) -> OSError:
    """The error with the name of the file, and with advice in its message if the disk is full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OSError(error.errno, f"The disk is full: {path} cannot be written. {what_now}")
    return error if error.filename is not None else OSError(error.errno, error.strerror, str(path))


@contextmanager
def whole(place: Path) -> Iterator[BinaryIO]:
    """Open an output file for writing; it appears only once it is complete.

    A device or a pipe is written to directly. For a link, its target is written and the link is kept.
    """
    plain = place.is_file() or not place.exists()
    there = Path(os.path.realpath(place)) if plain else place
    partial = there.with_name(f".{there.name}.part") if plain else place
    try:
        with partial.open("wb") as file:
            yield file
        if plain:
            os.replace(partial, there)
    except BaseException as error:
        if plain:
            partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        named = OSError(error.errno, error.strerror, str(place))  # not the temporary name
        raise explained(named, place, "Free some space, then try again") from None


class Lines:
    """An append-only file of JSON lines; each line is written as soon as it is appended.

    With `chain`, each line holds a hash of itself and the previous line (`corymb.runs.folder.chain`).
    """

    def __init__(self, path: Path, *, chain: bool = False) -> None:
        self.path, self.count = path, 0
        self._last = FIRST if chain else ""
        self._handle: int | None = None
        self._synced = 0

    def keep(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace the contents of the file by these lines."""
        if self._last:
            self._last = FIRST
        text = [json_line(row) for row in self._linked(rows)]
        write_file(self.path, b"".join(text))
        self.count = self._synced = len(text)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines."""
        if self._handle is None:
            self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for row in self._linked(rows):
            try:
                _write_all(self._handle, json_line(row))
            except OSError as error:
                raise explained(error, self.path) from None
            self.count += 1

    def _linked(self, rows: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        if not self._last:
            return rows
        found = chained(rows, self._last)
        self._last = found[-1][LINK] if found else self._last
        return found

    def sync(self) -> None:
        """Flush the lines to disk."""
        if self._handle is not None and self._synced < self.count:
            count = self.count
            os.fsync(self._handle)
            self._synced = count

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row of a file of JSON lines."""
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, up to the first incomplete one; empty if there is no file."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(json.loads(line, parse_constant=_no_number))
        except (ValueError, RecursionError):
            break
    return rows


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


class Writer:
    """Writes in a background thread, one job at a time, while the next round is computed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="corymb-writer")
        self._job: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Start a job once the previous one is done; an error of the previous job is raised here."""
        self.wait()
        self._job = self._pool.submit(job)

    def wait(self) -> None:
        """Wait until everything is written."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def close(self) -> None:
        """Wait, then end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()


class Lock:
    """A lock on a folder for one process at a time; the system releases it however the process ends."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            import fcntl
        except ImportError:  # not Unix: no lock that a killed process is sure to release
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._handle)
            raise InvalidInput(
                f"Another process is working on {path.parent}: wait until it ends, or stop it."
            ) from None

    def release(self) -> None:
        """Release the lock."""
        os.close(self._handle)
