"""Columns of a table as numbers: what each column is, by a vote of the clients, and what stands for a missing cell.

Every client says what most cells of a column are at it, and most clients decide. Numbers, booleans and dates are one
feature each. Text is a feature for each category: clients vote for the categories they have, those that are rare go
together as `other`. Means for missing cells are sums over clients; medians are found by counting, bit by bit, how many
cells lie below a number. Only training rows are asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from corymb.choices import Missing
from corymb.data.clients import Clients, majority
from corymb.data.features import Array
from corymb.data.prepare.cells import Column, Kind
from corymb.settings import InvalidInput, require

What = Literal["number", "date", "category"]
RowName = Callable[[int], str]
"""Names a row by its number, for error messages."""
Table = Mapping[str, Column]

OTHER = "other"
"""The category of all that are rare."""
HELD_BY = 20
"""A category is kept if more than one client has it, and more than one in so many, ..."""
RARE = 0.01
"""... and at least this share of the training rows."""
FEW = 3
"""Of so many columns with missing cells each is said what they are taken as; of more, one line names them all."""
MOST_TOLD = 20
"""So many columns are named in a line: a table may have thousands."""
_WHATS: tuple[What, ...] = ("number", "date", "category")
_ALSO = {"number": "numbers", "date": "dates"}


class ColumnPlan(NamedTuple):
    """How one column becomes features; plain values, kept with a run for new examples."""

    name: str
    what: What
    fill: float | None = None
    """What a missing number or date is taken to be; None: it is refused."""
    categories: tuple[str, ...] = ()
    """A feature each; a cell of none of them is `other`, if that is one, and else 0 in all."""

    @property
    def features(self) -> list[str]:
        """The names of the features."""
        return [f"{self.name}={one}" for one in self.categories] if self.what == "category" else [self.name]

    @staticmethod
    def read(values: Mapping[str, Any]) -> ColumnPlan:
        """From a mapping that JSON holds."""
        return ColumnPlan(**{**values, "categories": tuple(values["categories"])})


def learn_columns(
    table: Table, clients: Clients, train: Array, missing: Missing, where: RowName, *, codes: bool = False
) -> tuple[tuple[ColumnPlan, ...], list[str]]:
    """How to turn a table into features, and what is to be said about it; all columns that cannot be are named.

    `train` are the numbers of the training rows. Of codes there is no mean and no median.
    """
    plans, notes, problems = [], [], []
    lacking: dict[str, Array] = {}
    filled: dict[str, tuple[int, float]] = {}
    without: dict[str, int] = {}
    for name, column in table.items():
        what = _what(column, clients)
        empty = column.kinds == Kind.MISSING
        if problem := _odd_cells(column, what, clients, where) or ("it has no values: drop it" if empty.all() else ""):
            problems.append(f"column {name!r}: {problem}")
            continue
        if (missing == "refuse" or codes) and empty.any():
            lacking[name] = empty
            continue
        mine, owners = column.take(train), clients.take(train)
        if missing in ("mean", "median") and bool((mine.kinds == Kind.MISSING).all()):
            problems.append(f"column {name!r}: no training row has a value: drop it")
        elif what != "category":
            fill = _fill(mine, owners, missing)
            plans.append(ColumnPlan(name, what, fill))
            notes += [] if codes else _say_padded(name, column.padded, "is read as a number")
            if fill is not None and empty.any():
                filled[name] = (int(empty.sum()), fill)
        elif kept := _categories(mine, owners):
            plans.append(ColumnPlan(name, what, None, kept))
            notes += _say_what_text_looks_like(name, kept) + _say_split(name, kept)
            notes += _say_padded(name, column.padded, "counts as the number")
            if empty.any():
                without[name] = int(empty.sum())
        else:
            notes.append(f"column {name!r} is not used: it is text, and no category of it is common among clients")
            notes += _say_what_text_looks_like(name, [mine.text(row) for row in range(min(len(train), 100))])
    if bad := len(problems) + len(lacking):
        many = f"{bad} columns cannot be used: " if bad > 1 else ""
        more = [f"and {len(problems) - MOST_TOLD} more"] if len(problems) > MOST_TOLD else []
        problems = problems[:MOST_TOLD] + more + ([_say_missing(lacking, where, codes=codes)] if lacking else [])
        raise InvalidInput(f"{many}{'; '.join(problems)}.")
    notes += _say_filled(filled, missing)
    if without:
        notes.append(f"missing cells of text belong to no category: {_few(without)}")
    require(len(plans) > 0, "No column can be used as a feature: each is text without common categories.")
    return tuple(plans), notes


def encode(table: Table, plans: Sequence[ColumnPlan], where: RowName, *, codes: bool = False) -> Array:
    """[rows, features]: the table as `plans` say, or one error that names all that does not fit.

    float32, but for codes: float64 keeps those beyond 2**24 apart.
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
        more = [f"and {len(problems) - MOST_TOLD} more"] if len(problems) > MOST_TOLD else []
        raise InvalidInput(f"{'; '.join(problems[:MOST_TOLD] + more)}.")
    with np.errstate(over="ignore"):
        return np.concatenate(parts, axis=1, dtype=np.float64 if codes else np.float32, casting="unsafe")


