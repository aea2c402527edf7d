"""The contents of a run folder's files, as bytes: those written at the start of a run, and those at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corymb.data.schema import DataSchema
from corymb.messages import snapshot_to_bytes
from corymb.runs.assign import to_tree
from corymb.runs.folder.files import json_line
from corymb.runs.folder.layout import (
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
    check_free,
)
from corymb.runs.history import plain
from corymb.runs.standardise.objective import Standard
from corymb.wire import pack

if TYPE_CHECKING:
    from corymb.runs.run import Run


def save_run(run: Run, folder: str | Path) -> Path:
    """Write a run into a new or empty folder."""
    place = check_free(folder)
    place.mkdir(parents=True, exist_ok=True)
    rows = b"".join(json_line(plain(row)) for row in run.history)
    start = initial_files(run.config, run.environment, run.names, run.schema, run.standard)
    for name, data in {ROUNDS: rows, **start, **final_files(run)}.items():
        (place / name).write_bytes(data)
    return place


def initial_files(
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
    names: Sequence[str],
    schema: DataSchema,
    standard: Standard | None,
) -> dict[str, bytes]:
    """The files written at the start of a run. config.toml comes last: it marks the folder as a run."""
    return {
        ENVIRONMENT: json.dumps(plain({**environment, "format": FORMAT}), indent=1).encode(),
        CLIENTS: json.dumps({"names": list(names), "schema": schema.describe()}).encode(),
        **({} if standard is None else {STANDARD: pack(tuple(standard))}),
        CONFIG: as_toml(config),
    }


def final_files(run: Run) -> dict[str, bytes]:
    """The files written at the end of a run. result.json comes last: it marks the run as ended."""
    counts = {"asked": run.ledger.asked, "replied": run.ledger.replied, "abandoned": run.ledger.abandoned}
    about, own = {"stopped": run.stopped, **counts}, run.own_models()
    return {
        CONFIG: as_toml(run.config),
        SNAPSHOT: snapshot_to_bytes(run.snapshot),
        LOSSES: pack(
            {
                "losses": run.losses,
                "scores": run.scores,
                "by_client": {name: tuple(scores) for name, scores in run.by_client.items()},
                "calibration": to_tree(run.calibration),
            }
        ),
        **({} if own is None else {OWN: pack(own._asdict())}),
        RESULT: json.dumps({**run.to_dict(), "about": about}, indent=1).encode(),
    }


def as_toml(config: Mapping[str, Any]) -> bytes:
    """The contents of config.toml."""
    import tomli_w

    return tomli_w.dumps(_without_none(config)).encode()


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings that are None, since TOML has no null."""
    return {
        name: _without_none(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if value is not None
    }
