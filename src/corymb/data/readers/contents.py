"""The roles of named columns: features, labels, clients and test rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from corymb.data.features import Array
from corymb.data.prepare.cells import LARGEST_WHOLE, Column, Kind, as_column
from corymb.data.prepare.columns import RowName, Table
from corymb.settings import InvalidInput, require

CLIENT, LABEL, TEST = "client", "label", "test"
"""The default names of columns."""
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
_LIKELY = re.compile(
    "client|user|subject|site|hospital|clinic|school|patient|device|store|shop|station|participant|person|writer|"
    "speaker|centre|center|region|island|state|country|city|group|owner|farm|plant|branch",
    re.IGNORECASE,
)
NAME = 1000
"""The longest name of a client in characters: in an array of names, every row takes as much as the longest."""
Names = str | Sequence[str] | None
FEW = 5
"""At most this many unused arrays are named."""
_WRITTEN = (str, int, np.integer)
"""Types that are written unchanged as a client's id."""


class Columns(NamedTuple):
    """A table as read: all columns by name."""

    origin: str
    """Its name in messages."""
    cells: Table
    ids: Mapping[str, Array]
    """The columns that may name clients, as text."""
    first: int = 0
    """The number of the first row, as counted by an editor or viewer."""
    notes: tuple[str, ...] = ()
    """Notes on how cells were read."""

    def place(self, row: int) -> str:
        """The location of a row, for error messages."""
        return f"{self.origin}, row {self.first + row}" if self.origin else f"row {self.first + row}"


class Contents(NamedTuple):
    """The rows of one file or frame, by role."""

    origin: str
    x: Array | Table
    y: Column | None
    """Labels; None if a density is to be learned."""
    client: Array | None
    test: Array | None
    where: RowName
    left_out: tuple[str, ...] = ()
    """Columns that only number the rows and are not used as features."""
    unused: tuple[str, ...] = ()
    """Arrays of a file that are not used."""
    numbered: tuple[str, ...] = ()
    """Columns that are categorical in a data frame, but hold numbers."""
    reading: tuple[str, ...] = ()
    """Notes on how cells were read."""

    @property
    def notes(self) -> list[str]:
        """Notes on columns and arrays that are not used, or not as expected, and on how cells were read."""
        numbers = [f"{name!r} only numbers the rows and is not used as a feature" for name in self.left_out]
        words = "write its categories as words ('c1') to have a feature for each"
        numbers += [f"column {name!r} is categorical, but read as numbers: {words}" for name in self.numbered[:FEW]]
        others = f"arrays not used: {', '.join(map(repr, self.unused[:FEW]))}{' and others' * (len(self.unused) > FEW)}"
        return [*numbers, *([others] if self.unused else []), *self.reading]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.x.values())).kinds if isinstance(self.x, Mapping) else self.x)


def sort_columns(
    table: Columns, *, client: str | None, label: str | None, features: Names = None, labelled: bool = True
) -> Contents:
    """Assign roles to the columns; features are those named, or all columns without another role.

    The column of labels is only required if `labelled`.
    """
    cells, wanted = table.cells, label or LABEL
    require(len(cells) > 0, f"{table.origin} has no columns.")
    rows = len(next(iter(cells.values())).kinds)
    require(rows > 0, f"{table.origin} has no rows: give every client data, or leave it out.")
    chosen = names_in(features)
    for name in (*([wanted] if labelled or label else []), *([client] if client else []), *chosen):
        which = "" if name != wanted or label else "name the column that holds the labels, label='...' (--label); "
        listed = ", ".join(map(repr, cells))
        require(name in cells, f"{table.origin} has no column {name!r}: {which}its columns are {listed}.")
    require(wanted != client, f"{wanted!r} is given as the column of both clients and labels: name two columns.")
    for name in chosen:
        role = {wanted: "the labels", client: "the clients", TEST: "which rows to test on"}.get(name)
        require(role is None, f"{name!r} is given as a feature, but it holds {role}: leave it out of the features.")
    index = tuple(name for name in cells if _INDEX.fullmatch(name) and name not in (wanted, client, *chosen))
    others = (wanted, client, TEST, *index)
    x = {name: cells[name] for name in chosen or cells if name not in others}
    require(len(x) > 0, f"{table.origin} has no feature columns besides {wanted!r}: add some.")
    return Contents(
        table.origin,
        x,
        cells.get(wanted),
        None if client is None else table.ids[client],
        as_mask(cells[TEST], table.place) if TEST in cells else None,
        table.place,
        index,
        reading=table.notes,
    )