def unknown_categories(table: Table, plans: Sequence[ColumnPlan]) -> list[str]:
    """What is to be said of text that no category of a plan stands for."""
    notes = []
    for plan in plans:
        column, known = table[plan.name], frozenset(plan.categories)
        rows = np.flatnonzero(column.kinds != Kind.MISSING).tolist() if plan.what == "category" else ()
        if unknown := [text for row in rows if (text := column.text(row)) not in known]:
            counted = (
                f"1 cell ({unknown[0]!r}) is" if len(unknown) == 1 else f"{len(unknown)} cells ({unknown[0]!r}) are"
            )
            taken = f"taken as {OTHER!r}" if OTHER in plan.categories else "left without one"
            notes.append(f"column {plan.name!r}: {counted} of no category that the run knew, and {taken}")
    return notes


# ---- what a column is


def _what(column: Column, clients: Clients) -> What:
    """What most clients say of it; of each client's cells the most numerous kind counts."""
    counts = clients.counts(column.kinds, len(Kind))
    numbers = counts[:, Kind.NUMBER] + counts[:, Kind.TRUTH]
    said = np.stack([numbers, counts[:, Kind.DATE], counts[:, Kind.TEXT]], 1)
    return _WHATS[majority(said[said.any(1)].argmax(1), len(_WHATS))]


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


def _say_missing(lacking: Mapping[str, Array], where: RowName, *, codes: bool) -> str:
    """Which columns lack cells, how many each, and what to do about it, which is the same for all."""
    counts = {name: int(empty.sum()) for name, empty in lacking.items()}
    first = where(min(int(empty.argmax()) for empty in lacking.values()))
    said, total = _few(counts), sum(counts.values())
    which = f"columns {said}: " if len(counts) > 1 else f"column {next(iter(counts))!r}: {total} "
    cells = "cell" if total == 1 else "cells, the first"
    if codes:
        return (
            f"{which}missing {cells} in {first}: give them a code of their own, or say missing='drop' (--missing drop)"
        )
    return f"{which}missing {cells} in {first}: say missing='median', 'mean' or 'drop' (--missing)"


def _say_filled(filled: Mapping[str, tuple[int, float]], missing: Missing) -> list[str]:
    """What missing cells are taken as; one line where there are many columns."""
    if len(filled) <= FEW:
        return [
            f"column {name!r}: {empty} missing cells are taken as the {missing}, {fill:.6g}"
            for name, (empty, fill) in filled.items()
        ]
    each = _few({name: empty for name, (empty, _) in filled.items()})
    return [f"missing cells of {len(filled)} columns are taken as each column's {missing}: {each}"]


def _say_padded(name: str, cell: str, taken: str) -> list[str]:
    """That a code with zeros in front is a number here, whose zeros are lost."""
    how = f"has zeros in front and {taken}: if it is a code, write it with a letter ('c{cell}')"
    return [f"column {name!r}: {cell!r} {how}"] if cell else []


