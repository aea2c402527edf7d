"""A user's file of examples as a run takes them: the columns of a table by name, or the arrays of an npz file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from corymb.data.features import Array
from corymb.data.labels import from_text
from corymb.data.readers.archives import arrays_in
from corymb.data.readers.tables import TEST, numbers_in, read_columns
from corymb.runs.run import Run
from corymb.runs.settings import DataOptions
from corymb.settings import InvalidInput, require

KINDS = (".npz", ".csv", ".parquet")


class Examples(NamedTuple):
    """What a file holds."""

    x: Array
    y: Array | None
    """Labels, where the file has them."""
    client: Array | None
    """Whose each row is, where the run's data came with a column of clients and the file has it."""
    unused: tuple[str, ...] = ()
    """Columns that the run does not know."""


def read_examples(file: Path, run: Run, label: str | None = None) -> Examples:
    """The examples in a file; `label` names the column of labels, if it is not that of the run's own data."""
    require(file.is_file(), f"{file} is not a file: give an npz, csv or parquet file of examples.")
    kind, options = file.suffix.lower(), DataOptions.recorded(run.config)
    require(kind in KINDS, f"{file} is a file of an unknown kind: only npz, csv and parquet files can be read.")
    owner = options.client
    if kind == ".npz":
        arrays, target = arrays_in(file), label or "y"
        require("x" in arrays, f"{file} has no array 'x': it holds {', '.join(map(repr, arrays)) or 'nothing'}.")
        return Examples(arrays["x"], arrays.get(target), arrays.get(owner or "client"))
    columns, target = read_columns(file), label or options.label or "label"
    first = 2 if kind == ".csv" else 1  # as an editor counts
    known = run.schema.feature_names
    given = [name for name in columns if name in known or name not in (target, owner, TEST)]
    wanted = known or tuple(given)
    unused = tuple(name for name in given if name not in wanted)
    _check_columns(file, wanted, given, unused, run)
    table = [_finite(numbers_in(columns[name], file, name, first=first), file, name, first) for name in wanted]
    x = np.stack(table, 1).astype(np.float32)
    require(len(x) > 0, f"{file} has no rows.")
    y = columns.get(target)
    if y is not None and kind == ".csv":
        y = from_text(y.tolist(), lambda row: f"{file.name}, row {first + row}")
    return Examples(x, y, None if owner is None else columns.get(owner), unused)


def _check_columns(file: Path, wanted: Sequence[str], given: Sequence[str], unused: Sequence[str], run: Run) -> None:
    missing = [name for name in wanted if name not in given]
    if missing:
        adds = f" and adds {_listed(unused)}" if unused else ""
        raise InvalidInput(f"{file.name} lacks {_listed(missing)}{adds}: the run's columns are {_listed(wanted)}.")
    features = list(run.schema.features)
    require(
        features == [len(wanted)],
        f"{file.name} has {len(wanted)} columns of features ({_listed(wanted)}), the run's examples have the shape "
        f"{features}.",
    )


def _finite(values: Array, file: Path, name: str, first: int) -> Array:
    bad = np.flatnonzero(~np.isfinite(values))
    require(not len(bad), f"{file.name}, column {name!r}, row {first + int(bad[0]) if len(bad) else 0} is not finite.")
    return values


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
