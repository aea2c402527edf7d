"""Read a run folder: the parts that `Run.load` assembles, and the settings needed to resume."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from corymb.core.federation import Ledger
from corymb.core.names import ClientNames
from corymb.core.snapshot import Snapshot
from corymb.data.schema import DataSchema
from corymb.evaluate import ByClient
from corymb.messages import snapshot_from_bytes
from corymb.runs.assign import from_tree
from corymb.runs.folder.chain import LINK
from corymb.runs.folder.checkpoints import Refused, clocks_in, read_checkpoint
from corymb.runs.folder.files import read_lines
from corymb.runs.folder.layout import (
    AUDIT,
    CHECKPOINTS,
    CLIENTS,
    CONFIG,
    ENVIRONMENT,
    FORMAT,
    LOSSES,
    OWN,
    RESULT,
    ROUNDS,
    SNAPSHOT,
    STANDARD,
    check_plain,
)
from corymb.runs.history import ENDED, Round, is_number, round_problem
from corymb.runs.serving import OwnModels
from corymb.runs.standardise.objective import Standard
from corymb.settings import InvalidInput, expanded, first_line, require
from corymb.trees import Params
from corymb.wire import WireError, unpack

KILLED = "killed"
"""The reason given for a run that stopped without recording one."""
Parts = dict[str, Any]
"""The fields of a `Run` by name, except its objective."""


def read_run(folder: str | Path) -> Parts:
    """Read the parts of the run in a folder; for a killed run, as of its last checkpoint."""
    place = expanded(folder)
    require(place.is_dir(), f"{place} is not a folder: give the folder of a run.")
    _check_one(place)
    check_plain(place)
    try:
        if not (place / RESULT).exists() and (place / CONFIG).exists():
            return _unfinished(place)
        return _finished(place)
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        IndexError,
        RecursionError,
    ) as error:
        if isinstance(error, InvalidInput):
            raise
        kind, line = type(error).__name__, first_line(error)
        why = kind if line == kind else f"{kind}: {line}"
        raise InvalidInput(f"{place} cannot be read as a run: {why}.") from None


def _check_one(place: Path) -> None:
    """Reject a folder of runs, such as `--seeds` writes, or without a run, if a single run is expected."""
    if any((place / name).exists() for name in (CONFIG, RESULT)):
        return
    within = sorted(path.parent for path in place.glob(f"*/{CONFIG}"))
    if within:
        raise InvalidInput(
            f"{place} is not a run, but holds {len(within)} runs: give one of them, such as {within[0]}."
        )
    raise InvalidInput(f"{place} is not a run: it has no {CONFIG}. Start one with corymb run ... --out {place}.")


def is_finished(folder: str | Path) -> bool:
    """Whether the run in a folder has finished."""
    try:
        result = json.loads((Path(folder) / RESULT).read_text(encoding="utf-8"))
        return result["about"]["stopped"] in ENDED
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _finished(place: Path) -> Parts:
    result = json.loads((place / RESULT).read_text(encoding="utf-8"))
    about, initial, losses = result["about"], _initial_parts(place), unpack((place / LOSSES).read_bytes())
    metrics, snapshot = _measured(result["metrics"]), snapshot_from_bytes((place / SNAPSHOT).read_bytes())
    history = _whole_history(place, len(initial["names"]))
    _check_labels(snapshot, len(initial["names"]))
    if history:  # the last round was not known when its line was written: its metrics are in result.json
        history[-1].setdefault("metrics", {name: value for name, value in metrics.items() if name != "oracle_error"})
        history[-1].setdefault("not_scored", result.get("not_scored", []))
    return {
        **initial,
        "config": _current(result["config"]),
        "snapshot": snapshot,
        "history": history,
        "metrics": metrics,
        "not_scored": tuple(result.get("not_scored", ())),  # not recorded by earlier versions
        "ledger": Ledger(
            **result["ledger"],
            asked=about["asked"],
            replied=about["replied"],
            rejected=result["rejected"],
            abandoned=about["abandoned"],
        ),
        "points": tuple(result.get("points", ())),
        "seconds": result["seconds"],
        "stopped": about["stopped"],
        "losses": losses["losses"],
        "scores": losses["scores"],
        "by_client": {name: ByClient(*scores) for name, scores in losses.get("by_client", {}).items()},
        "calibration": from_tree(losses["calibration"]),
    }


def _unfinished(place: Path) -> Parts:
    parts = _initial_parts(place)
    history = rounds_of(place, len(parts["names"]))
    run = parts["environment"].get("run", "")
    for clock in clocks_in(place / CHECKPOINTS):
        try:
            manifest, snapshot = read_checkpoint(place / CHECKPOINTS, clock, run, len(history))
        except Refused:
            continue
        _check_labels(snapshot, len(parts["names"]))
        history = history[: manifest.rounds]
        evaluated = [row for row in history if "metrics" in row]
        last = evaluated[-1] if evaluated else {"metrics": {}}
        return {
            **parts,
            "snapshot": snapshot,
            "history": history,
            "metrics": _measured(last["metrics"]),
            "not_scored": tuple(last.get("not_scored", ())),
            "points": tuple(last.get("points", ())),
            "ledger": restored_ledger(manifest.ledger, read_lines(place / AUDIT)[: manifest.audit]),
            "seconds": manifest.seconds,
            "stopped": KILLED,
        }
    raise InvalidInput(f"{place} cannot be read as a run: the run was stopped before its first checkpoint.")


def _measured(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics as in memory: a null of JSON, which stands for a non-finite number, becomes NaN."""
    odd = next((name for name, value in metrics.items() if value is not None and not is_number(value)), None)
    if odd is not None:
        raise TypeError(f"the metric {odd!r} is not a number")
    return {name: float("nan") if value is None else value for name, value in metrics.items()}


