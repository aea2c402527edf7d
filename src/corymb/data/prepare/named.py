"""Categories and fill values that the user gives for columns.

They are not learned from the rows, so the nodes of a federation, each of which sees only its own rows, get the same
features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from corymb.data.prepare.cells import Column, Kind, read_values
from corymb.settings import InvalidInput, did_you_mean, require

Categories = Mapping[str, Sequence[str]]
"""All categories of each column, by the column's name."""
Fills = Mapping[str, float]
"""The value that replaces missing cells of each column; for dates, text or days since 2000-01-01."""
OTHER = "other"
"""The category of rare values, and of values that are not among the given categories."""


def named_categories(given: Categories, table: Mapping[str, Column]) -> dict[str, tuple[str, ...]]:
    """The given categories of columns, spelled like the cells of the table."""
    require(isinstance(given, Mapping), f"categories={given!r}: wanted {{'column': ['one', 'two']}}.")
    found = {}
    for name, names in given.items():
        _require_column("categories", name, table)
        several = isinstance(names, Sequence) and not isinstance(names, str) and len(names) > 0
        require(several, f"categories of column {name!r} are {names!r}: wanted a list of names, ['one', 'two'].")
        cells = read_values(list(names), name)
        texts = [cells.text(row) for row in range(len(cells.kinds))]
        twice = next((text for text in texts if texts.count(text) > 1), None)
        require(twice is None, f"categories of column {name!r} name {twice!r} twice: give each once.")
        require(not (cells.kinds == Kind.MISSING).any(), f"categories of column {name!r} have an empty name: drop it.")
        found[name] = tuple(texts)
    return found


def named_fills(missing: object, table: Mapping[str, Column]) -> dict[str, float]:
    """The given fill values by column; empty if `missing` is not a mapping."""
    if not isinstance(missing, Mapping):
        return {}
    found = {}
    for name, value in missing.items():
        _require_column("missing", name, table)
        try:
            cell = read_values([value], name)
        except InvalidInput as problem:
            raise InvalidInput(f"missing={{{name!r}: {value!r}}}: {problem}") from None
        good = cell.kinds[0] in (Kind.NUMBER, Kind.TRUTH, Kind.DATE) and np.isfinite(cell.values[0])
        require(bool(good), f"missing={{{name!r}: {value!r}}}: wanted a number, which missing cells are taken as.")
        found[name] = float(np.float32(cell.values[0]))
    return found


def note_unnamed(name: str, column: Column, categories: Sequence[str]) -> list[str]:
    """A note on cells of a column that are in none of the given categories."""
    rows = np.flatnonzero(column.kinds != Kind.MISSING).tolist()
    others = [text for row in rows if (text := column.text(row)) not in categories]
    if not others:
        return []
    taken = f"taken as {OTHER!r}" if OTHER in categories else f"left without one (name {OTHER!r} too to keep them)"
    counted = f"{len(others)} cells ({others[0]!r}) are" if len(others) > 1 else f"1 cell ({others[0]!r}) is"
    return [f"column {name!r}: {counted} of no category that was named, and {taken}"]


def _require_column(what: str, name: str, table: Mapping[str, Column]) -> None:
    require(name in table, f"{what} names {name!r}, but there is no such column. {did_you_mean(str(name), table)}")
