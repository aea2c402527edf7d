"""Parse the cells of tables: numbers, booleans, dates, text or missing values, by the same rule for all formats.

A csv file holds only text, and a data frame typed columns, so a cell is classified by how it reads: the text `3` and
the number 3 are the same, as are the text `True` and a boolean, and the text `2024-03-01` and a timestamp.
"""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple, cast

import numpy as np

from corymb.data.features import Array
from corymb.settings import InvalidInput

MISSING_SPELLINGS = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "<na>", "null", "nat", "?"})
"""Spellings of missing values in files, in lower case."""
TRUTH_VALUES = {"true": 1.0, "false": 0.0}
EPOCH = datetime(2000, 1, 1)
"""Dates are days since this one, close enough to typical dates for float32 to resolve minutes."""
_DAY = timedelta(days=1)
LARGEST_WHOLE = 2.0**53
"""Beyond this, floats cannot represent every integer, so that two may coincide."""
_EMPTY, _POINTER = 500, 8
"""Approximate bytes of an empty builder, and of a reference to a text."""
_BLOCK = 10_000
"""The number of cells of text that are read at once, so that what is kept about distinct ones stays small."""
_PADDED = re.compile(r"^\s*(0\d+)\s*$", re.MULTILINE)
"""A number with leading zeros, alone on its line."""
_POINTED = re.compile(r"^\s*([+-]?\d+\.\d+)\s*$", re.MULTILINE)
"""A number with a decimal point, alone on its line."""
_COMMA = re.compile(r"[+-]?(\d+,\d*|,\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
"""A number with a decimal comma."""


class Kind(IntEnum):
    """The type of a cell."""

    MISSING = 0
    NUMBER = 1
    TRUTH = 2
    DATE = 3
    TEXT = 4


class Column(NamedTuple):
    """The cells of one column."""

    values: Array
    """float64: numbers, 1 and 0 for true and false, days for dates; NaN for others."""
    kinds: Array
    """uint8: the `Kind` of each cell."""
    texts: Array
    """object: the cells that are text, "" for others; no elements if none is text."""
    padded: str = ""
    """The first cell that was read as a number but has leading zeros, as codes have; empty if there is none."""

    def text(self, row: int) -> str:
        """A cell as text, for the name of a category or class."""
        kind, value = self.kinds[row], float(self.values[row])
        if kind == Kind.TEXT:
            return str(self.texts[row])
        if kind == Kind.TRUTH:
            return "true" if value else "false"
        if kind == Kind.DATE:
            moment = EPOCH + value * _DAY
            return moment.date().isoformat() if value == math.floor(value) else moment.isoformat(" ")
        return numeral(value)

    def as_objects(self) -> Array:
        """The cells as Python values: numbers, None if missing, or text."""
        cells = np.empty(len(self.kinds), dtype=object)  # of None
        plain = self.kinds == Kind.NUMBER
        cells[plain] = self.values[plain].astype(object)
        for row in np.flatnonzero(~plain & (self.kinds != Kind.MISSING)).tolist():
            cells[row] = self.text(row)
        return cells

    def take(self, rows: Array) -> Column:
        """The cells of some rows, in that order."""
        texts = self.texts[rows] if len(self.texts) else self.texts
        return Column(self.values[rows], self.kinds[rows], texts, self.padded)


def numeral(value: float) -> str:
    """Format a number, with integers written without a decimal point.

    >>> numeral(3.0), numeral(0.5)
    ('3', '0.5')
    """
    return str(int(value)) if value == np.floor(value) and abs(value) <= LARGEST_WHOLE else repr(value)


class ColumnBuilder:
    """Builds a column from cells; only cells that cannot be parsed are kept as text."""

    def __init__(self, *, comma: bool = False) -> None:
        self._values, self._kinds, self._texts = array("d"), bytearray(), list[str]()
        self._of_texts = 0  # bytes of the distinct texts of every block
        self._padded = ""
        self._comma = comma  # whether a comma is the decimal point
        self.with_comma = self.with_point = ""
        """The first cells that were read as decimals with a comma and with a point, if commas are decimal points."""

    def extend(self, cells: Sequence[str]) -> None:
        """Add cells of a text file; numbers are read all at once, and each distinct text once."""
        together = "\n".join(cells)
        try:
            values = array("d", map(_number, cells) if "_" in together else map(float, cells))
        except ValueError:
            read = {cell: self._read(cell) for cell in dict.fromkeys(cells)}
            self._append(*zip(*map(read.__getitem__, cells), strict=True))
            return
        self._note_spelling(together)
        self._kinds.extend(_kinds_of(np.frombuffer(values)).tobytes())
        self._values.extend(values)

    def add_value(self, value: object) -> None:
        """Add a typed cell."""
        if isinstance(value, (np.datetime64, np.timedelta64)):
            value = value.astype(f"{value.dtype.kind}8[us]")  # in nanoseconds, item() is an integer
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, str):
            kind, number, text = self._read(value)
            self._append([kind], [number], [text])
        elif _is_missing(value):
            self._append([Kind.MISSING], [np.nan])
        elif isinstance(value, bool):
            self._append([Kind.TRUTH], [float(value)])
        elif isinstance(value, (int, float, Decimal)):
            self._append([Kind.NUMBER], [_as_float(value)])
        elif isinstance(value, date):
            self._append([Kind.DATE], [days(value)])
        elif isinstance(value, timedelta):
            self._append([Kind.NUMBER], [value / _DAY])
        elif isinstance(value, (list, tuple, np.ndarray)):
            raise InvalidInput("holds lists: give each place of a list, padded to one length, its own column")
        else:
            raise InvalidInput(f"is of type {type(value).__name__}: wanted numbers, booleans, dates, durations or text")

    def _read(self, cell: str) -> tuple[Kind, float, str]:
        """The kind of a cell of a text file, its value, and its text if that is all it is."""
        try:
            value = _number(cell)
        except ValueError:
            return self._read_word(cell.strip())
        self._note_spelling(cell)
        return (Kind.NUMBER if value == value else Kind.MISSING), value, ""

    def _note_spelling(self, cells: str) -> None:
        """Keep the first of some numbers, one a line, whose spelling may mean something else."""
        if not self._padded and (padded := _PADDED.search(cells)):
            self._padded = padded[1]
        if self._comma and not self.with_point and (pointed := _POINTED.search(cells)):
            self.with_point = pointed[1]

    def _read_word(self, word: str) -> tuple[Kind, float, str]:
        low = word.lower()
        if low in MISSING_SPELLINGS:
            return Kind.MISSING, np.nan, ""
        if low in TRUTH_VALUES:
            return Kind.TRUTH, TRUTH_VALUES[low], ""
        if self._comma and _COMMA.fullmatch(word):
            self.with_comma = self.with_comma or word
            return Kind.NUMBER, float(word.replace(",", ".")), ""
        if (day := _as_day(word)) is not None:
            return Kind.DATE, day, ""
        self._of_texts += sys.getsizeof(word)
        return Kind.TEXT, np.nan, sys.intern(word)  # rows with the same text share one string

    def _append(self, kinds: Sequence[Kind], values: Sequence[float], texts: Sequence[str] = ()) -> None:
        if any(texts):  # rows before the first text, and since the last one, have none
            self._texts.extend([""] * (len(self._kinds) - len(self._texts)))
            self._texts.extend(texts)
        self._values.extend(values)
        self._kinds.extend(kinds)

    @property
    def nbytes(self) -> int:
        """The approximate memory of the column so far, in bytes."""
        return _EMPTY + 9 * len(self._kinds) + _POINTER * len(self._texts) + self._of_texts

    def column(self) -> Column:
        """The column of the cells added so far."""
        values = np.frombuffer(self._values, np.float64) if self._values else np.empty(0)
        if self._texts:
            self._texts.extend([""] * (len(self._kinds) - len(self._texts)))
        texts = np.array(self._texts, dtype=object)
        return Column(values, np.frombuffer(bytes(self._kinds), np.uint8), texts, self._padded)


