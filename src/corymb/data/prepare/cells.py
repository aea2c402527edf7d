"""Parse the cells of tables: numbers, booleans, dates, text or missing values, by the same rule for all formats.

A csv file holds only text, and a data frame typed columns, so a cell is classified by how it reads: the text `3` and
the number 3 are the same, as are the text `True` and a boolean, and the text `2024-03-01` and a timestamp.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from corymb.data.features import Array
from corymb.settings import InvalidInput

NOTHING = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "<na>", "null", "nat", "?"})
"""Spellings of missing values in files, in lower case."""
TRUTH_VALUES = {"true": 1.0, "false": 0.0}
EPOCH = datetime(2000, 1, 1)
"""Dates are days since this one, close enough to typical dates for float32 to resolve minutes."""
_DAY = timedelta(days=1)
LARGEST_WHOLE = 2.0**53
"""Beyond this, floats cannot represent every integer, so that two may coincide."""
_EMPTY, _ENTRY = 500, 100
"""Approximate bytes of an empty builder, and of a dict entry."""


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
    texts: Mapping[int, str]
    """The cells that are text, by row."""
    padded: str = ""
    """The first cell that was read as a number but has leading zeros, as codes have; empty if there is none."""

    def text(self, row: int) -> str:
        """A cell as text, for the name of a category or class."""
        kind, value = self.kinds[row], float(self.values[row])
        if kind == Kind.TEXT:
            return self.texts[row]
        if kind == Kind.TRUTH:
            return "true" if value else "false"
        return (EPOCH + value * _DAY).isoformat(" ") if kind == Kind.DATE else numeral(value)

    def as_objects(self) -> Array:
        """The cells as Python values: numbers, None if missing, or text."""
        cells = np.empty(len(self.kinds), dtype=object)
        for row, kind in enumerate(self.kinds):
            plain = kind == Kind.NUMBER
            cells[row] = float(self.values[row]) if plain else None if kind == Kind.MISSING else self.text(row)
        return cells

    def take(self, rows: Array) -> Column:
        """The cells of some rows, in that order."""
        numbered = enumerate(rows.tolist()) if self.texts else ()
        texts = {new: self.texts[old] for new, old in numbered if old in self.texts}
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
        self._values, self._kinds, self._texts = array("d"), bytearray(), dict[int, str]()
        self._of_texts = 0  # bytes
        self._padded = ""
        self._comma = comma  # whether a comma is the decimal point

    def add(self, cell: str) -> None:
        """Add a cell of a text file."""
        try:
            value = float(cell)
        except ValueError:
            self._add_word(cell.strip())
            return
        if cell[0] in "0 " and len(cell) > 1 and not self._padded:
            self._see_zeros(cell.strip())
        self._append(Kind.NUMBER if value == value else Kind.MISSING, value)

    def add_value(self, value: object) -> None:
        """Add a typed cell."""
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, str):
            self.add(value)
        elif _is_missing(value):
            self._append(Kind.MISSING, np.nan)
        elif isinstance(value, bool):
            self._append(Kind.TRUTH, float(value))
        elif isinstance(value, (int, float, Decimal)):
            self._append(Kind.NUMBER, _as_float(value))
        elif isinstance(value, date):
            self._append(Kind.DATE, days(value))
        else:
            raise InvalidInput(f"is of type {type(value).__name__}: wanted numbers, booleans, dates or text")

    def _add_word(self, word: str) -> None:
        low = word.lower()
        if low in NOTHING:
            self._append(Kind.MISSING, np.nan)
        elif low in TRUTH_VALUES:
            self._append(Kind.TRUTH, TRUTH_VALUES[low])
        elif self._comma and word.count(",") == 1 and word.replace(",", "").lstrip("+-").isdigit():
            self._append(Kind.NUMBER, float(word.replace(",", ".")))
        elif (day := _as_day(word)) is not None:
            self._append(Kind.DATE, day)
        else:
            self._texts[len(self._kinds)] = word
            self._of_texts += _ENTRY + sys.getsizeof(word)
            self._append(Kind.TEXT, np.nan)

    def _see_zeros(self, word: str) -> None:
        if word[0] == "0" and len(word) > 1 and word.isdecimal():
            self._padded = word

    def _append(self, kind: Kind, value: float) -> None:
        self._values.append(value)
        self._kinds.append(kind)

    @property
    def nbytes(self) -> int:
        """The approximate memory of the column so far, in bytes."""
        return _EMPTY + 9 * len(self._kinds) + self._of_texts

    def column(self) -> Column:
        """The column of the cells added so far."""
        values = np.frombuffer(self._values, np.float64) if self._values else np.empty(0)
        return Column(values, np.frombuffer(bytes(self._kinds), np.uint8), self._texts, self._padded)


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
        numbers = values.astype(np.float64)
        kinds = np.where(np.isnan(numbers), Kind.MISSING, Kind.NUMBER)
        return Column(numbers, kinds.astype(np.uint8), {})
    if values.dtype.kind == "b":
        return Column(values.astype(np.float64), np.full(len(values), Kind.TRUTH, np.uint8), {})
    if values.dtype.kind == "M":
        missing = np.isnat(values)
        since = (values.astype("datetime64[us]") - np.datetime64(EPOCH, "us")) / np.timedelta64(1, "D")
        return Column(np.where(missing, np.nan, since), np.where(missing, Kind.MISSING, Kind.DATE).astype(np.uint8), {})
    return read_values(values.tolist(), name)


def read_values(values: Iterable[object], name: str = "") -> Column:
    """Build a column from typed cells."""
    builder = ColumnBuilder()
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
    starts = np.cumsum([0, *(len(column.kinds) for column in columns)]).tolist()
    texts = {
        start + row: text for start, column in zip(starts, columns, strict=False) for row, text in column.texts.items()
    }
    values, kinds = (np.concatenate([getattr(column, name) for column in columns]) for name in ("values", "kinds"))
    return Column(values, kinds, texts, next((column.padded for column in columns if column.padded), ""))
