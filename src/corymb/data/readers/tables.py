"""Read users' own tables: csv (also with semicolons or tabs) and jsonl, optionally gzipped, and parquet."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import re
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
from corymb.data.readers.limits import SHORT, SPLIT, Counted, check_size, limit, lines
from corymb.settings import InvalidInput, first_line, require

TEXT = (".csv", ".tsv", ".jsonl")
PACKED = ".gz"
TABLES = (*TEXT, *(f"{suffix}{PACKED}" for suffix in TEXT), ".parquet")
_DELIMITERS = ",;\t"
_QUOTED = re.compile(r'"[^"]*"')
POINTER = 8
ROWS = 2**16
"""The most rows of a parquet file that are read at once."""
_FIXED = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE")
"""Parquet's types of at most 12 bytes."""
CELLS, CHARACTERS = 10_000, 2**18
"""A csv file is read in blocks of about this many cells, or fewer if they are long, and weighed after each."""


def kind_of(path: Path) -> str:
    """A file's extension in lower case, including that of its compression.

    >>> kind_of(Path("a.CSV.gz")), kind_of(Path("b.1.npz"))
    ('.csv.gz', '.npz')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [PACKED] else "".join(suffixes[-1:])


def stem_of(path: Path) -> str:
    """A file's name without its extension, which is the name of its client."""
    return path.name[: len(path.name) - len(kind_of(path))]


def read_table(path: Path, clients: Sequence[str]) -> Columns:
    """Read all columns of a table; those in `clients` also as the original text."""
    kind = kind_of(path).removesuffix(PACKED)
    if kind in (".csv", ".tsv"):
        return _read_csv(path, clients, "\t" if kind == ".tsv" else None)
    values = _read_parquet(path) if kind == ".parquet" else _read_jsonl(path)
    return typed_columns(values, clients, path.name, first=1)


