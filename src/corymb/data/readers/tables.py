"""Users' own tables: csv and parquet files with a label column and numbers."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from corymb.data.features import Array
from corymb.data.labels import is_number
from corymb.data.readers.part import Part, as_mask
from corymb.settings import InvalidInput, require

TEST = "test"
Columns = Mapping[str, Sequence[str] | Array]


def read_table(path: Path, label: str, client: str | None) -> Part:
    """One table: a label column, perhaps `client` and `test` columns, and all others features."""
    is_csv = path.suffix.lower() == ".csv"
    first = 2 if is_csv else 1  # a csv file's header is its first line
    columns = _read_csv(path) if is_csv else _read_parquet(path)
    for name in [label] if client is None else [label, client]:
        require(
            name in columns, f"{path.name} has no column {name!r}: its columns are {', '.join(map(repr, columns))}."
        )
    special = {label, client, TEST}
    names = tuple(name for name in columns if name not in special)
    require(len(names) > 0, f"{path.name} has no columns of features beside {label!r}: add some.")
    rows = len(columns[label])
    require(rows > 0, f"{path.name} has no rows: give every client data, or take the file away.")
    x = np.empty((rows, len(names)), dtype=np.float32)
    for place, name in enumerate(names):
        x[:, place] = _numbers(columns[name], path, name, first)
    test = columns.get(TEST)
    return Part(
        path=path,
        x=x,
        y=np.asarray(columns[label]),
        client=None if client is None else np.asarray(columns[client]),
        test=None if test is None else as_mask(np.asarray(test), path, first),
        feature_names=names,
        first=first,
    )


def _numbers(values: Sequence[str] | Array, path: Path, name: str, first: int) -> Array:
    """A column of numbers; the first cell that is none is named."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values
    try:
        return np.fromiter(map(float, values), dtype=np.float64, count=len(values))
    except (ValueError, TypeError):
        row = next(row for row, value in enumerate(values) if not is_number(value))
    what = "is empty" if values[row] == "" else f"is {str(values[row])!r}"
    raise InvalidInput(
        f"{path.name}, column {name!r}, row {first + row} {what}: features must be numbers; fill it in, encode it as a "
        "number, or drop the column."
    )


def _read_csv(path: Path) -> dict[str, Sequence[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path.name} cannot be read as csv ({error}): save it as UTF-8 text with commas.") from None
    while rows and not rows[-1]:
        rows.pop()  # blank lines at the end
    require(len(header) > 0, f"{path.name} is empty: wanted a first line with the names of the columns.")
    names = [name.strip() for name in header]
    for name in names:
        require(names.count(name) == 1, f"{path.name} has two columns called {name!r}: rename one.")
    for number, row in enumerate(rows):
        require(
            len(row) == len(names),
            f"{path.name}, row {number + 2} has {len(row)} cells where the header has {len(names)}: correct the row.",
        )
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _read_parquet(path: Path) -> dict[str, Array]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InvalidInput(f"Reading {path.name} needs pyarrow: pip install 'corymb[tables]'.") from None
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        line = str(error).splitlines()[0]
        raise InvalidInput(f"{path.name} cannot be read as parquet ({line}): write it again.") from None
    return {name: _parquet_column(table.column(name), name, path) for name in table.column_names}


def _parquet_column(column: Any, name: str, path: Path) -> Array:
    """A column as booleans, numbers or text."""
    if column.null_count:
        row = column.is_null().to_pylist().index(True) + 1
        raise InvalidInput(f"{path.name}, column {name!r}, row {row} is empty: fill it in or drop the row.")
    values = np.asarray(column.to_pylist() if str(column.type).startswith("dictionary") else column.to_numpy())
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        values = values.astype(np.str_)
    require(
        values.dtype.kind in "biufU",
        f"{path.name}, column {name!r} is of type {column.type}: wanted numbers, booleans or text; convert or drop it.",
    )
    return values
