"""Read labels as classes or regression targets, as decided by the labels of most clients.

The same rule applies to all input formats. Text, booleans and integers are classes, including integers written as 1.0;
numbers with decimals are regression targets. The values that occur are the classes, in sorted order, and keep their
names: {1, 2} are two classes, "1" and "2". More than `MOST_CLASSES` integers could be either, so `task` must be given.

The majority of clients decides the type of the labels; a client whose labels would change it is rejected by name. The
classes are the union over clients. A class that only one client has is noted, and a client is rejected if more than
half of all classes occur only there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corymb.choices import Task
from corymb.data.clients import Clients, majority, spelling
from corymb.data.features import Array, blurred, require_sums
from corymb.data.prepare.cells import LARGEST_WHOLE, Column, Kind, numeral
from corymb.data.prepare.columns import looks_like
from corymb.settings import InvalidInput, require

RowName = Callable[[int], str]
"""Names a row by its number, for error messages."""
MOST_CLASSES = 20
"""With more distinct integers than this, the user must give the task."""
_TEXT, _DECIMAL, _WHOLE = range(3)  # the more general type comes first: it wins a tie
_NAMES = ("text", "decimal numbers", "integers")


class Labels(NamedTuple):
    """Labels as used in training."""

    y: Tensor
    task: Task
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Notes about the classes."""


def read_labels(
    cells: Column,
    clients: Clients,
    task: Task | Literal["auto"] = "auto",
    classes: Sequence[str] = (),
    where: RowName = lambda row: f"row {row}",
) -> Labels:
    """Convert labels of any type to classes or targets."""
    tasks = ("auto", "classification", "regression", "density")
    require(task in tasks, f"task={task!r}: wanted one of {', '.join(map(repr, tasks))}.")
    if task == "density":  # the labels are true clusters, used only in evaluation
        for row in _decimal(cells)[:1]:
            raise InvalidInput(
                f"The label in {where(int(row))} is {numeral(float(cells.values[row]))}: where examples are clustered, "
                "labels are their true clusters, integers or text. Leave the column out by naming the features "
                "(--features a,b), or rename it to use it as a feature."
            )
        return read_labels(cells, clients, "classification", classes, where)._replace(task="density")
    _check_present(cells, where)
    if task == "auto" and not classes:
        task = _task(cells, clients, where)
        decided = False
    else:
        task, decided = task if task != "auto" else "classification", True
    if task == "regression":
        constant = bool((cells.values == cells.values[0]).all())
        return Labels(_targets(cells, where), "regression", (), _all_alike(cells) if constant else ())
    named, codes = _named(cells, where)
    if classes:
        return Labels(_among(named, codes, tuple(classes), where), "classification", tuple(classes))
    if not decided:
        _check_classes(named, codes, cells, clients)
    if set(cells.kinds) == {Kind.TRUTH}:
        return Labels(torch.from_numpy(cells.values.astype(np.int64)), "classification", ("false", "true"))
    notes = (*_held_by_one(named, codes, clients), *_spelled(named)) if len(named) > 1 else _all_alike(cells)
    notes += _note_padded(cells) + (() if decided else _note_counts(named, codes, cells))
    return Labels(torch.from_numpy(codes), "classification", named, notes)


def _spelled(named: Sequence[str]) -> tuple[str, ...]:
    """A note about classes that may be one class in two spellings."""
    seen = dict[str, str]()
    pairs = [(first, name) for name in named if (first := seen.setdefault(spelling(name), name)) != name]
    how = "differ only in capitals, blanks or leading zeros and count as two: write them in one way if they are one"
    return tuple(f"classes {one!r} and {other!r} {how}" for one, other in pairs[:1])


COUNTS = 6
"""The smallest number of different integers among labels for which they may be counts or grades."""
PEAK = 3
"""Frequencies of counts rise to a peak and fall; the peak must be at least this many times the lowest frequency."""


def _note_counts(named: Sequence[str], codes: Array, cells: Column) -> tuple[str, ...]:
    """A note that integers which may be counts are taken as classes, which ignores their order and distances."""
    if len(named) < COUNTS or (cells.kinds != Kind.NUMBER).any() or np.ptp(cells.values) >= 2 * len(named):
        return ()
    often = np.bincount(codes)
    peak, change, error = int(often.argmax()), np.diff(often), np.sqrt(often[1:] + often[:-1])
    one_peak = (change[:peak] > -2 * error[:peak]).all() and (change[peak:] < 2 * error[peak:]).all()
    if not one_peak or often.max() < PEAK * often.min():
        return ()
    note = f"the labels {named[0]} to {named[-1]} are taken as {len(named)} classes"
    return (f"{note}: if they are counts or grades, use task='regression' (--task regression)",)