def _few(counts: Mapping[str, int]) -> str:
    """Columns with their counts; of many, the first ones and how many more there are."""
    said = [f"{name!r} ({count})" for name, count in counts.items()]
    more = [f"and {len(said) - MOST_TOLD} more"] if len(said) > MOST_TOLD else []
    return ", ".join(said[:MOST_TOLD] + more)


SIGNED = re.compile(r"\s*[$€£¥]?\s*[-+]?\s*[$€£¥]?\s*\d[\d.,' ]*\s*[%‰$€£¥]?\s*")
"""A number as people write it, with a currency, a percent sign or marks between thousands."""
_DAYS = (
    r"\d{1,2}([./-])\d{1,2}\2\d{2}(\d\d)?",
    r"\d{4}([./])\d{1,2}\4\d{1,2}",
    r"\d{1,2}[ -](jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[ -]\d{2,4}",
)
DATED = re.compile(rf"({'|'.join(_DAYS)})([ T]\d{{1,2}}:\d\d.*)?", re.IGNORECASE)
"""A day as people write it: which of its numbers is the month, nobody knows."""


def looks_like(texts: Sequence[str]) -> tuple[str, str]:
    """What most of these texts are to a reader, `dates` or `numbers`, and the first of them; else two empty texts."""
    for looks, form in (("dates", DATED), ("numbers", SIGNED)):
        alike = [text for text in texts if form.fullmatch(text)]
        if 2 * len(alike) > len(texts):
            return looks, alike[0]
    return "", ""


def _say_what_text_looks_like(name: str, texts: Sequence[str]) -> list[str]:
    looks, first = looks_like(texts)
    if not looks:
        return []
    wanted = "write 2024-12-31" if looks == "dates" else "write plain numbers"
    return [f"column {name!r} is taken as text, but its cells look like {looks} ({first!r}): {wanted}"]


PARTS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev", "holdout", "eval"})
"""What columns say that tell training rows from others."""


def _say_split(name: str, categories: Sequence[str]) -> list[str]:
    """That a column which says what a row is for is a feature like any other here."""
    if len(categories) < 2 or not PARTS.issuperset(text.lower() for text in categories):
        return []
    said = f"column {name!r} ({', '.join(map(repr, categories))}) is used as a feature, not to split rows"
    return [f"{said}: a column 'test' (true or false) marks test rows"]


# ---- statistics by sums and votes


def _fill(column: Column, clients: Clients, missing: Missing) -> float | None:
    if missing not in ("mean", "median"):
        return None
    some = column.kinds != Kind.MISSING
    values, clients = column.values[some], clients.take(some)
    if missing == "mean":
        return float(np.float32(clients.sums(values).sum() / len(values)))
    return _median(values.astype(np.float32), clients)


def _median(values: Array, clients: Clients) -> float:
    """The (lower) median, found in 32 questions to all clients: how many of your values are at most this?"""
    bits = values.view(np.int32).astype(np.int64)
    order = np.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)  # whole numbers in the order of the floats
    low, high = -(2**31), 2**31 - 1
    while low < high:
        middle = (low + high) // 2
        below = int(clients.sums(order <= middle).sum())
        low, high = (low, middle) if 2 * below >= len(values) else (middle + 1, high)
    found = np.array([low if low >= 0 else low ^ 0x7FFFFFFF], np.int64).astype(np.int32)
    return float(found.view(np.float32)[0])


def _categories(column: Column, clients: Clients) -> tuple[str, ...]:
    """The categories that enough clients vote for, in the order of their names, and `other` where there are more."""
    rows = np.flatnonzero(column.kinds != Kind.MISSING)
    texts, place = np.unique([column.text(row) for row in rows.tolist()], return_inverse=True)
    counts = clients.take(rows).counts(place, max(1, len(texts)))
    votes, cells = (counts > 0).sum(0)[: len(texts)], counts.sum(0)[: len(texts)]
    enough = min(clients.n - 1, max(1, clients.n / HELD_BY))  # a category of one client alone says who it is
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