NO_TEXTS = np.empty(0, dtype=object)
"""The texts of a column that has none."""


def _number(cell: str) -> float:
    """The number that a cell is; Python's `1_0` is none: two codes, `1_0` and `10`, would be one number."""
    if "_" in cell:
        raise ValueError
    return float(cell)


def _kinds_of(numbers: Array) -> Array:
    return np.where(np.isnan(numbers), np.uint8(Kind.MISSING), np.uint8(Kind.NUMBER))


def _is_missing(value: object) -> bool:
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def _as_float(value: float | Decimal) -> float:
    """Convert to float; numbers beyond its range become infinite, as when parsed from text."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _as_day(word: str) -> float | None:
    if not (len(word) >= 10 and word[4] == word[7] == "-" and word[:4].isdigit()):
        return None
    try:
        return days(datetime.fromisoformat(word))
    except ValueError:
        return None


def days(moment: date) -> float:
    """Days since `EPOCH`; a time with a zone counts in UTC.

    >>> days(date(2000, 1, 2))
    1.0
    """
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is not None:
        with suppress(OverflowError):  # on the first or last representable day
            moment = moment.astimezone(UTC)
        moment = moment.replace(tzinfo=None)
    return (moment - EPOCH) / _DAY


def as_column(values: Array, name: str = "") -> Column:
    """Convert an array of any type to a column; `name` is for error messages."""
    if values.dtype.kind in "iuf":
        numbers = values.astype(np.float64, copy=False)
        return Column(numbers, _kinds_of(numbers), NO_TEXTS)
    if values.dtype.kind == "b":
        return Column(values.astype(np.float64), np.full(len(values), Kind.TRUTH, np.uint8), NO_TEXTS)
    if values.dtype.kind == "M":
        missing = np.isnat(values)
        since = (values.astype("datetime64[us]") - np.datetime64(EPOCH, "us")) / np.timedelta64(1, "D")
        return Column(
            np.where(missing, np.nan, since), np.where(missing, Kind.MISSING, Kind.DATE).astype(np.uint8), NO_TEXTS
        )
    if values.dtype.kind == "m":  # as days, whatever their unit
        lengths = np.where(np.isnat(values), np.nan, values / np.timedelta64(1, "D"))
        return Column(lengths, _kinds_of(lengths), NO_TEXTS)
    return read_values(values.tolist(), name)


def read_values(values: Sequence[object], name: str = "") -> Column:
    """Build a column from typed cells."""
    builder = ColumnBuilder()
    if set(map(type, values)) == {str}:
        for start in range(0, len(values), _BLOCK):
            builder.extend(cast(Sequence[str], values[start : start + _BLOCK]))
        return builder.column()
    for value in values:
        try:
            builder.add_value(value)
        except InvalidInput as error:
            raise InvalidInput(f"Column {name!r} {error}; convert or drop it.") from None
    return builder.column()


def joined(columns: Sequence[Column]) -> Column:
    """Concatenate columns."""
    if len(columns) == 1:
        return columns[0]
    values, kinds = (np.concatenate([getattr(column, name) for column in columns]) for name in ("values", "kinds"))
    texts = NO_TEXTS
    if any(len(column.texts) for column in columns):
        texts = np.concatenate([column.texts if len(column.texts) else _blank(column) for column in columns])
    return Column(values, kinds, texts, next((column.padded for column in columns if column.padded), ""))


def _blank(column: Column) -> Array:
    return np.full(len(column.kinds), "", dtype=object)
