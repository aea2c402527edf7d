"""What is to be predicted: classes or numbers, decided by the type of the labels.

One rule holds for arrays, folders and tables. Integers, booleans and text are classes; floats are regression targets,
even where all of them are whole numbers (`task="classification"` says otherwise, and then takes whole floats as
classes). Integer classes keep their numbers, so that class 3 is 3 whether or not class 2 occurs; text classes are
numbered in sorted order and keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corymb.data.features import Array
from corymb.settings import InvalidInput, require

Task = Literal["classification", "regression", "density"]
"""A density is learned from features alone; labels, where there are any, are the true clusters of examples."""
RowName = Callable[[int], str]
"""Names a row by its number, for error messages."""

_SPARSE = 1000  # labels such as the years 1994 and 1995 count something else than classes


class Labels(NamedTuple):
    """Labels in the form that training takes."""

    y: Tensor
    task: Task
    classes: tuple[str, ...]


def read_labels(
    values: Array,
    task: Task | Literal["auto"] = "auto",
    classes: Sequence[str] = (),
    where: RowName = lambda row: f"row {row}",
) -> Labels:
    """Labels of any type as classes or targets."""
    tasks = ("auto", "classification", "regression", "density")
    require(task in tasks, f"task={task!r}: wanted one of {', '.join(map(repr, tasks))}.")
    if task == "density":  # classes, which only evaluation looks at
        return read_labels(values, "classification", classes, where)._replace(task="density")
    values = _plain(values)
    if task == "regression" or (task == "auto" and values.dtype.kind == "f"):
        return Labels(_targets(values, where), "regression", ())
    if values.dtype.kind in "Ub":
        return _named(values, classes, where)
    return _numbered(values, classes, where)


def no_labels(rows: int) -> Labels:
    """For examples without labels, whose density is to be learned."""
    return Labels(torch.zeros(rows, dtype=torch.int64), "density", ())


def _plain(values: Array) -> Array:
    """One label for each row, as a number, a boolean or text."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    require(values.ndim == 1, f"Labels have the shape {list(values.shape)}: wanted one label for each example.")
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        return values.astype(np.str_)
    require(values.dtype.kind in "biufU", f"Labels are of type {values.dtype}: wanted numbers, booleans or text.")
    return values


def _targets(values: Array, where: RowName) -> Tensor:
    if values.dtype.kind == "U":
        row = next((row for row, value in enumerate(values) if not is_number(value)), 0)
        raise InvalidInput(
            f"The label in {where(row)} is the text {str(values[row])!r}: regression wants numbers; for classes use "
            "task='classification'."
        )
    return torch.from_numpy(values.astype(np.float32))


def _named(values: Array, classes: Sequence[str], where: RowName) -> Labels:
    if values.dtype.kind == "b":
        values, classes = np.where(values, "true", "false"), classes or ("false", "true")
    found, codes = np.unique(values, return_inverse=True)
    names = tuple(classes) or tuple(str(name) for name in found)
    number = {name: code for code, name in enumerate(names)}
    for code, name in enumerate(found):
        if str(name) not in number:
            row = int(np.flatnonzero(codes == code)[0])
            raise InvalidInput(f"The label in {where(row)} is {str(name)!r}, which is not one of the classes {names}.")
    lookup = np.array([number[str(name)] for name in found], dtype=np.int64)
    return Labels(torch.from_numpy(lookup[codes]), "classification", names)


def _numbered(values: Array, classes: Sequence[str], where: RowName) -> Labels:
    with np.errstate(invalid="ignore"):
        codes = values.astype(np.int64)
    for row in np.flatnonzero((codes != values) | (codes < 0))[:1]:
        raise InvalidInput(
            f"The label in {where(int(row))} is {values[row]}: classes are whole numbers from 0, or text; "
            "for targets use task='regression'."
        )
    return Labels(torch.from_numpy(codes), "classification", tuple(classes) or _numerals(codes))


def _numerals(codes: Array) -> tuple[str, ...]:
    top = int(codes.max(initial=-1)) + 1
    distinct = len(np.unique(codes)) if top > _SPARSE else top
    require(
        top <= 2 * distinct,
        f"Labels run up to {top - 1}, but only {distinct} values occur: number the classes from 0, give them as text, "
        "or use task='regression'.",
    )
    return tuple(str(code) for code in range(top))


def from_text(cells: Sequence[str], where: RowName) -> Array:
    """The labels of a text file: integers if all of them are, otherwise numbers if all of them are, otherwise text."""
    for row, cell in enumerate(cells):
        if not cell.strip():
            raise InvalidInput(f"The label in {where(row)} is missing: fill it in or drop the row.")
    for kind in (int, float):
        try:
            return np.array([kind(cell) for cell in cells])
        except ValueError:
            continue
    _refuse_mixture(cells, where)
    return np.array([cell.strip() for cell in cells])


def _refuse_mixture(cells: Sequence[str], where: RowName) -> None:
    """Refuse text among decimal numbers: one 'n/a' must not turn every measurement into a class of its own."""
    numbers = [is_number(cell) for cell in cells]
    if any(
        is_number and not cell.strip().lstrip("+-").isdigit() for is_number, cell in zip(numbers, cells, strict=True)
    ):
        row = numbers.index(False)
        raise InvalidInput(f"The label in {where(row)} is {cells[row]!r} where others are decimal numbers: correct it.")


def is_number(cell: object) -> bool:
    """Whether a cell of a table can be read as a number."""
    try:
        float(cell)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return False
    return True
