"""Files that survive a crash: whole or not there at all, and one process at a time."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from corymb.settings import InvalidInput

TEMPORARY = ".new"


def write_file(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it; the name lasts once its folder is synced."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
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
    """Make the names in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def explained(error: OSError, path: Path) -> OSError:
    """The error, in a line that says what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        line = f"The disk is full: {path} cannot be written. Nothing written before is lost; make room, then resume"
        return OSError(error.errno, line)
    return error


class Lines:
    """A file of JSON lines that only grows; each line is written at once."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0
        self._handle: int | None = None
        self._synced = 0

    def keep(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Begin with these lines, whatever else the file held."""
        text = [_line(row) for row in rows]
        write_file(self.path, b"".join(text))
        self.count = self._synced = len(text)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines."""
        if self._handle is None:
            self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for row in rows:
            try:
                _write_all(self._handle, _line(row))
            except OSError as error:
                raise explained(error, self.path) from None
            self.count += 1

    def sync(self) -> None:
        """Make the lines last."""
        if self._handle is not None and self._synced < self.count:
            count = self.count
            os.fsync(self._handle)
            self._synced = count

    def close(self) -> None:
        """No more lines."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, up to the first that is torn; none where there is no file."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


class Writer:
    """Writes in a thread of its own, one job at a time, while the next round is computed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="corymb-writer")
        self._job: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Begin a job once the last one is done; what went wrong with that one is raised here."""
        self.wait()
        self._job = self._pool.submit(job)

    def wait(self) -> None:
        """Until nothing is left to be written."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def close(self) -> None:
        """Wait and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()


class Lock:
    """A folder that one process at a time works on; the lock ends with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            import fcntl
        except ImportError:  # not a Unix: there is no lock that a killed process gives back
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._handle)
            raise InvalidInput(
                f"Another process is at work on {path.parent}: wait until it ends, or stop it."
            ) from None

    def release(self) -> None:
        """Let others work on the folder."""
        os.close(self._handle)
