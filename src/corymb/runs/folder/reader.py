"""A run in a folder: TOML, JSON and safetensors, nothing that is run when it is read.

config.toml            what was run; `corymb run --config` takes it
clients.json           the clients' names, and what their data are like
environment.json       versions, git commit, hardware, command line
rounds.jsonl           a line for each round
audit.jsonl            rejected replies, abandoned rounds, repairs, refused checkpoints
checkpoints/, memory/  what going on needs: see `corymb.runs.folder.writer`
result.json            labels, metrics, ledger, as the command line prints them
snapshot.safetensors   models, labels and all else that going on from there needs
losses.safetensors     every client's loss of every model and test score, and how large losses of genuine clients are
standard.safetensors   means and scales of the features, where they were standardised
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corymb.core.federation import Ledger
from corymb.data.schema import DataSchema
from corymb.runs.assign import from_tree, to_tree
from corymb.runs.folder.files import read_lines
from corymb.runs.history import Round, plain
from corymb.runs.learners import MODELS, learner_for
from corymb.runs.standardise import Standard
from corymb.settings import InvalidInput, require
from corymb.wire import WireError, pack, snapshot_from_bytes, snapshot_to_bytes, unpack

if TYPE_CHECKING:
    from corymb.runs.run import Run

CONFIG, RESULT, ROUNDS, AUDIT = "config.toml", "result.json", "rounds.jsonl", "audit.jsonl"
SNAPSHOT, STANDARD, LOSSES = "snapshot.safetensors", "standard.safetensors", "losses.safetensors"
ENVIRONMENT, CLIENTS, LOCK = "environment.json", "clients.json", "lock"
CHECKPOINTS, MEMORY = "checkpoints", "memory"
BEGINNINGS = {ENVIRONMENT, CLIENTS, STANDARD, CONFIG, LOCK, CHECKPOINTS, MEMORY, ROUNDS, AUDIT}
"""What may be in a folder in which no run was begun."""
KILLED = "killed"
"""Why a run stopped that could not say so."""


def check_free(folder: str | os.PathLike[str]) -> Path:
    """The folder, if a run may be written there: it is new, or there is nothing in it.

    What a run that was killed before its beginning left there does not count.
    """
    place = Path(folder).expanduser()
    require(not place.exists() or place.is_dir(), f"{place} is a file: give a folder that is new or empty.")
    rest = {path.name.removesuffix(".new") for path in place.iterdir()} if place.exists() else set()
    free = not (place / CONFIG).exists() and (not rest or (LOCK in rest and rest <= BEGINNINGS))
    require(free, f"{place} is not empty: a run is never overwritten; give a folder that is new or empty.")
    return place


def new_folder(parent: str | Path, name: str) -> Path:
    """Make `parent/name-N` with the first N that is free; no other process gets the same."""
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


def write(run: Run, folder: str | Path) -> Path:
    """Write a run into a new or empty folder."""
    place = check_free(folder)
    place.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps(plain(row)) + "\n" for row in run.history).encode()
    beginning = initial_files(run.config, run.environment, run.names, run.kind, run.standard)
    for name, data in {ROUNDS: rows, **beginning, **final_files(run)}.items():
        (place / name).write_bytes(data)
    return place


def initial_files(
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
    names: Sequence[str],
    kind: DataSchema,
    standard: Standard | None,
) -> dict[str, bytes]:
    """The files that a run folder has from the start; the last one says that there is a run."""
    return {
        ENVIRONMENT: json.dumps(plain(environment), indent=1).encode(),
        CLIENTS: json.dumps({"names": list(names), "kind": kind.describe()}).encode(),
        **({} if standard is None else {STANDARD: pack(tuple(standard))}),
        CONFIG: _toml(config),
    }


def final_files(run: Run) -> dict[str, bytes]:
    """The files that a run folder has when the run has ended; the last one says that it has."""
    counts = {"asked": run.ledger.asked, "replied": run.ledger.replied, "abandoned": run.ledger.abandoned}
    about = {"stopped": run.stopped, **counts}
    return {
        CONFIG: _toml(run.config),
        SNAPSHOT: snapshot_to_bytes(run.snapshot),
        LOSSES: pack({"losses": run.losses, "scores": run.scores, "calibration": to_tree(run.calibration)}),
        RESULT: json.dumps({**run.to_dict(), "about": about}, indent=1).encode(),
    }


def _toml(config: Mapping[str, Any]) -> bytes:
    import tomli_w

    return tomli_w.dumps(_without_none(config)).encode()


def read(folder: str | Path) -> Run:
    """The run in a folder; of one that was killed, what it had saved."""
    place = Path(folder).expanduser()
    require(place.is_dir(), f"{place} is not a folder: give the folder of a run.")
    try:
        if not (place / RESULT).exists() and (place / CONFIG).exists():
            return _unfinished(place)
        return _finished(place)
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{place} cannot be read as a run: {_line(error)}.") from None


def is_finished(folder: str | Path) -> bool:
    """Whether the run in a folder came to its end."""
    try:
        result = json.loads((Path(folder) / RESULT).read_text(encoding="utf-8"))
        return not result["about"]["stopped"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _finished(place: Path) -> Run:
    from corymb.runs.run import Run

    result = json.loads((place / RESULT).read_text(encoding="utf-8"))
    about, history, losses = result["about"], _whole_history(place), unpack((place / LOSSES).read_bytes())
    metrics = {name: float("nan") if value is None else value for name, value in result["metrics"].items()}
    if history:  # the last round is evaluated when it turns out to be the last
        history[-1].setdefault("metrics", {name: value for name, value in metrics.items() if name != "oracle_error"})
    return Run(
        snapshot=snapshot_from_bytes((place / SNAPSHOT).read_bytes()),
        history=history,
        metrics=metrics,
        ledger=Ledger(
            **result["ledger"],
            asked=about["asked"],
            replied=about["replied"],
            rejected=result["rejected"],
            abandoned=about["abandoned"],
        ),
        seconds=result["seconds"],
        stopped=about["stopped"],
        losses=losses["losses"],
        scores=losses["scores"],
        calibration=from_tree(losses["calibration"]),
        **{**_known_from_the_start(place), "config": result["config"]},
    )


def _unfinished(place: Path) -> Run:
    from corymb.runs.folder.checkpoints import Refused, clocks_in, read_checkpoint
    from corymb.runs.run import Run

    known, history = _known_from_the_start(place), read_lines(place / ROUNDS)
    for clock in clocks_in(place / CHECKPOINTS):
        try:
            manifest, snapshot = read_checkpoint(
                place / CHECKPOINTS, clock, known["environment"].get("run", ""), len(history)
            )
        except Refused:
            continue
        history = history[: manifest.rounds]
        evaluated = [row["metrics"] for row in history if "metrics" in row]
        return Run(
            snapshot=snapshot,
            history=history,
            metrics=evaluated[-1] if evaluated else {},
            ledger=restored_ledger(manifest.ledger, read_lines(place / AUDIT)[: manifest.audit]),
            seconds=manifest.seconds,
            stopped=KILLED,
            **known,
        )
    raise InvalidInput(f"{place} cannot be read as a run: it was stopped before its first checkpoint.")


def _known_from_the_start(place: Path) -> dict[str, Any]:
    config = tomllib.loads((place / CONFIG).read_text(encoding="utf-8"))
    clients = json.loads((place / CLIENTS).read_text(encoding="utf-8"))
    kind = DataSchema.read(clients["kind"])
    return {
        "names": tuple(clients["names"]),
        "config": config,
        "kind": kind,
        # Only the library's own models are made again: a name in a file must not decide which code runs.
        "objective": learner_for(config["model"], kind).objective if config["model"] in MODELS else None,
        "standard": _read_standard(place / STANDARD),
        "folder": place,
        "environment": json.loads((place / ENVIRONMENT).read_text(encoding="utf-8")),
    }


def _whole_history(place: Path) -> list[Round]:
    """The rounds of a run that has ended, which has no torn line."""
    rows = read_lines(place / ROUNDS)
    if len((place / ROUNDS).read_bytes().splitlines()) > len(rows):
        raise WireError(f"line {len(rows) + 1} of {ROUNDS} is not JSON")
    return rows


def restored_ledger(counts: Mapping[str, int], audit: Sequence[Mapping[str, Any]]) -> Ledger:
    """The ledger that a checkpoint's counts and the audit log tell of."""

    def told(what: str) -> list[dict[str, Any]]:
        return [{k: v for k, v in event.items() if k != "what"} for event in audit if event["what"] == what]

    return Ledger(**counts, rejected=told("rejected"), abandoned=told("abandoned"))


def _read_standard(path: Path) -> Standard | None:
    if not path.exists():
        return None
    rows = unpack(path.read_bytes())
    if not isinstance(rows, tuple) or len(rows) != len(Standard._fields):
        raise WireError(f"{path.name} is not what it should be")
    return Standard(*rows)


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null: what is None is left out."""
    return {
        name: _without_none(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if value is not None
    }


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