def _note_padded(cells: Column) -> tuple[str, ...]:
    """A note that classes written with leading zeros are read as numbers and named without the zeros."""
    if not cells.padded:
        return ()
    same = (
        f"{cells.padded!r} and {numeral(float(cells.padded))!r} are one class, named {numeral(float(cells.padded))!r}"
    )
    return (f"labels with leading zeros are read as numbers: {same}; add a letter in front to keep them apart",)


def no_labels(rows: int) -> Labels:
    """Placeholder labels for examples without labels, whose density is to be learned."""
    return Labels(torch.zeros(rows, dtype=torch.int64), "density", ())


def _check_present(cells: Column, where: RowName) -> None:
    rows = np.flatnonzero(cells.kinds == Kind.MISSING)
    if len(rows):
        others = f" ({len(rows)} are)" if len(rows) > 1 else ""
        raise InvalidInput(
            f"The label in {where(int(rows[0]))} is missing{others}: fill it in, or drop such rows "
            "(missing='drop', --missing drop)."
        )
    if not np.isin(cells.kinds, [Kind.TEXT, Kind.DATE]).any():  # among text, inf is just another word
        for row in np.flatnonzero(np.isinf(cells.values))[:1]:
            raise InvalidInput(
                f"The label in {where(int(row))} is {cells.values[row]}: wanted a finite number or text."
            )


# ---- the type, by the majority


def _task(cells: Column, clients: Clients, where: RowName) -> Task:
    """The task that the labels of most clients imply; rejects clients whose labels contradict it."""
    votes = _votes(cells, clients)
    kind = majority(votes[votes >= 0], 3)
    odd = {_TEXT: votes == _DECIMAL, _DECIMAL: votes == _TEXT, _WHOLE: (votes == _TEXT) | (votes == _DECIMAL)}[kind]
    if kind == _WHOLE and not (votes == _TEXT).any() and _distinct(cells) > MOST_CLASSES:
        odd = votes == _TEXT  # many values, and some with decimals: measurements
        kind = _DECIMAL if (votes == _DECIMAL).any() else kind
    for client in np.flatnonzero(odd)[:1]:
        row = _witness(cells, clients, client, votes[client])
        raise InvalidInput(
            f"Client {clients.names[client]!r} has the label {cells.text(row)!r} ({where(row)}), where most clients "
            f"have {_NAMES[kind]}: correct its labels or leave it out; if they are right, give task='classification' "
            "or 'regression'."
        )
    return "regression" if kind == _DECIMAL else "classification"


def _votes(cells: Column, clients: Clients) -> Array:
    """The type of each client's labels; -1 for a client without labels."""
    fraction = (cells.kinds == Kind.NUMBER) & (cells.values != np.floor(cells.values))
    words = (cells.kinds == Kind.TEXT) | (cells.kinds == Kind.DATE)
    rows, text, decimal = (clients.sums(mask) for mask in (np.ones(len(words)), words, fraction))
    votes = np.where(decimal > 0, _DECIMAL, np.where(text > 0, _TEXT, _WHOLE))
    return np.where(rows > 0, votes, -1)


def _witness(cells: Column, clients: Clients, client: int, vote: int) -> int:
    """A row that shows the type of a client's labels."""
    mine = clients.codes == client
    text = (cells.kinds == Kind.TEXT) | (cells.kinds == Kind.DATE)
    shows = text if vote == _TEXT else ~text & (cells.values != np.floor(cells.values))
    return int(np.flatnonzero(mine & shows)[0])


def _distinct(cells: Column) -> int:
    return len(np.unique(cells.values[np.isfinite(cells.values)]))


# ---- targets and classes


def _targets(cells: Column, where: RowName) -> Tensor:
    for row in np.flatnonzero(~np.isin(cells.kinds, [Kind.NUMBER, Kind.TRUTH]))[:1]:
        raise InvalidInput(
            f"The label in {where(int(row))} is the text {cells.text(int(row))!r}: regression needs numbers; for "
            "classes use task='classification'."
        )
    if bool(blurred(cells.values)):
        low, high = float(cells.values.min()), float(cells.values.max())
        raise InvalidInput(
            f"The labels, {numeral(low)} to {numeral(high)}, differ only beyond the 7 digits of float32: "
            f"subtract {numeral(float(f'{low:.3g}'))} from them first."
        )
    require_sums(cells.values[:, None], ["the labels"])
    with np.errstate(over="ignore"):
        return torch.from_numpy(cells.values.astype(np.float32))


