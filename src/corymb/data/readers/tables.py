"""Users' own tables: csv and parquet files with a label column and numbers, read straight into arrays."""

from __future__ import annotations

import csv
import importlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corymb.data.features import Array
from corymb.data.labels import is_number
from corymb.data.readers.contents import FileContents, as_mask
from corymb.settings import InvalidInput, require

TEST = "test"


class _Layout(NamedTuple):
    """Which of a table's columns are what."""

    label: str | None
    client: str | None
    test: str | None
    features: tuple[str, ...]


def read_table(
    path: Path, label: str, client: str | None, like: Sequence[str] = (), *, labelled: bool = True
) -> FileContents:
    """One table: a label column, perhaps `client` and `test` columns, and features in all the others.

    Features come in the order of `like`, where the table has exactly those. Unless it must be `labelled`, a table may
    do without the label column.
    """
    read = _read_csv if path.suffix.lower() == ".csv" else _read_parquet
    contents = read(path, label, client, like, labelled)
    require(len(contents.x) > 0, f"{path.name} has no rows: give every client data, or remove the file.")
    return contents


def _layout(
    columns: Sequence[str], path: Path, label: str, client: str | None, like: Sequence[str], labelled: bool
) -> _Layout:
    for name in [*([label] if labelled else []), *([] if client is None else [client])]:
        require(
            name in columns, f"{path.name} has no column {name!r}: its columns are {', '.join(map(repr, columns))}."
        )
    features = tuple(name for name in columns if name not in (label, client, TEST))
    require(len(features) > 0, f"{path.name} has no columns of features beside {label!r}: add some.")
    ordered = tuple(like) if set(like) == set(features) else features
    return _Layout(label if label in columns else None, client, TEST if TEST in columns else None, ordered)


def _read_csv(path: Path, label: str, client: str | None, like: Sequence[str], labelled: bool) -> FileContents:
    """Row by row: numbers go into one flat buffer, so that no cell is kept as text once it is read."""
    rows = _csv_rows(path)
    names = _header(rows, path)
    layout = _layout(names, path, label, client, like, labelled)
    features = [(name, names.index(name)) for name in layout.features]
    kept = {name: names.index(name) for name in (layout.label, layout.client, layout.test) if name is not None}
    texts: dict[str, list[str]] = {name: [] for name in kept}
    numbers = array("f")
    for line, row in enumerate(rows, 2):  # the header is line 1
        for name, place in features:
            try:
                numbers.append(float(row[place]))
            except ValueError:
                raise _not_a_number(path, name, line, row[place]) from None
        for name, place in kept.items():
            texts[name].append(row[place])
    return FileContents(
        path=path,
        x=np.frombuffer(numbers, dtype=np.float32).reshape(-1, len(features)),
        y=None if layout.label is None else np.asarray(texts[layout.label]),
        client=None if layout.client is None else np.asarray(texts[layout.client]),
        test=None if layout.test is None else as_mask(np.asarray(texts[layout.test]), path, first=2),
        feature_names=layout.features,
        first=2,
    )


def _header(rows: Iterator[list[str]], path: Path) -> list[str]:
    header = next(rows, [])
    require(len(header) > 0, f"{path.name} is empty: its first line must name the columns.")
    names = [name.strip() for name in header]
    for name in names:
        require(names.count(name) == 1, f"{path.name} has two columns called {name!r}: rename one.")
    return names


def _csv_rows(path: Path) -> Iterator[list[str]]:
    """The header and the rows, each as wide as the header; blank lines at the end do not count."""
    width, blank = 0, None
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for line, row in enumerate(csv.reader(file), 1):
                width = len(row) if line == 1 else width
                if not row and line > 1:
                    blank = blank or line
                    continue
                short = line if len(row) != width else blank
                if short is not None:
                    cells = len(row) if short == line else 0
                    raise InvalidInput(
                        f"{path.name}, row {short} has {cells} cells where the header has {width}: correct the row."
                    )
                yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path.name} cannot be read as csv ({error}): save it as UTF-8 text with commas.") from None


def _not_a_number(path: Path, name: str, row: int, value: object) -> InvalidInput:
    what = "is empty" if value == "" else f"is {str(value)!r}"
    return InvalidInput(
        f"{path.name}, column {name!r}, row {row} {what}: features must be numbers; fill it in, encode it as a "
        "number, or drop the column."
    )


def _read_parquet(path: Path, label: str, client: str | None, like: Sequence[str], labelled: bool) -> FileContents:
    """Column by column, as the file has them."""
    table = _parquet_table(path)
    layout = _layout(table.column_names, path, label, client, like, labelled)
    x = np.empty((table.num_rows, len(layout.features)), dtype=np.float32)
    for place, name in enumerate(layout.features):
        x[:, place] = numbers_in(_parquet_column(table, name, path), path, name, first=1)
    test = None if layout.test is None else as_mask(_parquet_column(table, layout.test, path), path, first=1)
    return FileContents(
        path=path,
        x=x,
        y=None if layout.label is None else _parquet_column(table, layout.label, path),
        client=None if layout.client is None else _parquet_column(table, layout.client, path),
        test=test,
        feature_names=layout.features,
        first=1,
    )


def _parquet_table(path: Path) -> Any:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InvalidInput(f"Reading {path.name} needs pyarrow: pip install 'corymb[tables]'.") from None
    try:
        return parquet.read_table(path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{path.name} cannot be read as parquet ({reason}): write it again.") from None


def read_columns(path: Path) -> dict[str, Array]:
    """All columns of a table, by name: as text from csv, as the file has them from parquet."""
    if path.suffix.lower() == ".csv":
        rows = _csv_rows(path)
        names = _header(rows, path)
        cells = list(rows)
        return {name: np.asarray([row[place] for row in cells], np.str_) for place, name in enumerate(names)}
    table = _parquet_table(path)
    return {name: _parquet_column(table, name, path) for name in table.column_names}


def numbers_in(values: Array, path: Path, name: str, *, first: int) -> Array:
    """A column of numbers, or the error that names the first cell that is not one."""
    if values.dtype.kind in "biuf":
        return values
    try:
        return values.astype(np.float64)
    except ValueError:
        row = next(row for row, value in enumerate(values) if not is_number(value))
        raise _not_a_number(path, name, first + row, values[row]) from None


def _parquet_column(table: Any, name: str, path: Path) -> Array:
    """A column as booleans, numbers or text."""
    column = table.column(name)
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
