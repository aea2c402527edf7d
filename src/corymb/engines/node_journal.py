"""Client memory on a node's disk: an entry for each call that may write, with a reference to its parent.

A server may go back: if a reply was lost, a round was abandoned, or a run is resumed. Entries therefore form a tree. To
go back is to continue from an earlier entry, which contains nothing that later calls wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from corymb.core.engine import START, Pages, Version
from corymb.wire import WireError, pack, unpack

INDEX = "journal.jsonl"
STALE = 64
"""Obsolete entries are removed from the index once there are this many."""


class Entry(NamedTuple):
    """The memory after a call: files with the pages that changed since `parent`, or with all pages (`whole`)."""

    parent: Version
    files: tuple[tuple[str, str], ...] = ()
    """Names and hashes; several if the call was run for one group of clients after another."""
    whole: bool = False


class NodeJournal:
    """The entries of one session. Without a folder there are entries, but no files: nothing can be read back."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.entries: dict[Version, Entry] = {}
        self.head = START
        if folder is not None and (folder / INDEX).exists():
            self._load(folder)

    def _load(self, folder: Path) -> None:
        lines = (folder / INDEX).read_text(encoding="utf-8").splitlines(keepends=True)
        for line in lines:
            if not line.endswith("\n"):  # the process was killed while writing its last line, before it replied
                write_file(folder / INDEX, "".join(lines[:-1]).encode())
                break
            version, parent, files, whole = json.loads(line)
            self.head = Version(*version)
            self.entries[self.head] = Entry(Version(*parent), tuple((name, sha) for name, sha in files), whole)

    def lineage(self, version: Version) -> Iterator[Version]:
        """The version and its ancestors, latest first."""
        while version > START and version in self.entries:
            yield version
            version = self.entries[version].parent

    def place_of(self, since: Version, head: Version) -> Version:
        """The version to return to for a server that accepted calls up to `since`; `head` is the current version.

        It is `since` itself if that is a call. A server that knows only its clock gives a version between calls; the
        result is then the last call before it in the lineage of `head`.
        """
        if since in self.entries:
            return since
        return next((version for version in self.lineage(head) if version <= since), START)

    def write(self, version: Version, parent: Version, pages: Pages, whole: bool) -> None:
        """Store the pages that a call wrote; they are on disk when this returns.

        A call that is its own parent adds to its entry: it was run for one group of clients after another.
        """
        before = self.entries[version] if parent == version else Entry(parent)
        files = () if whole else before.files
        if pages and self.folder is not None:
            data = pack(pages)
            sha = hashlib.sha256(data).hexdigest()
            name = f"{version.clock:08d}-{version.call:04d}-{sha[:8]}.safetensors"
            write_file(self.folder / name, data)
            files = (*files, (name, sha))
        entry = Entry(before.parent, files, whole or before.whole)
        if self.folder is not None:
            try:
                _append(self.folder / INDEX, _line(version, entry))
            except OSError:
                for name in {name for name, _ in files} - self._files(self.entries):
                    (self.folder / name).unlink(missing_ok=True)
                raise
        self.head, self.entries[version] = version, entry

    def read(self, version: Version) -> list[Pages]:
        """The pages that, applied in order, give client memory after the call `version`."""
        newest_first: list[Pages] = []
        for at in self.lineage(version):
            entry = self.entries[at]
            newest_first += [self._page(*file) for file in reversed(entry.files)]
            if entry.whole:
                break
        return newest_first[::-1]

    def _page(self, name: str, sha: str) -> Pages:
        assert self.folder is not None
        data = (self.folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != sha:
            raise WireError(
                f"Client memory in {name} was changed after it was written: restore it, or begin a new run."
            )
        pages: Pages = unpack(data)
        return pages

    def drop_before(self, clock: int) -> None:
        """Remove entries and files that are not needed to go back to `clock` or later, once there are `STALE`."""
        last = next((version for version in self.lineage(self.head) if version < Version(clock, 0)), START)
        wanted = {version for version in self.entries if version.clock >= clock} | {last}
        for version in list(wanted):
            for at in self.lineage(version):
                if at in wanted and at != version:
                    break
                wanted.add(at)
                if self.entries[at].whole:
                    break
        stale = [version for version in self.entries if version not in wanted]
        if len(stale) < STALE:
            return
        unused = self._files(stale) - self._files(wanted & self.entries.keys())
        self.entries = {version: entry for version, entry in self.entries.items() if version in wanted}
        if self.folder is not None:
            write_file(self.folder / INDEX, b"".join(_line(*entry) for entry in self.entries.items()))
            for name in unused:
                (self.folder / name).unlink(missing_ok=True)

    def _files(self, versions: Iterable[Version]) -> set[str]:
        return {name for version in versions for name, _ in self.entries[version].files}


def _line(version: Version, entry: Entry) -> bytes:
    return json.dumps([version, entry.parent, entry.files, entry.whole]).encode() + b"\n"


def _append(path: Path, line: bytes) -> None:
    """Append a line, or nothing if the disk is full: the next line must not follow half a line."""
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            _write_all(file, line)
        except OSError:
            file.truncate(end)
            raise


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically; if the disk is full, nothing of it stays."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb", buffering=0) as file:
            _write_all(file, data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]
    os.fsync(file.fileno())
