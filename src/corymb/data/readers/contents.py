"""What came in by a door that has names: which columns are features, labels, clients and test rows."""

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
"""What columns are called if nothing else is said."""
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
_LIKELY = re.compile(
    "client|user|subject|site|hospital|clinic|school|patient|device|store|shop|station|participant|person|writer|"
    "speaker|centre|center|region|island|state|country|city|group|owner|farm|plant|branch",
    re.IGNORECASE,
)
NAME = 1000
"""Characters of a client's name: every row of an array of names takes as much as the longest."""
Names = str | Sequence[str] | None
FEW = 5
"""So many arrays that are not used are named."""
_WRITTEN = (str, int, np.integer)
"""What is a client's id as it stands."""


class Columns(NamedTuple):
    """A table as it was read: all columns by name."""

    origin: str
    """What to call it in messages."""
    cells: Table
    ids: Mapping[str, Array]
    """The columns that may name clients, as text."""
    first: int = 0
    """The number of the first row, as an editor or a viewer counts."""

    def place(self, row: int) -> str:
        """Where a row is, for error messages."""
        return f"{self.origin}, row {self.first + row}" if self.origin else f"row {self.first + row}"


class Contents(NamedTuple):
    """The rows of one file or frame, sorted into what they are for."""

    origin: str
    x: Array | Table
    y: Column | None
    """Labels; none where a density is to be learned."""
    client: Array | None
    test: Array | None
    where: RowName
    left_out: tuple[str, ...] = ()
    """Columns that number the rows, and are no features."""
    unused: tuple[str, ...] = ()
    """Arrays of a file that nobody asked for."""
    numbered: tuple[str, ...] = ()
    """Columns that a frame says are categories, but that hold numbers."""

    @property
    def notes(self) -> list[str]:
        """What is to be said about what is not used."""
        numbers = [f"{name!r} only numbers the rows and is no feature" for name in self.left_out]
        words = "write its categories as words ('c1') to have a feature for each"
        numbers += [f"column {name!r} is categorical, but taken as numbers: {words}" for name in self.numbered[:FEW]]
        others = f"arrays not used: {', '.join(map(repr, self.unused[:FEW]))}{' and others' * (len(self.unused) > FEW)}"
        return numbers + ([others] if self.unused else [])

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(next(iter(self.x.values())).kinds if isinstance(self.x, Mapping) else self.x)


def sort_columns(
    table: Columns, *, client: str | None, label: str | None, features: Names = None, labelled: bool = True
) -> Contents:
    """Which columns are what; features are all that are nothing else, or those that are named.

    Unless it must be `labelled`, a table may do without the column of labels.
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
    require(wanted != client, f"{wanted!r} is said to hold both the clients and the labels: name two columns.")
    for name in chosen:
        role = {wanted: "the labels", client: "the clients", TEST: "which rows to test on"}.get(name)
        require(role is None, f"{name!r} is said to be a feature, but it holds {role}: leave it out of the features.")
    index = tuple(name for name in cells if _INDEX.fullmatch(name) and name not in (wanted, client, *chosen))
    others = (wanted, client, TEST, *index)
    x = {name: cells[name] for name in chosen or cells if name not in others}
    require(len(x) > 0, f"{table.origin} has no columns of features beside {wanted!r}: add some.")
    return Contents(
        table.origin,
        x,
        cells.get(wanted),
        None if client is None else table.ids[client],
        as_mask(cells[TEST], table.place) if TEST in cells else None,
        table.place,
        index,
    )


def names_in(features: Names) -> tuple[str, ...]:
    """The names of features, which a command line separates by commas."""
    return tuple(features.split(",")) if isinstance(features, str) else tuple(features or ())


def client_column(
    table: Columns, client: str | None, label: str | None, features: Names, *, how: str = "client='...'"
) -> str:
    """The column of clients: the one named, else `client`; where there is none, the error names a likely one.

    Columns that are said to be something else are not likely.
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
    """A column that could name clients: it is called like one, or is text, and its values repeat."""

    def repeats(column: Column) -> bool:
        present = column.kinds != Kind.MISSING
        values = set(column.texts.values()) if column.texts else set(column.values[present].tolist())
        return 1 < len(values) <= len(present) / 2

    able = {name: column for name, column in cells.items() if repeats(column)}
    named = [name for name in able if _LIKELY.search(name)]
    texts = [name for name, column in able.items() if column.texts]
    return next(iter([*named, *texts]), None)


def ids_of(values: Array, name: str = "client") -> Array:
    """Clients' ids of any type as text, text and whole numbers as they are written; empty where there is none.

    Whole numbers do not go by way of cells, whose floats hold only those up to 2**53: ids are often longer.

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
    """Clients' names as text; whole numbers that became decimals on the way are whole again.

    >>> tidy_ids(["1.0", " 10.0"]).tolist(), tidy_ids(["007", "a"]).tolist()
    (['1', '10'], ['007', 'a'])
    """
    ids = [text.strip() for text in texts]
    longest = max(map(len, ids), default=0)
    require(longest <= NAME, f"A client's name has {longest:,} characters: wanted at most {NAME:,}. Is it the column?")
    decimal = all(one == "" or re.fullmatch(r"-?\d+\.0", one) for one in ids)
    return np.asarray([one.removesuffix(".0") for one in ids] if decimal else ids, dtype=np.str_)


def as_mask(column: Column, where: RowName) -> Array:
    """A `test` column as booleans: true and false, or 1 and 0, in any of the ways a file may write them."""
    for row in np.flatnonzero((column.values != 0) & (column.values != 1))[:1]:
        text = "empty" if column.kinds[row] == Kind.MISSING else repr(column.text(int(row)))
        raise InvalidInput(f"{where(int(row))}, column 'test': {text} is neither true nor false.")
    mask: Array = column.values == 1
    return mask
