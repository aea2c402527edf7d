"""Convert the columns of a table to numbers: their types by a vote of the clients, and imputation of missing cells.

Every client votes for the most frequent type of its cells in a column, and the majority decides. Numbers, booleans and
dates become one feature each. Text becomes one feature per category: clients vote for the categories they have, and
rare ones are merged into `other`. Means for missing cells are sums over clients; medians are found by bisection on the
bits, counting the cells below a number. Only training rows are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from corymb.choices import Missing
from corymb.data.clients import Clients, majority
from corymb.data.features import Array
from corymb.data.prepare.cells import Column, Kind
from corymb.data.prepare.named import OTHER, Categories, Fills, named_categories, named_fills, note_unnamed
from corymb.settings import InvalidInput, require

What = Literal["number", "date", "category"]
RowName = Callable[[int], str]
"""Names a row by its number, for error messages."""
Table = Mapping[str, Column]

HELD_BY = 20
"""A category is kept if more than one client has it, and more than one in this many, ..."""
RARE = 0.01
"""... and at least this share of the training rows."""
FEW = 3
"""Up to this many columns with imputed cells get a note each; more are named in a single note."""
MOST_LISTED = 20
"""At most this many columns are named in a message: a table may have thousands."""
_WHATS: tuple[What, ...] = ("number", "date", "category")
_ALSO = {"number": "numbers", "date": "dates"}


class ColumnPlan(NamedTuple):
    """How one column becomes features, as plain values that are stored with a run for new examples."""

    name: str
    what: What
    fill: float | None = None
    """The value imputed for a missing number or date; None if missing cells are rejected."""
    categories: tuple[str, ...] = ()
    """One feature each; any other cell is `other`, if that is a category, and else 0 in all features."""

    @property
    def features(self) -> list[str]:
        """The names of the features."""
        return [f"{self.name}={one}" for one in self.categories] if self.what == "category" else [self.name]

    @staticmethod
    def read(values: Mapping[str, Any]) -> ColumnPlan:
        """Rebuild a plan from a JSON mapping."""
        return ColumnPlan(**{**values, "categories": tuple(values["categories"])})


def learn_columns(
    table: Table,
    clients: Clients,
    train: Array,
    missing: Missing | Fills,
    where: RowName,
    *,
    codes: bool = False,
    categories: Categories = MappingProxyType({}),
) -> tuple[tuple[ColumnPlan, ...], list[str]]:
    """Plan the conversion of a table to features; also returns notes. The error names all columns that cannot be used.

    `train` holds the indices of the training rows. Missing codes cannot be imputed. What `missing` and `categories`
    name is not learned from the rows: nodes of a federation that name the same values have the same features.
    """
    named, fills = named_categories(categories, table), named_fills(missing, table)
    plans, notes, problems = [], [], []
    lacking: dict[str, Array] = {}
    filled: dict[str, tuple[int, float]] = {}
    without: dict[str, int] = {}
    for name, column in table.items():
        what = "category" if name in named else _what(column, clients)
        empty = column.kinds == Kind.MISSING
        known = name in named or name in fills
        nothing = "it has no values: drop it" if empty.all() and not known else ""
        if problem := _odd_cells(column, what, clients, where) or nothing:
            problems.append(f"column {name!r}: {problem}")
            continue
        if empty.any() and (codes or _refused(missing, what, known=name in fills)):
            lacking[name] = empty
            continue
        mine, owners = column.take(train), clients.take(train)
        if missing in ("mean", "median") and not known and bool((mine.kinds == Kind.MISSING).all()):
            problems.append(f"column {name!r}: no training row has a value: drop it")
        elif what != "category":
            fill = fills.get(name) if fills else _fill(mine, owners, missing)
            plans.append(ColumnPlan(name, what, fill))
            notes += [] if codes else _note_padded(name, column.padded, "is read as a number")
            if fill is not None and empty.any():
                filled[name] = (int(empty.sum()), fill)
        elif kept := named.get(name) or _categories(mine, owners):
            plans.append(ColumnPlan(name, what, None, kept))
            learned = _note_likely_type(name, kept) + _note_split(name, kept)
            notes += note_unnamed(name, column, kept) if name in named else learned
            notes += _note_padded(name, column.padded, "is treated as the number")
            if empty.any():
                without[name] = int(empty.sum())
        else:
            notes.append(f"column {name!r} is not used: it is text without a category that is common among clients")
            notes += _note_likely_type(name, [mine.text(row) for row in range(min(len(train), 100))])
    if bad := len(problems) + len(lacking):
        many = f"{bad} columns cannot be used: " if bad > 1 else ""
        problems = _first_few(problems) + ([_missing_message(lacking, where, codes=codes)] if lacking else [])
        raise InvalidInput(f"{many}{'; '.join(problems)}.")
    notes += _note_filled(filled, "value that was given" if fills else str(missing))
    if without:
        notes.append(f"missing cells of text belong to no category: {_few(without)}")
    require(len(plans) > 0, "No column can be used as a feature: each is text without common categories.")
    return tuple(plans), notes


def encode(table: Table, plans: Sequence[ColumnPlan], where: RowName, *, codes: bool = False) -> Array:
    """Convert a table by its plans to [rows, features]; a single error names all columns that do not fit.

    The result is float32, except for codes: float64 distinguishes those beyond 2**24.
    """
    parts: list[Array] = []
    problems = []
    for plan in plans:
        column = table[plan.name]
        if plan.what == "category":
            parts.append(_one_hot(column, plan.categories))
            continue
        wrong = np.flatnonzero(~np.isin(column.kinds, [Kind.MISSING, *_kinds_of(plan.what)]))
        empty = column.kinds == Kind.MISSING
        if len(wrong):
            row = int(wrong[0])
            problems.append(f"column {plan.name!r}: {where(row)} is {column.text(row)!r}, wanted {_ALSO[plan.what]}")
        elif plan.fill is None and empty.any():
            problems.append(f"column {plan.name!r}: {where(int(empty.argmax()))} is missing: fill it in")
        else:
            parts.append(np.where(empty, np.nan if plan.fill is None else plan.fill, column.values)[:, None])
    if problems:
        raise InvalidInput(f"{'; '.join(_first_few(problems))}.")
    with np.errstate(over="ignore"):
        return np.concatenate(parts, axis=1, dtype=np.float64 if codes else np.float32, casting="unsafe")


def unknown_categories(table: Table, plans: Sequence[ColumnPlan]) -> list[str]:
    """Notes on cells that are not among the categories of their plan."""
    notes = []
    for plan in plans:
        column, known = table[plan.name], frozenset(plan.categories)
        rows = np.flatnonzero(column.kinds != Kind.MISSING).tolist() if plan.what == "category" else ()
        if unknown := [text for row in rows if (text := column.text(row)) not in known]:
            counted = (
                f"1 cell ({unknown[0]!r}) is" if len(unknown) == 1 else f"{len(unknown)} cells ({unknown[0]!r}) are"
            )
            taken = f"treated as {OTHER!r}" if OTHER in plan.categories else "without a category"
            notes.append(f"column {plan.name!r}: {counted} not among the run's categories and {taken}")
    return notes


# ---- the types of columns


def _what(column: Column, clients: Clients) -> What:
    """The type of a column by majority; each client votes for the most frequent type of its cells."""
    counts = clients.counts(column.kinds, len(Kind))
    numbers = counts[:, Kind.NUMBER] + counts[:, Kind.TRUTH]
    votes = np.stack([numbers, counts[:, Kind.DATE], counts[:, Kind.TEXT]], 1)
    return _WHATS[majority(votes[votes.any(1)].argmax(1), len(_WHATS))]


def _kinds_of(what: What) -> tuple[Kind, ...]:
    return {"number": (Kind.NUMBER, Kind.TRUTH), "date": (Kind.DATE,), "category": tuple(Kind)}[what]


def _odd_cells(column: Column, what: What, clients: Clients, where: RowName) -> str:
    odd = np.flatnonzero(~np.isin(column.kinds, [Kind.MISSING, *_kinds_of(what)]))
    if not len(odd):
        return ""
    row = int(odd[0])
    others = f" ({len(odd)} such cells)" if len(odd) > 1 else ""
    return (
        f"{where(row)}, client {clients.of(row)!r}, is {column.text(row)!r}{others} where most clients have "
        f"{_ALSO[what]}: correct it, or drop the column"
    )


def _missing_message(lacking: Mapping[str, Array], where: RowName, *, codes: bool) -> str:
    """An error message: the columns with missing cells, their counts, and the remedy."""
    counts = {name: int(empty.sum()) for name, empty in lacking.items()}
    first = where(min(int(empty.argmax()) for empty in lacking.values()))
    listed, total = _few(counts), sum(counts.values())
    which = f"columns {listed}: " if len(counts) > 1 else f"column {next(iter(counts))!r}: {total} "
    cells = "cell" if total == 1 else "cells, the first"
    if codes:
        return f"{which}missing {cells} in {first}: give them their own code, or use missing='drop' (--missing drop)"
    return f"{which}missing {cells} in {first}: use missing='median', 'mean' or 'drop' (--missing)"


def _note_filled(filled: Mapping[str, tuple[int, float]], missing: str) -> list[str]:
    """Notes on imputed cells; a single note if there are many columns."""
    if len(filled) <= FEW:
        return [
            f"column {name!r}: {empty} missing {'cells are' if empty > 1 else 'cell is'} filled with the {missing}, "
            f"{fill:.6g}"
            for name, (empty, fill) in filled.items()
        ]
    each = _few({name: empty for name, (empty, _) in filled.items()})
    return [f"missing cells of {len(filled)} columns are filled with each column's {missing}: {each}"]


def _note_padded(name: str, cell: str, taken: str) -> list[str]:
    """A note that a code with leading zeros is read as a number, which loses the zeros."""
    how = f"has leading zeros and {taken}: if it is a code, add a letter in front ('c{cell}')"
    return [f"column {name!r}: {cell!r} {how}"] if cell else []


def _few(counts: Mapping[str, int]) -> str:
    """Columns with their counts; if there are many, the first ones and the number of others."""
    return ", ".join(_first_few([f"{name!r} ({count})" for name, count in counts.items()]))


def _first_few(lines: list[str]) -> list[str]:
    """The first `MOST_LISTED` lines, and the number of others."""
    return lines[:MOST_LISTED] + ([f"and {len(lines) - MOST_LISTED} more"] if len(lines) > MOST_LISTED else [])


SIGNED = re.compile(r"\s*[$€£¥]?\s*[-+]?\s*[$€£¥]?\s*\d[\d.,' ]*\s*[%‰$€£¥]?\s*")
"""A number with a currency, a percent sign or thousands separators."""
_DAYS = (
    r"\d{1,2}([./-])\d{1,2}\2\d{2}(\d\d)?",
    r"\d{4}([./])\d{1,2}\4\d{1,2}",
    r"\d{1,2}[ -](jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[ -]\d{2,4}",
)
DATED = re.compile(rf"({'|'.join(_DAYS)})([ T]\d{{1,2}}:\d\d.*)?", re.IGNORECASE)
"""A date in a local format, in which the order of day and month is ambiguous."""


def looks_like(texts: Sequence[str]) -> tuple[str, str]:
    """What most of these texts look like, `dates` or `numbers`, and the first that does; else two empty strings."""
    for looks, form in (("dates", DATED), ("numbers", SIGNED)):
        alike = [text for text in texts if form.fullmatch(text)]
        if 2 * len(alike) > len(texts):
            return looks, alike[0]
    return "", ""


def _note_likely_type(name: str, texts: Sequence[str]) -> list[str]:
    """A note if a column was read as text but looks like dates or formatted numbers."""
    looks, first = looks_like(texts)
    if not looks:
        return []
    wanted = "write 2024-12-31" if looks == "dates" else "write plain numbers"
    return [f"column {name!r} is read as text, but its cells look like {looks} ({first!r}): {wanted}"]


PARTS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev", "holdout", "eval"})
"""Values of columns that tell training rows from others."""


def _note_split(name: str, categories: Sequence[str]) -> list[str]:
    """A note if a column seems to name the split of each row, but is used as a feature."""
    if len(categories) < 2 or not PARTS.issuperset(text.lower() for text in categories):
        return []
    used = f"column {name!r} ({', '.join(map(repr, categories))}) is used as a feature, not to split rows"
    return [f"{used}: a column 'test' (true or false) marks test rows"]


# ---- statistics by sums and votes


def _refused(missing: Missing | Fills, what: What, *, known: bool) -> bool:
    """Whether a missing cell of a column is an error."""
    return missing == "refuse" or (isinstance(missing, Mapping) and what != "category" and not known)


def _fill(column: Column, clients: Clients, missing: Missing | Fills) -> float | None:
    if missing not in ("mean", "median"):
        return None
    some = column.kinds != Kind.MISSING
    values, clients = column.values[some], clients.take(some)
    if missing == "mean":
        return float(np.float32(clients.sums(values).sum() / len(values)))
    return _median(values.astype(np.float32), clients)


def _median(values: Array, clients: Clients) -> float:
    """The (lower) median, found by 32 counts over all clients of the values at most a given number."""
    bits = values.view(np.int32).astype(np.int64)
    order = np.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)  # integers in the order of the floats
    low, high = -(2**31), 2**31 - 1
    while low < high:
        middle = (low + high) // 2
        below = int(clients.sums(order <= middle).sum())
        low, high = (low, middle) if 2 * below >= len(values) else (middle + 1, high)
    found = np.array([low if low >= 0 else low ^ 0x7FFFFFFF], np.int64).astype(np.int32)
    return float(found.view(np.float32)[0])


def _categories(column: Column, clients: Clients) -> tuple[str, ...]:
    """The categories that enough clients have, sorted, followed by `other` if there are more."""
    rows = np.flatnonzero(column.kinds != Kind.MISSING)
    texts, place = np.unique([column.text(row) for row in rows.tolist()], return_inverse=True)
    counts = clients.take(rows).counts(place, max(1, len(texts)))
    votes, cells = (counts > 0).sum(0)[: len(texts)], counts.sum(0)[: len(texts)]
    enough = min(clients.n - 1, max(1, clients.n / HELD_BY))  # a category of a single client would identify it
    common = (votes > enough) & (cells >= RARE * len(rows)) & (texts != OTHER)
    kept = tuple(str(text) for text in texts[common])
    return (*kept, OTHER) if kept and not common.all() else kept


def _one_hot(column: Column, categories: Sequence[str]) -> Array:
    place = {text: number for number, text in enumerate(categories)}
    rows = np.flatnonzero(column.kinds != Kind.MISSING)
    found = np.array([place.get(column.text(row), place.get(OTHER, -1)) for row in rows.tolist()], np.int64)
    one_hot = np.zeros((len(column.kinds), len(categories)), np.float32)
    known = found >= 0
    one_hot[rows[known], found[known]] = 1
    return one_hot
