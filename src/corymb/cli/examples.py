"""Read a user's file of examples for a run: the columns of a table by name, or the arrays of an npz file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from corymb.data.features import Array
from corymb.data.prepare.cells import Kind
from corymb.data.prepare.columns import ColumnPlan, Table
from corymb.data.prepare.pipeline import Preparation
from corymb.data.readers.archives import FEATURES, LABELS, arrays_in, names_of
from corymb.data.readers.contents import CLIENT, LABEL, TEST, Columns, ids_of
from corymb.data.readers.folder import KINDS, NPZ, SUFFIXES
from corymb.data.readers.tables import kind_of, read_table
from corymb.runs.history import counted
from corymb.runs.run import Run
from corymb.runs.settings import DataOptions
from corymb.settings import InvalidInput, printable, require


class Examples(NamedTuple):
    """The contents of a file of examples."""

    x: Array
    """Features, prepared as those of the run's clients were (from npz files: unchanged)."""
    y: Array | None
    """Labels; None if the file has none."""
    client: Array | None
    """The client of each row; None if the file does not name clients."""
    unused: tuple[str, ...] = ()
    """Columns that the run does not use."""
    left_out: tuple[int, ...] = ()
    """Rows of the file that were dropped: they lack a value, and the run's data dropped such rows."""


def read_examples(file: Path, run: Run, label: str | None = None, *, labelled: bool = False) -> Examples:
    """Read the examples in a file; `label` names the column of labels if it differs from that of the run's data.

    If the run's data dropped rows with missing values, so does this; with `labelled`, also rows without a label.
    """
    require(file.is_file(), f"{file} is not a file: give a file of examples ({KINDS}).")
    require(kind_of(file) in SUFFIXES, f"{file} is of an unknown type: only {KINDS} files can be read.")
    options = DataOptions.recorded(run.config)
    if kind_of(file) == NPZ:
        return _from_npz(file, run, options, label)
    target, owner = label or options.label or LABEL, options.client or CLIENT
    table = read_table(file, [owner])
    how = run.schema.preparation or Preparation("none")
    known = [plan.name for plan in how.columns] if run.schema.feature_names else []
    known = known or list(run.schema.feature_names)
    given = [name for name in table.cells if name in known or name not in (target, owner, TEST)]
    wanted = known or given
    unused = tuple(name for name in given if name not in wanted)
    plans = how.columns or tuple(ColumnPlan(name, "number") for name in wanted)
    _check_columns(file, wanted, given, unused, plans, run)
    cells = {plan.name: table.cells[name] for plan, name in zip(plans, wanted, strict=True)}
    y = table.cells.get(target)
    n = len(next(iter(cells.values())).kinds)
    require(n > 0, f"{file} has no rows.")
    rows = _complete(cells, plans, n) if options.missing == "drop" else np.arange(n)
    if labelled and y is not None and options.missing == "drop":
        rows = rows[y.kinds[rows] != Kind.MISSING]
    require(len(rows) > 0, f"Every row of {file} lacks a value that the run cannot fill in.")
    cells = {name: column.take(rows) for name, column in cells.items()} if len(rows) < n else cells
    x = how._replace(columns=plans).apply(cells, lambda row: table.place(int(rows[row]))).numpy()
    owners, left = table.ids.get(owner), np.setdiff1d(np.arange(n), rows)
    if len(left):
        print(f"corymb: {len(left)} of {n} rows lack a value and are left out: {_places(table, left)}", file=sys.stderr)
    return Examples(
        x,
        None if y is None else y.take(rows).as_objects(),
        None if owners is None else _as_in_run(owners[rows], run),
        unused,
        tuple(left.tolist()),
    )


def _places(table: Columns, rows: Array) -> str:
    """The location of the first few rows, such as `new.csv, rows 3, 8, ...`."""
    where = [table.place(int(row)).rpartition(" ") for row in rows[:5]]
    numbers = [number for _, _, number in where] + (["..."] if len(rows) > 5 else [])
    return f"{where[0][0]}{'s' * (len(rows) > 1)} {', '.join(numbers)}"


def _complete(cells: Table, plans: Sequence[ColumnPlan], n: int) -> Array:
    """The rows that lack no required value. A missing text is a category of its own, so it is not required."""
    wanted = [plan.name for plan in plans if plan.fill is None and plan.what != "category"]
    return np.flatnonzero(~sum((cells[name].kinds == Kind.MISSING for name in wanted), np.zeros(n, dtype=bool)))


def _from_npz(file: Path, run: Run, options: DataOptions, label: str | None) -> Examples:
    features, target, owner = options.features or FEATURES, label or options.label or LABELS, options.client or CLIENT
    arrays = arrays_in(file, {features, target, owner})
    held = ", ".join(map(repr, names_of(file))) or "nothing"
    require(features in arrays, f"{file} has no array {features!r}: it holds {held}.")
    ids = arrays.get(owner)
    return Examples(arrays[features], arrays.get(target), None if ids is None else _as_in_run(ids_of(ids, owner), run))


def _as_in_run(ids: Array, run: Run) -> Array:
    """Client names as the run has them, with unprintable characters escaped."""
    known, (names, place) = frozenset(run.names), np.unique(ids.astype(np.str_), return_inverse=True)
    return np.array([name if name in known else printable(name) for name in names.tolist()])[place]


def _check_columns(
    file: Path,
    wanted: Sequence[str],
    given: Sequence[str],
    unused: Sequence[str],
    plans: Sequence[ColumnPlan],
    run: Run,
) -> None:
    missing = [name for name in wanted if name not in given]
    if missing:
        extra = f" and has extra {_listed(unused)}" if unused else ""
        raise InvalidInput(
            f"{file.name} lacks columns {_listed(missing)}{extra}: the run's columns are {_listed(wanted)}."
        )
    features = list(run.schema.features)
    fits = len(wanted) == len(plans) and features == [sum(len(plan.features) for plan in plans)]
    require(
        fits,
        f"{file.name} has {counted(len(wanted), 'feature column')} ({_listed(wanted)}), "
        f"but the run's examples have shape {features}.",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
