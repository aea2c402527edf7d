"""A run's folder while the run goes on: rounds and audit line by line, checkpoints, client memory.

The order of what is written makes a kill at any instant harmless: lines first, then client memory, then the parts of
the checkpoint, then its manifest by a rename; only after that what is no longer needed goes. One process at a time may
work on a folder. docs/explanation/run-folder.md tells more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from corymb.core.snapshot import Snapshot
from corymb.runs.folder.checkpoints import (
    Manifest,
    Refused,
    clocks_in,
    digest,
    manifest_path,
    part_path,
    read_checkpoint,
    take_apart,
    to_keep,
)
from corymb.runs.folder.files import TEMPORARY, Lines, Lock, Writer, read_lines, sync_folder, write_file
from corymb.runs.folder.memory_log import FolderJournal, files_of
from corymb.runs.folder.reader import (
    AUDIT,
    CHECKPOINTS,
    LOCK,
    MEMORY,
    RESULT,
    ROUNDS,
    check_free,
)
from corymb.runs.history import Round, plain
from corymb.runs.settings import read_environment
from corymb.settings import InvalidInput

log = logging.getLogger(__name__)
Event = dict[str, Any]
"""A line of the audit log: clock, what (rejected, abandoned, repaired, refused), and whatever there is to say."""


class Saved(NamedTuple):
    """Where a run stood when it was last saved."""

    manifest: Manifest
    snapshot: Snapshot
    history: list[Round]
    audit: list[Event]


class CheckpointInfo(NamedTuple):
    """What a checkpoint says beside the snapshot."""

    ledger: dict[str, int]
    engine: dict[str, Any]
    seconds: float
    score: float | None


class RunStore:
    """The folder of a run that goes on. Nothing is on disk before `begin`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / CHECKPOINTS
        self.journal = FolderJournal(folder / MEMORY)
        self.rounds, self.audit = Lines(folder / ROUNDS), Lines(folder / AUDIT)
        self.manifests: dict[int, Manifest] = {}
        self.run = ""
        self._sound = set[str]()  # parts that this process wrote or checked
        self._writer: Writer | None = None
        self._lock: Lock | None = None

    # ---- beginning and ending

    def begin(self, files: Mapping[str, bytes], run: str) -> None:
        """Make the folder; the last of the files says that there is a run."""
        check_free(self.folder)
        self._enter()
        self.run = run
        for lines in (self.rounds, self.audit):
            lines.keep([])
        for name, data in files.items():
            write_file(self.folder / name, data)
        sync_folder(self.folder)

    def reopen(self) -> Saved | None:
        """Go on with the run in the folder: its last checkpoint that can be used, None if it came to none."""
        self.run = read_environment(self.folder)["run"]
        self._enter()
        self._remove_temporary()
        history, audit = read_lines(self.folder / ROUNDS), read_lines(self.folder / AUDIT)
        clocks, refusals = clocks_in(self.checkpoints), list[Event]()
        if not clocks and (self.folder / RESULT).exists():
            raise InvalidInput(f"{self.folder} was saved without checkpoints: fit(..., start=Run.load(...).snapshot).")
        saved = None
        for clock in clocks:
            try:
                manifest, snapshot = read_checkpoint(self.checkpoints, clock, self.run, len(history))
            except Refused as problem:
                refusals.append(self._set_aside(clock, str(problem)))
                continue
            self.manifests[clock] = manifest
            saved = saved or Saved(manifest, snapshot, history[: manifest.rounds], audit[: manifest.audit])
        if clocks and saved is None:
            raise InvalidInput(f"{self.folder} has no checkpoint that can be used: begin again in another folder.")
        self._sound = {sha for manifest in self.manifests.values() for sha in manifest.parts.values()}
        self.journal.chains = {clock: manifest.memory for clock, manifest in self.manifests.items()}
        self.rounds.keep(saved.history if saved else [])
        self.audit.keep(saved.audit if saved else [])
        self.audit.append(refusals)
        return saved

    def finish(self, files: Mapping[str, bytes]) -> None:
        """Write what a run is in the end."""
        self._writing().wait()
        for name, data in files.items():
            write_file(self.folder / name, data)
        sync_folder(self.folder)

    def close(self) -> None:
        """Wait for what is being written, and let others work on the folder."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self.rounds.close()
            self.audit.close()
            if self._lock is not None:
                self._lock.release()
            self._writer = self._lock = None

    def _enter(self) -> None:
        for folder in (self.folder, self.checkpoints, self.journal.folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.folder / LOCK)
        self._writer = Writer()

    def _writing(self) -> Writer:
        assert self._writer is not None, "the store was not begun"
        return self._writer

    def _remove_temporary(self) -> None:
        for folder in (self.folder, self.checkpoints, self.journal.folder):
            for path in folder.glob(f"*{TEMPORARY}"):
                path.unlink()

    def _set_aside(self, clock: int, why: str) -> Event:
        path = manifest_path(self.checkpoints, clock)
        log.warning("checkpoint %d of %s is refused: %s; the one before is used", clock, self.folder, why)
        path.replace(path.with_name(path.name + ".refused"))
        return {"clock": clock, "what": "refused", "reason": why}

    # ---- round by round

    def write_round(self, row: Round, events: Iterable[Event]) -> None:
        """Add a round's line, and what there is to say of it to the audit log, once the round before is saved."""
        self._writing().wait()
        self.audit.append(plain(list(events)))
        self.rounds.append([plain(row)])

    @property
    def kept(self) -> set[int]:
        """The clocks that there are checkpoints of."""
        return set(self.manifests)

    def checkpoint(self, snapshot: Snapshot, facts: CheckpointInfo) -> None:
        """Save a snapshot whose client memory was committed; it is written while the next round is computed."""
        self._writing().wait()
        pieces = {name: (digest(data), data) for name, data in take_apart(snapshot).items()}
        manifest = Manifest(
            run=self.run,
            clock=snapshot.clock,
            rounds=self.rounds.count,
            audit=self.audit.count,
            parts={name: sha for name, (sha, _) in pieces.items()},
            memory=self.journal.chains.get(snapshot.clock, []),
            **facts._asdict(),
        )
        new = {sha: data for sha, data in pieces.values() if sha not in self._sound}
        files = [*self.journal.hand_over(), *((part_path(self.checkpoints, sha), data) for sha, data in new.items())]
        every = {**self.manifests, manifest.clock: manifest}
        self.manifests = {clock: every[clock] for clock in to_keep(every.values())}
        self._sound = {sha for one in self.manifests.values() for sha in one.parts.values()}
        self._writing().submit(partial(self._write, files, manifest))

    def _write(self, files: list[tuple[Path, bytes]], manifest: Manifest) -> None:
        for lines in (self.rounds, self.audit):
            lines.sync()
        for path, data in files:
            write_file(path, data)
        for folder in {path.parent for path, _ in files}:
            sync_folder(folder)
        write_file(manifest_path(self.checkpoints, manifest.clock), manifest.to_bytes())
        sync_folder(self.checkpoints)
        self._remove_old()

    def _remove_old(self) -> None:
        manifests = self.manifests
        for clock in clocks_in(self.checkpoints):
            if clock not in manifests:
                manifest_path(self.checkpoints, clock).unlink()
        parts = {part_path(self.checkpoints, sha).name for one in manifests.values() for sha in one.parts.values()}
        memory = files_of([one.memory for one in manifests.values()])
        for folder, wanted in ((self.checkpoints, parts), (self.journal.folder, memory)):
            for path in folder.glob("*.safetensors"):
                if path.name not in wanted:
                    path.unlink()