def _check_labels(snapshot: Snapshot, clients: int) -> None:
    labels = snapshot.labels
    if len(labels) != clients:
        raise ValueError(f"{CLIENTS} names {clients} clients, but the snapshot has labels for {len(labels)}")
    if clients and not -1 <= int(labels.min()) <= int(labels.max()) < snapshot.k:
        raise ValueError(f"the snapshot has {snapshot.k} models, but labels outside their range")


def _initial_parts(place: Path) -> Parts:
    clients = json.loads((place / CLIENTS).read_text(encoding="utf-8"))
    if not all(isinstance(name, str) for name in clients["names"]) or len(set(clients["names"])) < len(
        clients["names"]
    ):
        raise TypeError(f"{CLIENTS} has a client without a name, or the same name twice")
    return {
        "names": ClientNames.of(clients["names"]),
        "config": _current(tomllib.loads((place / CONFIG).read_text(encoding="utf-8"))),
        "schema": DataSchema.read(clients["schema"] if "schema" in clients else clients["kind"]),  # format 1: kind
        "standard": read_standard(place),
        "folder": place,
        "environment": _environment(place),
    }


def _environment(place: Path) -> dict[str, Any]:
    found = json.loads((place / ENVIRONMENT).read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not isinstance(found.get("run"), str):
        raise TypeError(f"{ENVIRONMENT} has no run id")
    return found


def _current(config: dict[str, Any]) -> dict[str, Any]:
    """Convert a run's config to the current format. Format 1 named the client function that serves clients."""
    record = config["record"]
    if ":" not in record["served"]:
        return config
    served = "assigned" if record["served"].endswith(":serve_assigned") else "own"
    return {**config, "record": {**record, "served": served}}


def _whole_history(place: Path, clients: int) -> list[Round]:
    """The rounds of a finished run, in which an incomplete line is an error."""
    rows = rounds_of(place, clients)
    if len((place / ROUNDS).read_bytes().splitlines()) > len(rows):
        raise WireError(f"line {len(rows) + 1} of {ROUNDS} is not JSON")
    return rows


def rounds_of(place: Path, clients: int) -> list[Round]:
    """The rounds in a folder, each checked to be a valid record for this many clients."""
    rows = read_lines(place / ROUNDS)
    for number, row in enumerate(rows, 1):
        if problem := round_problem(row, clients):
            raise TypeError(f"line {number} of {ROUNDS} is not a valid round: {problem}")
    return rows


def restored_ledger(counts: Mapping[str, int], audit: Sequence[Mapping[str, Any]]) -> Ledger:
    """The ledger as of a checkpoint, from the checkpoint's counts and the audit log."""

    def events(what: str) -> list[dict[str, Any]]:
        own = ("what", LINK)
        return [{k: v for k, v in event.items() if k not in own} for event in audit if event["what"] == what]

    return Ledger(**counts, rejected=events("rejected"), abandoned=events("abandoned"))


def read_standard(folder: Path) -> Standard | None:
    """The standardisation of the run in a folder; None if its features were not standardised."""
    path = folder / STANDARD
    if not path.exists():
        return None
    rows = unpack(path.read_bytes())
    if not isinstance(rows, tuple) or not 4 <= len(rows) <= len(Standard._fields):  # earlier versions had no limits
        raise WireError(f"{path.name} does not hold means and scales")
    return Standard(*rows)


def read_own(folder: Path, models: Params, clients: int) -> OwnModels | None:
    """The clients' own models, which have the form of the run's; None if they are not in the folder."""
    path = folder / OWN
    if not path.is_file() or not (folder / RESULT).exists():  # of a run that was continued and killed since
        return None
    try:
        own = OwnModels(**unpack(path.read_bytes()))
        rows = int(own.known.sum())
        lead = (rows,) if own.weights is None else (rows, own.weights.shape[1])
        forms = {name: tuple(value.shape) for name, value in own.models.items()}
        good = own.known.shape == (clients,) and own.known.dtype == torch.bool
        good = good and forms == {name: (*lead, *value.shape[1:]) for name, value in models.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} cannot be read: {first_line(error)}.") from None
    require(good, f"{path} does not hold a model for each of the run's clients.")
    return own


# ---- for resuming


def read_config(folder: Path) -> dict[str, Any]:
    """The settings that the run in a folder was started with."""
    require(folder.is_dir(), f"{folder} is not a folder: give the folder of a run.")
    path = folder / CONFIG
    _check_one(folder)
    check_plain(folder)
    require(path.exists(), f"{folder} cannot be resumed: it has no {CONFIG}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read as TOML: {first_line(error)}") from None


def read_clients(folder: Path) -> tuple[str, ...]:
    """The names of the clients of the run in a folder."""
    try:
        names = json.loads((folder / CLIENTS).read_text(encoding="utf-8"))["names"]
    except (OSError, ValueError, KeyError, TypeError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"{folder} cannot be resumed: its {CLIENTS} cannot be read.")
    return tuple(names)


def read_environment(folder: Path) -> dict[str, Any]:
    """The environment in which the run in a folder was started; rejects a run that this version cannot resume."""
    try:
        environment = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        environment = None
    if not isinstance(environment, Mapping) or "run" not in environment:
        raise InvalidInput(f"{folder} cannot be resumed: its {ENVIRONMENT} cannot be read.")
    written = environment.get("format", 1)
    require(
        written == FORMAT,
        f"{folder} was written by another version of Corymb (run folder format {written}, this version resumes "
        f"{FORMAT}): resume it with that version, or start over with corymb run --config {folder / CONFIG}.",
    )
    return dict(environment)
