"""A run in a folder: TOML, JSON and safetensors, nothing that is run when it is read.

config.toml            what was run; `corymb run --config` takes it
result.json            labels, metrics, ledger, as the command line prints them, and what the data were like
rounds.jsonl           a line for each round
snapshot.safetensors   models, labels and all else that going on from there needs
standard.safetensors   means and scales of the features, where they were standardised
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corymb.experiments.kind import Kind
from corymb.experiments.models import MODELS, learner_for
from corymb.experiments.standardise import Standard
from corymb.federation import Ledger
from corymb.settings import InvalidInput, require
from corymb.wire import WireError, pack, snapshot_from_bytes, snapshot_to_bytes, unpack

if TYPE_CHECKING:
    from corymb.experiments.run import Run

CONFIG, RESULT, ROUNDS = "config.toml", "result.json", "rounds.jsonl"
SNAPSHOT, STANDARD = "snapshot.safetensors", "standard.safetensors"


def check_free(folder: str | Path) -> Path:
    """The folder, if a run may be written there: it is new, or there is nothing in it."""
    place = Path(folder).expanduser()
    require(not place.exists() or place.is_dir(), f"{place} is a file: give a folder that is new or empty.")
    free = not place.exists() or next(place.iterdir(), None) is None
    require(free, f"{place} is not empty: a run is never overwritten; give a folder that is new or empty.")
    return place


def write(run: Run, folder: str | Path) -> Path:
    """Write a run into a new or empty folder."""
    import tomli_w

    from corymb.experiments.run import plain

    place = check_free(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / CONFIG).write_text(tomli_w.dumps(_without_none(run.config)), encoding="utf-8")
    (place / ROUNDS).write_text("".join(json.dumps(plain(row)) + "\n" for row in run.history), encoding="utf-8")
    (place / SNAPSHOT).write_bytes(snapshot_to_bytes(run.snapshot))
    if run.standard is not None:
        (place / STANDARD).write_bytes(pack(tuple(run.standard)))
    counts = {"asked": run.ledger.asked, "replied": run.ledger.replied}
    about = {"kind": run.kind.describe(), "stopped": run.stopped, **counts}
    (place / RESULT).write_text(json.dumps({**run.to_dict(), "about": about}, indent=1), encoding="utf-8")
    return place


def read(folder: str | Path) -> Run:
    """The run in a folder."""
    from corymb.experiments.run import Run

    place = Path(folder).expanduser()
    require(place.is_dir(), f"{place} is not a folder: give the folder of a run.")
    try:
        result = json.loads((place / RESULT).read_text(encoding="utf-8"))
        config = tomllib.loads((place / CONFIG).read_text(encoding="utf-8"))
        history = [json.loads(line) for line in (place / ROUNDS).read_text(encoding="utf-8").splitlines()]
        snapshot = snapshot_from_bytes((place / SNAPSHOT).read_bytes())
        about = result["about"]
        kind = Kind.read(about["kind"])
        ledger = Ledger(**result["ledger"], asked=about["asked"], replied=about["replied"], rejected=result["rejected"])
        return Run(
            snapshot=snapshot,
            names=tuple(result["labels"]),
            history=history,
            metrics={name: float("nan") if value is None else value for name, value in result["metrics"].items()},
            ledger=ledger,
            config=config,
            seconds=result["seconds"],
            kind=kind,
            # Only the library's own models are made again: a name in a file must not decide which code runs.
            objective=learner_for(config["model"], kind).objective if config["model"] in MODELS else None,
            standard=_read_standard(place / STANDARD),
            stopped=about["stopped"],
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{place} cannot be read as a run: {_line(error)}.") from None


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