def _decimal(cells: Column) -> Array:
    """The rows of numbers with decimals, if all labels are numbers."""
    if np.isin(cells.kinds, [Kind.TEXT, Kind.DATE, Kind.TRUTH]).any():
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(cells.values != np.floor(cells.values))


def _named(cells: Column, where: RowName) -> tuple[tuple[str, ...], Array]:
    """The classes that occur, with numbers in numerical order, and each label's index among them."""
    if np.isin(cells.kinds, [Kind.TEXT, Kind.DATE, Kind.TRUTH]).any():
        texts, codes = np.unique([cells.text(row) for row in range(len(cells.kinds))], return_inverse=True)
        return tuple(str(text) for text in texts), codes.astype(np.int64)
    for row in _decimal(cells)[:1]:
        raise InvalidInput(
            f"The label in {where(int(row))} is {numeral(float(cells.values[row]))}: classes are integers or text; for "
            "targets use task='regression'."
        )
    for row in np.flatnonzero(np.abs(cells.values) > LARGEST_WHOLE)[:1]:
        raise InvalidInput(
            f"The label in {where(int(row))} is {cells.values[row]:.6g}: integers beyond 2**53 cannot be distinguished "
            "as classes; renumber them, or give them as text."
        )
    numbers, codes = np.unique(cells.values, return_inverse=True)
    return tuple(numeral(float(number)) for number in numbers), codes.astype(np.int64)


def _among(named: tuple[str, ...], codes: Array, classes: tuple[str, ...], where: RowName) -> Tensor:
    """Indices among the given classes; integers that are not names of classes are taken as indices."""
    number = {str(int(name)): place for place, name in enumerate(classes) if name.isdecimal()}  # as labels are read
    number |= {name: place for place, name in enumerate(classes)}
    if not set(named) <= set(number) and all(name.isdigit() and int(name) < len(classes) for name in named):
        number = {name: int(name) for name in named}
    for code, name in enumerate(named):
        if name not in number:
            row = int(np.flatnonzero(codes == code)[0])
            raise InvalidInput(f"The label in {where(row)} is {name!r}, which is not one of the classes {classes}.")
    return torch.from_numpy(np.array([number[name] for name in named], dtype=np.int64)[codes])


def _check_classes(named: tuple[str, ...], codes: Array, cells: Column, clients: Clients) -> None:
    """Reject a client with more than half of all classes to itself, and many integers whose task is ambiguous."""
    has = clients.counts(codes, len(named)) > 0
    own = (has & (has.sum(0) == 1)).sum(1)  # n: classes that no other client has
    for client in np.flatnonzero(2 * own > len(named))[: 1 if clients.n > 2 else 0]:
        raise InvalidInput(
            f"Client {clients.names[client]!r} has {own[client]} classes that no other client has, while all others "
            f"have {len(named) - own[client]}: correct its labels or leave it out; if they are right, give "
            "task='classification'."
        )
    if len(named) <= MOST_CLASSES:
        return
    dates = 2 * (cells.kinds == Kind.DATE).sum() > len(cells.kinds)
    looks, first = ("dates", named[0]) if dates else looks_like(named)
    whole = not np.isin(cells.kinds, [Kind.TEXT, Kind.DATE]).any()
    require(
        whole or not looks,
        f"The labels are {len(named)} different texts that look like {looks} ({first!r}): write plain numbers (for "
        "dates, days since one of them) for a regression, or give task='classification' (--task).",
    )
    require(
        not whole,
        f"The labels are {len(named)} different integers, {named[0]} to {named[-1]}: give task='classification' if "
        "they are classes, or task='regression' if they are numbers (--task).",
    )


def _all_alike(cells: Column) -> tuple[str, ...]:
    return (f"every label is {cells.text(0)}: there is nothing to learn",)


def _held_by_one(named: tuple[str, ...], codes: Array, clients: Clients) -> tuple[str, ...]:
    """A note on classes that occur at a single client."""
    has = clients.counts(codes, len(named)) > 0
    alone = np.flatnonzero(has.sum(0) == 1)
    if not len(alone) or clients.n < 3:
        return ()
    first = int(alone[0])
    example = f"class {named[first]!r} occurs only at client {clients.names[int(has[:, first].argmax())]!r}"
    return (f"{len(alone)} classes occur only at a single client; {example}" if len(alone) > 1 else example,)
