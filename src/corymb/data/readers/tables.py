"""Users' own tables: csv (also with semicolons or tabs), jsonl, either packed by gzip, and parquet."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from corymb.data.features import Array
from corymb.data.prepare.cells import ColumnBuilder, as_column
from corymb.data.readers.contents import Columns, ids_of, tidy_ids
from corymb.data.readers.limits import Counted
from corymb.settings import InvalidInput, require

TEXT = (".csv", ".tsv", ".jsonl")
PACKED = ".gz"
TABLES = (*TEXT, *(f"{suffix}{PACKED}" for suffix in TEXT), ".parquet")
_DELIMITERS = ",;\t"


def kind_of(path: Path) -> str:
    """How a file's name ends, in small letters, with what it is packed by.

    >>> kind_of(Path("a.CSV.gz")), kind_of(Path("b.1.npz"))
    ('.csv.gz', '.npz')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [PACKED] else "".join(suffixes[-1:])


def stem_of(path: Path) -> str:
    """A file's name without its kind: the name of the client whose file it is."""
    return path.name[: len(path.name) - len(kind_of(path))]


def read_table(path: Path, clients: Sequence[str]) -> Columns:
    """All columns of a table; those of `clients` also as the text they are written in."""
    kind = kind_of(path).removesuffix(PACKED)
    if kind in (".csv", ".tsv"):
        return _read_csv(path, clients, "\t" if kind == ".tsv" else None)
    values = _read_parquet(path) if kind == ".parquet" else _read_jsonl(path)
    return typed_columns(values, clients, path.name, first=1)


def typed_columns(values: Mapping[str, Array], clients: Sequence[str], origin: str, first: int = 0) -> Columns:
    """Columns that have types already."""
    ids = {name: ids_of(values[name], name) for name in clients if name in values}
    problems, cells = [], {}
    for name, column in values.items():
        try:
            cells[name] = as_column(column, name)
        except InvalidInput as error:
            problems.append(str(error))
    require(not problems, f"{origin or 'The table'}: {' '.join(problems)}")
    return Columns(origin, cells, ids, first)


def _open(path: Path) -> IO[str]:
    opener: Any = gzip.open if path.suffix.lower() == PACKED else open
    counted = io.BufferedReader(Counted(opener(path, "rb"), path.name))
    return io.TextIOWrapper(counted, newline="", encoding="utf-8-sig")


# ---- csv


def _read_csv(path: Path, clients: Sequence[str], delimiter: str | None) -> Columns:
    """Row by row: numbers go into one flat buffer a column, so that no cell is kept as text once it is read."""
    try:
        with _open(path) as file:
            delimiter = delimiter or _delimiter(file)
            rows = _csv_rows(file, path, delimiter)
            names = _header(rows, path)
            builders = [ColumnBuilder(comma=delimiter == ";") for _ in names]
            kept = [(name, names.index(name), list[str]()) for name in clients if name in names]
            for row in rows:
                for builder, cell in zip(builders, row, strict=True):
                    builder.add(cell)
                for _, place, texts in kept:
                    texts.append(sys.intern(row[place]))  # a client's rows share one text
    except (UnicodeDecodeError, csv.Error, EOFError, OSError, zlib.error) as error:
        raise InvalidInput(f"{path.name} cannot be read as csv ({error}): save it as UTF-8 text with commas.") from None
    cells = {name: builder.column() for name, builder in zip(names, builders, strict=True)}
    return Columns(path.name, cells, {name: tidy_ids(texts) for name, _, texts in kept}, first=2)


def _delimiter(file: IO[str]) -> str:
    """What separates the names in the header: the one of comma, semicolon and tab that it has most of."""
    header = file.readline()
    file.seek(0)
    return max(_DELIMITERS, key=header.count)


def _header(rows: Iterator[list[str]], path: Path) -> list[str]:
    header = next(rows, [])
    require(len(header) > 0, f"{path.name} is empty: its first line must name the columns.")
    names = [name.strip() for name in header]
    _check_distinct(names, path.name)
    return names


def _check_distinct(names: Sequence[str], origin: str) -> None:
    for name, count in Counter(names).items():
        require(count == 1, f"{origin} has two columns called {name!r}: rename one.")


def _csv_rows(file: IO[str], path: Path, delimiter: str) -> Iterator[list[str]]:
    """The header and the rows, each as wide as the header; blank lines at the end do not count."""
    width, blank = 0, None
    for line, row in enumerate(csv.reader(file, delimiter=delimiter), 1):
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


# ---- jsonl and parquet


def _read_jsonl(path: Path) -> dict[str, Array]:
    """An object a line, its values by column; what a line lacks is missing there."""
    lists: dict[str, list[object]] = {}
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file):
                row = json.loads(line)
                require(
                    isinstance(row, dict), f'{path.name}, row {number + 1} is no object: wanted {{"column": value}}.'
                )
                for name in row:
                    lists.setdefault(name, [None] * number)
                for name, values in lists.items():
                    values.append(row.get(name))
    except (ValueError, EOFError, OSError, zlib.error, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path.name}, row {number + 1} cannot be read as JSON ({error}): write it again.") from None
    require(len(lists) > 0, f"{path.name} has no rows: give every client data, or remove the file.")
    return {name: as_objects(values) for name, values in lists.items()}


def as_objects(values: Sequence[object]) -> Array:
    """Values of any type in an array, one place each, also where they are lists."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _read_parquet(path: Path) -> dict[str, Array]:
    """Column by column, as the file has them."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InvalidInput(f"Reading {path.name} needs pyarrow: pip install 'corymb[tables]'.") from None
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{path.name} cannot be read as parquet ({reason}): write it again.") from None
    _check_distinct(table.column_names, path.name)
    return {name: _parquet_values(table.column(name)) for name in table.column_names}


def _parquet_values(column: Any) -> Array:
    listed = column.null_count or str(column.type).startswith(("dictionary", "date", "decimal"))
    return as_objects(column.to_pylist()) if listed else np.asarray(column.to_numpy())
