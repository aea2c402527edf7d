"""The folder of a run in progress: lines of rounds and of the audit log, checkpoints, client memory.

The order of writing makes a kill at any time harmless: lines first, then client memory, then the parts of the
checkpoint, then its manifest by a rename; only then are old files removed. One process at a time may use a folder.
See docs/explanation/run-folder.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from corymb.core.snapshot import Snapshot
from corymb.runs.folder.chain import broken
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
from corymb.runs.folder.files import Lines, Lock, Writer, read_lines, sync_folder, write_file
from corymb.runs.folder.layout import (
    AUDIT,
    CHECKPOINTS,
    CONFIG,
    LOCK,
    MEMORY,
    OWN,
    RESULT,
    ROUNDS,
    TEMPORARY,
    check_free,
)
from corymb.runs.folder.memory_log import FolderJournal, files_of
from corymb.runs.folder.reader import read_environment
from corymb.runs.history import Round, plain, round_problem
from corymb.settings import InvalidInput

log = logging.getLogger(__name__)
Event = dict[str, Any]
"""A line of the audit log: clock, what (rejected, abandoned, repaired, refused) and details of the event."""


class Saved(NamedTuple):
    """The state of a run at its last usable checkpoint."""

    manifest: Manifest
    snapshot: Snapshot
    history: list[Round]
    audit: list[Event]


class Carried(NamedTuple):
    """A large tensor that the last checkpoint holds: if it is carried on unchanged, it is not hashed again."""

    tensor: Tensor
    version: int
    """How often the tensor had been changed in place."""
    sha: str

    @staticmethod
    def of(tensor: Tensor, sha: str) -> Carried:
        """A tensor as it is now."""
        return Carried(tensor, tensor._version, sha)

    def holds(self, tensor: Tensor | None) -> bool:
        """Whether this is the same tensor, unchanged.

        Torch counts its own changes only. Memory that NumPy shares cannot be resized: that is how to tell.
        """
        same = tensor is self.tensor and tensor._version == self.version
        return same and self.tensor.untyped_storage().resizable()


class CheckpointInfo(NamedTuple):
    """The contents of a checkpoint besides the snapshot."""

    ledger: dict[str, int]
    engine: dict[str, Any]
    seconds: float
    score: float | None
    versions: dict[str, list[int]]


class RunStore:
    """The folder of a run in progress. Nothing is written before `create` or `reopen`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / CHECKPOINTS
        self.journal = FolderJournal(folder / MEMORY)
        self.rounds, self.audit = Lines(folder / ROUNDS), Lines(folder / AUDIT, chain=True)
        self.manifests: dict[int, Manifest] = {}
        self.run = ""
        self._sound = set[str]()  # hashes of parts that this process has written or verified
        self._carried: dict[str, Carried] = {}
        self._writer: Writer | None = None
        self._lock: Lock | None = None

    # ---- start and end

    def create(self, files: Mapping[str, bytes], run: str) -> None:
        """Create the folder; the last of the files marks it as a run."""
        check_free(self.folder)
        self._prepare()
        self.run = run
        for lines in (self.rounds, self.audit):
            lines.keep([])
        for name, data in files.items():
            write_file(self.folder / name, data)
        sync_folder(self.folder)

    def reopen(self) -> Saved | None:
        """Reopen the run in the folder at its last usable checkpoint; None if it has no checkpoint yet."""
        self.run = read_environment(self.folder)["run"]
        self._prepare()
        self._remove_temporary()
        audit = read_lines(self.folder / AUDIT)
        history = list(takewhile(lambda row: not round_problem(row), read_lines(self.folder / ROUNDS)))
        clocks, refusals = clocks_in(self.checkpoints), list[Event]()
        if (line := broken(audit)) is not None:  # recorded in the log itself, where a new chain starts here
            log.warning("line %d of %s is not linked to the previous line: it was changed", line, self.folder / AUDIT)
            refusals.append({"clock": 0, "what": "changed", "reason": f"line {line} of this log was changed"})
        if not clocks and (self.folder / RESULT).exists():
            raise InvalidInput(
                f"{self.folder} was saved without checkpoints: use fit(..., start=Run.load(...).snapshot)."
            )
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
            raise InvalidInput(f"{self.folder} has no usable checkpoint: start over in another folder.")
        self._sound = {sha for manifest in self.manifests.values() for sha in manifest.parts.values()}
        self.journal.chains = {clock: manifest.memory for clock, manifest in self.manifests.items()}
        self.rounds.keep(saved.history if saved else [])
        self.audit.keep(saved.audit if saved else [])
        self.audit.append(refusals)
        return saved

    def replan(self, config: bytes) -> None:
        """Reopen a finished run that is to be extended, and write its new settings."""
        (self.folder / RESULT).unlink(missing_ok=True)  # first: a kill in between then only resumes to the old end
        (self.folder / OWN).unlink(missing_ok=True)
        sync_folder(self.folder)
        write_file(self.folder / CONFIG, config)
        sync_folder(self.folder)

    def finish(self, files: Mapping[str, bytes]) -> None:
        """Write the final files of the run."""
        self._writing().wait()
        for name, data in files.items():
            write_file(self.folder / name, data)
        sync_folder(self.folder)

    def close(self) -> None:
        """Wait for pending writes and release the folder."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self.rounds.close()
            self.audit.close()
            if self._lock is not None:
                self._lock.release()
            self._writer = self._lock = None

    def _prepare(self) -> None:
        for folder in (self.folder, self.checkpoints, self.journal.folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.folder / LOCK)
        self._writer = Writer()

    def _writing(self) -> Writer:
        assert self._writer is not None, "create or reopen the store first"
        return self._writer

    def _remove_temporary(self) -> None:
        for folder in (self.folder, self.checkpoints, self.journal.folder):
            for path in folder.glob(f"*{TEMPORARY}"):
                path.unlink()

    def _set_aside(self, clock: int, why: str) -> Event:
        path = manifest_path(self.checkpoints, clock)
        log.warning("checkpoint %d of %s cannot be used: %s; trying the previous one", clock, self.folder, why)
        path.replace(path.with_name(path.name + ".refused"))
        return {"clock": clock, "what": "refused", "reason": why}

    # ---- round by round

    def write_round(self, row: Round, events: Iterable[Event]) -> None:
        """Append a round's record and its audit events, once the previous round is saved."""
        self._writing().wait()
        self.audit.append(plain(list(events)))
        self.rounds.append([plain(row)])

    @property
    def kept(self) -> set[int]:
        """The clocks of the retained checkpoints."""
        return set(self.manifests)

    def checkpoint(self, snapshot: Snapshot, info: CheckpointInfo) -> None:
        """Save a snapshot whose client memory is committed; it is written in the background during the next round."""
        self._writing().wait()
        carry = {f"carry/{name}": tensor for name, tensor in snapshot.carry.items()}
        same = {name: one.sha for name, one in self._carried.items() if one.holds(carry.get(name))}
        known = {name: sha for name, sha in same.items() if sha in self._sound}
        pieces = {name: (digest(data), data) for name, data in take_apart(snapshot, known).items()}
        parts = {**known, **{name: sha for name, (sha, _) in pieces.items()}}
        self._carried = {
            name: Carried.of(tensor, parts[name])
            for name, tensor in carry.items()
            if name in parts and not tensor.is_inference()
        }
        manifest = Manifest(
            run=self.run,
            clock=snapshot.clock,
            rounds=self.rounds.count,
            audit=self.audit.count,
            parts=parts,
            memory=self.journal.chains.get(snapshot.clock, []),
            **info._asdict(),
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