def typed_columns(values: Mapping[str, Array], clients: Sequence[str], origin: str, first: int = 0) -> Columns:
    """Convert columns that already have types."""
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
    """Read blocks of rows: numbers go into one flat buffer per column, so that cells are not kept as text."""
    try:
        with _open(path) as file:
            delimiter = delimiter or _delimiter(file, path.name)
            pieces = _Pieces(file, path.name)
            rows = _csv_rows(pieces, path, delimiter)
            names = _header(rows, path)
            check_size(len(names) * ColumnBuilder().nbytes, path.name)
            builders = [ColumnBuilder(comma=delimiter == ";") for _ in names]
            kept = [(name, names.index(name), list[str]()) for name in clients if name in names]
            for block in _blocks(rows, pieces, max(1, CELLS // len(names))):
                columns = list(zip(*block, strict=True))
                for builder, column in zip(builders, columns, strict=True):
                    builder.extend(column)
                for _, place, texts in kept:
                    texts.extend(map(sys.intern, columns[place]))  # a client's rows share one string
                check_size(sum(builder.nbytes for builder in builders), path.name)
    except (UnicodeDecodeError, csv.Error, EOFError, OSError, zlib.error) as error:
        raise InvalidInput(f"{path.name} cannot be read as csv ({error}): save it as UTF-8 text with commas.") from None
    cells = {name: builder.column() for name, builder in zip(names, builders, strict=True)}
    ids = {name: tidy_ids(texts) for name, _, texts in kept}
    return Columns(
        path.name, cells, ids, first=2, notes=_mixed_decimals(path.name, dict(zip(names, builders, strict=True)))
    )


def _mixed_decimals(what: str, builders: Mapping[str, ColumnBuilder]) -> tuple[str, ...]:
    """A note if decimals are written both with a comma and with a point: one of them may separate thousands."""
    commas = [f"{builder.with_comma!r} in column {name!r}" for name, builder in builders.items() if builder.with_comma]
    points = [f"{builder.with_point!r} in column {name!r}" for name, builder in builders.items() if builder.with_point]
    if not commas or not points:
        return ()
    both = f"{what} has decimal commas ({commas[0]}) and decimal points ({points[0]}), and both are read as such"
    return (f"{both}: if one of them separates thousands, remove it",)


def _delimiter(file: IO[str], what: str) -> str:
    """The delimiter of a csv file: the most frequent of comma, semicolon and tab in the header, outside of quotes."""
    header = _QUOTED.sub("", next(lines(file, what), ""))
    file.seek(0)
    return max(_DELIMITERS, key=header.count)


def _header(rows: Iterator[list[str]], path: Path) -> list[str]:
    header = next(rows, [])
    require(len(header) > 0, f"The first line of {path.name} is empty: it must name the columns.")
    names = [name.strip() for name in header]
    _check_distinct(names, path.name)
    return names


def _check_distinct(names: Sequence[str], origin: str) -> None:
    for name, count in Counter(names).items():
        require(count == 1, f"{origin} has two columns called {name!r}: rename one.")


def _blocks(rows: Iterator[list[str]], pieces: _Pieces, most: int) -> Iterator[list[list[str]]]:
    """Yield blocks of at most that many rows, fewer if they are long."""
    block: list[list[str]] = []
    for row in rows:
        block.append(row)
        if len(block) == most or pieces.characters > CHARACTERS:
            yield block
            block, pieces.characters = [], 0
    if block:
        yield block


def _csv_rows(pieces: _Pieces, path: Path, delimiter: str) -> Iterator[list[str]]:
    """Yield the header and the rows, each as wide as the header; trailing blank lines are ignored."""
    width, blank = 0, None
    for line, row in enumerate(csv.reader(pieces, delimiter=delimiter), 1):
        pieces.row_done()
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


class _Pieces:
    """The lines of a csv file, with a limit on the size of a row, which may span lines if a cell is quoted."""

    def __init__(self, file: IO[str], what: str) -> None:
        self._lines, self._what, self._length = lines(file, what), what, 0
        self.characters = 0
        """The length of all rows since this was last set to 0."""

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self._length += len(line)
            self.characters += len(line)
            if self._length > SHORT:
                check_size(SPLIT * self._length, f"A row of {self._what}")
            yield line

    def row_done(self) -> None:
        """Reset the count for the next row."""
        self._length = 0


# ---- jsonl and parquet


def _read_jsonl(path: Path) -> dict[str, Array]:
    """Read one object per line, as values by column; keys absent from a line are missing values."""
    lists: dict[str, list[object]] = {}
    number = size = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(lines(file, path.name)):
                row = json.loads(line)
                require(
                    isinstance(row, dict),
                    f'{path.name}, row {number + 1} is not an object: wanted {{"column": value}}.',
                )
                new = row.keys() - lists.keys()
                size += POINTER * (number * len(new) + len(lists) + len(new)) + _size_of(row, line)
                check_size(size, path.name)
                lists |= {name: [None] * number for name in row if name in new}
                for name, values in lists.items():
                    values.append(row.get(name))
    except (ValueError, EOFError, OSError, zlib.error, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path.name}, row {number + 1} cannot be read as JSON ({error}): write it again.") from None
    require(len(lists) > 0, f"{path.name} has no rows: give every client data, or remove the file.")
    return {name: as_objects(values) for name, values in lists.items()}


def _size_of(row: Mapping[str, object], line: str) -> int:
    """The approximate size of a row's values in bytes."""
    nested = any(isinstance(value, (list, dict)) for value in row.values())
    return SPLIT * len(line) if nested else sum(map(sys.getsizeof, row.values()))


def as_objects(values: Sequence[object]) -> Array:
    """An object array with one element per value, even if the values are lists."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _read_parquet(path: Path) -> dict[str, Array]:
    """Read the columns of a parquet file."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InvalidInput(f"Reading {path.name} needs pyarrow: pip install 'corymb[tables]'.") from None
    try:
        with parquet.ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            _check_distinct(names, path.name)
            check_size(POINTER * file.metadata.num_rows * len(names), path.name)
            parts = _parquet_parts(file, path.name)
    except InvalidInput:
        raise
    except Exception as error:  # pyarrow raises various errors on corrupt files
        raise InvalidInput(f"{path.name} cannot be read as parquet ({first_line(error)}): write it again.") from None
    # a part is given up column by column, so that no two copies of the table are held
    return {name: np.concatenate([part.pop(name) for part in parts]) if parts else as_objects([]) for name in names}


def _parquet_parts(file: Any, what: str) -> list[dict[str, Array]]:
    """Read batches of rows, small enough to fit even if each row held the longest text of its row group."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    check_size(max((group.total_byte_size for group in groups), default=0), what)
    longest = max((_longest_texts(group, file.schema) for group in groups), default=0)
    at_once = max(1, min(ROWS, limit() // max(1, longest)))
    parts, size = [], 0
    for batch in file.iter_batches(batch_size=at_once):
        size += 2 * batch.nbytes
        check_size(size, what)
        parts.append({name: _parquet_values(batch.column(name)) for name in batch.schema.names})
    return parts


def _longest_texts(group: Any, schema: Any) -> int:
    """The most bytes that one row of a row group may take besides its plain numbers, which take a few each."""
    return sum(
        group.column(place).total_uncompressed_size
        for place in range(group.num_columns)
        if schema.column(place).max_repetition_level > 0 or group.column(place).physical_type not in _FIXED
    )


def _parquet_values(column: Any) -> Array:
    if str(column.type) in ("string", "large_string"):
        column = column.dictionary_encode()
    if str(column.type).startswith("dictionary"):  # cells share their strings
        words = as_objects([*column.dictionary.to_pylist(), None])
        places: Array = column.indices.cast("int64").fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
        return np.asarray(words[places])
    listed = column.null_count or str(column.type).startswith(("date", "decimal"))
    return as_objects(column.to_pylist()) if listed else np.asarray(column.to_numpy(zero_copy_only=False))
