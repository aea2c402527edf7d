"""The names of the files of a run folder, and checks on where a new run may be written.

config.toml            what was run, for `corymb run --config`
clients.json           the clients' names and the schema of their data
environment.json       versions, git commit, hardware, command line, format of the folder
rounds.jsonl           one line per round
audit.jsonl            rejected replies, abandoned rounds, repairs, refused checkpoints
checkpoints/, memory/  what resuming needs: see `corymb.runs.folder.writer`
result.json            labels, metrics and ledger, as the command line prints them
snapshot.safetensors   the final snapshot: models, labels and everything needed to continue from it
losses.safetensors     each client's loss under each model, its test scores, and the calibration of `Run.assign`
own.safetensors        the clients' own models, if the server has none and the clients were in one process
actors/                client memory of a run on a local Ray cluster
standard.safetensors   means and scales of the features, if they were standardised

TOML, JSON and safetensors: reading a run folder never executes anything in it.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from corymb.settings import expanded, require

FORMAT = 2
"""Version of the folder's layout. Finished runs of every earlier format can be read; resuming needs the same format."""
CONFIG, RESULT, ROUNDS, AUDIT = "config.toml", "result.json", "rounds.jsonl", "audit.jsonl"
SNAPSHOT, STANDARD, LOSSES = "snapshot.safetensors", "standard.safetensors", "losses.safetensors"
OWN = "own.safetensors"
ENVIRONMENT, CLIENTS, LOCK = "environment.json", "clients.json", "lock"
CHECKPOINTS, MEMORY, ACTORS = "checkpoints", "memory", "actors"
TEMPORARY = ".new"
"""Suffix of a file that is still being written."""
LEFT_BY_A_CRASH = {ENVIRONMENT, CLIENTS, STANDARD, CONFIG, LOCK, CHECKPOINTS, MEMORY, ROUNDS, AUDIT}
"""Files that a run may leave behind if it ends before its first round does."""


def check_free(folder: str | os.PathLike[str]) -> Path:
    """Check that a folder is new or empty, so that a run may be written there; returns its path.

    Files of a run that ended before its first round did are ignored, as are those of actors, which start first.
    """
    place = expanded(folder)
    require(not place.exists() or place.is_dir(), f"{place} is a file: give a new or empty folder.")
    found = {path.name.removesuffix(TEMPORARY) for path in place.iterdir()} - {ACTORS} if place.exists() else set()
    free = not found or (LOCK in found and found <= LEFT_BY_A_CRASH and not _has_rounds(place))
    require(free, f"{place} is not empty, and runs are never overwritten: give a new or empty folder.")
    return place


def _has_rounds(place: Path) -> bool:
    """Whether a run folder has a round, or a checkpoint to resume from."""
    rounds, checkpoints = place / ROUNDS, place / CHECKPOINTS
    return (rounds.exists() and rounds.stat().st_size > 0) or (checkpoints.exists() and any(checkpoints.iterdir()))


def check_plain(place: Path) -> None:
    """Reject a run folder with pipes, which would block, or links to folders, in which files would be deleted."""
    inside = (path for name in (".", CHECKPOINTS, MEMORY) for path in (place / name).glob("*"))
    for path in inside:
        own = path.is_file() or (path.is_dir() and not path.is_symlink())
        require(own, f"{path} is not a regular file or folder: remove it from the run folder.")


def new_folder(parent: str | Path, name: str) -> Path:
    """Create `parent/name-N` with the first N that is free; safe against other processes doing the same."""
    parent = Path(parent)
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        place = parent / f"{name}-{number}"
        try:
            place.mkdir()
        except FileExistsError:
            continue
        return place
    raise AssertionError("unreachable")