def names_in(features: Names) -> tuple[str, ...]:
    """The names of features; on the command line they are separated by commas."""
    return tuple(features.split(",")) if isinstance(features, str) else tuple(features or ())


def client_column(
    table: Columns, client: str | None, label: str | None, features: Names, *, how: str = "client='...'"
) -> str:
    """The column of clients: the one given, else `client`; if there is none, the error suggests a likely one.

    Columns with another role are not suggested.
    """
    if client is not None or CLIENT in table.cells:
        return client or CLIENT
    known = (label or LABEL, TEST, *names_in(features))
    others = {name: column for name, column in table.cells.items() if name not in known and not _INDEX.fullmatch(name)}
    likely = _likely(others)
    columns = f"its columns are {', '.join(map(repr, others))}" if others else "it has no other column"
    hint = f"{likely!r} looks like it" if likely else columns
    raise InvalidInput(f"{table.origin} is one table: name the column that holds the clients, {how}; {hint}.")


def _likely(cells: Table) -> str | None:
    """A column that could name clients: its values repeat, and its name suggests it or it is text."""

    def repeats(column: Column) -> bool:
        present = column.kinds != Kind.MISSING
        texts = len(column.texts) > 0
        values = set(column.texts[column.kinds == Kind.TEXT] if texts else column.values[present].tolist())
        return 1 < len(values) <= len(present) / 2

    able = {name: column for name, column in cells.items() if repeats(column)}
    named = [name for name in able if _LIKELY.search(name)]
    texts = [name for name, column in able.items() if len(column.texts)]
    return next(iter([*named, *texts]), None)


def ids_of(values: Array, name: str = "client") -> Array:
    """Convert client ids of any type to text, with text and integers unchanged; empty where missing.

    Integers are not converted via cells, whose floats are exact only up to 2**53: ids are often longer.

    >>> ids_of(np.array([2**62, 2**62 + 1])).tolist()
    ['4611686018427387904', '4611686018427387905']
    """
    if values.dtype.kind in "iuU":
        return tidy_ids(values.astype(np.str_).tolist())
    if values.dtype.kind == "O" and any(isinstance(value, _WRITTEN) for value in values):
        return tidy_ids([_id_of(value, name) for value in values])
    column = as_column(values, name)
    for row in np.flatnonzero((column.kinds == Kind.NUMBER) & (np.abs(column.values) > LARGEST_WHOLE))[:1]:
        raise InvalidInput(
            f"Column {name!r} of clients holds decimal numbers such as {column.text(int(row))}, too large to tell "
            "neighbours apart: read it as text or as whole numbers."
        )
    return tidy_ids(["" if kind == Kind.MISSING else column.text(row) for row, kind in enumerate(column.kinds)])


def _id_of(value: object, name: str) -> str:
    if isinstance(value, _WRITTEN) and not isinstance(value, bool):
        return str(value)
    alone = np.empty(1, dtype=object)
    alone[0] = value
    column = as_column(alone, name)
    return "" if column.kinds[0] == Kind.MISSING else column.text(0)


def tidy_ids(texts: Sequence[str]) -> Array:
    """Strip client names, and restore integers that became decimals on the way.

    >>> tidy_ids(["1.0", " 10.0"]).tolist(), tidy_ids(["007", "a"]).tolist()
    (['1', '10'], ['007', 'a'])
    """
    ids = [text.strip() for text in texts]
    longest = max(map(len, ids), default=0)
    require(longest <= NAME, f"A client's name has {longest:,} characters: wanted at most {NAME:,}. Is it the column?")
    decimal = all(one == "" or re.fullmatch(r"-?\d+\.0", one) for one in ids)
    return np.asarray([one.removesuffix(".0") for one in ids] if decimal else ids, dtype=np.str_)


def as_mask(column: Column, where: RowName) -> Array:
    """Convert a `test` column to booleans: true and false or 1 and 0, in any spelling of a file."""
    for row in np.flatnonzero((column.values != 0) & (column.values != 1))[:1]:
        text = "empty" if column.kinds[row] == Kind.MISSING else repr(column.text(int(row)))
        raise InvalidInput(f"{where(int(row))}, column 'test': {text} is neither true nor false.")
    mask: Array = column.values == 1
    return mask
