"""Validate and convert users' images and labels to the common form that all partitioners take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from corymb.core.pixels import MAX_PIXEL
from corymb.data.clients import Values
from corymb.data.features import Array, as_array
from corymb.data.prepare.pictures import channels_first, is_picture
from corymb.settings import InvalidInput, require


class Labelled(NamedTuple):
    """Labelled training and test examples, before they are divided among clients."""

    x: Array
    y: Array
    """int64 [N]: indices of the classes."""
    x_test: Array
    y_test: Array
    classes: tuple[str, ...]


def labelled_images(x: Values, y: Values, x_test: Values, y_test: Values, classes: Sequence[str]) -> Labelled:
    """Images as uint8 [N, C, H, W] with their labels."""
    return _labelled(as_images(x), y, as_images(x_test), y_test, classes)


def labelled_rows(x: Values, y: Values, x_test: Values, y_test: Values, classes: Sequence[str]) -> Labelled:
    """Examples of any kind with their labels; those with rows and columns are images, converted to channels first."""
    return _labelled(_rows(x), y, _rows(x_test), y_test, classes)


def _rows(x: Values) -> Array:
    array = _array("Examples", x)
    require(array.ndim >= 2, f"Examples have the shape {list(array.shape)}: wanted [rows, features].")
    return channels_first(array) if is_picture(array) else array


def _labelled(x: Array, y: Values, x_test: Array, y_test: Values, classes: Sequence[str]) -> Labelled:
    named, (labels, held) = as_labels(classes, y, y_test)
    require_one_each(len(x), labels=labels)
    require_one_each(len(x_test), labels=held)
    one, other = list(x.shape[1:]), list(x_test.shape[1:])
    require(one == other, f"Test examples have the shape {other}, training examples {one}: they must agree.")
    return Labelled(x, labels, x_test, held, named)


def as_images(x: Values) -> Array:
    """Convert images in any layout to uint8 [N, C, H, W]; integers from 0 to 255 are accepted as bytes."""
    array = _array("Images", x)
    right = array.ndim in (3, 4) and (array.dtype == np.uint8 or _are_bytes(array))
    require(
        right,
        f"Images are {array.dtype} {list(array.shape)}: wanted uint8, 0 to {MAX_PIXEL}, as [N, H, W], [N, C, H, W] or "
        "[N, H, W, C].",
    )
    return channels_first(array.astype(np.uint8, copy=False))


def _are_bytes(array: Array) -> bool:
    return array.dtype.kind in "iu" and (not array.size or (int(array.min()) >= 0 and int(array.max()) <= MAX_PIXEL))


def as_labels(classes: Sequence[str], *parts: Values) -> tuple[tuple[str, ...], list[Array]]:
    """The classes, and the labels of each part as indices among them, int64 [N].

    Labels are integers from 0, also if written as 1.0, or names. Names are looked up in `classes`; if none are given,
    the names that occur are the classes, in sorted order.
    """
    arrays = [_array("Labels", part) for part in parts]
    if any(array.dtype.kind in "UO" and array.size for array in arrays):
        return _of_names(classes, arrays)
    codes = [whole("Labels", array) for array in arrays]
    top = max((int(code.max()) for code in codes if len(code)), default=-1)
    fits = not classes or top < len(classes)
    require(fits, f"A label is {top}: wanted 0 to {len(classes) - 1}, a position among the {len(classes)} classes.")
    return tuple(classes) or tuple(str(label) for label in range(top + 1)), codes


def _of_names(classes: Sequence[str], arrays: Sequence[Array]) -> tuple[tuple[str, ...], list[Array]]:
    for array in arrays:
        text = array.ndim == 1 and all(isinstance(name, str) for name in array.tolist())
        require(text, f"Labels are {array.dtype} {list(array.shape)}: wanted one whole number or one name for each.")
    known = tuple(classes) or tuple(sorted({name for array in arrays for name in array.tolist()}))
    place = {name: position for position, name in enumerate(known)}
    for name in sorted({name for array in arrays for name in array.tolist()} - set(place)):
        raise InvalidInput(f"A label is {name!r}, which is not one of the {len(known)} classes: {', '.join(known)}.")
    return known, [np.array([place[name] for name in array.tolist()], dtype=np.int64) for array in arrays]


def whole(what: str, values: Values) -> Array:
    """Convert to non-negative int64, one for each row; numbers with a fraction are rejected, not truncated."""
    array = _array(what, values)
    wanted = "wanted one whole number from 0 on for each."
    require(array.ndim == 1, f"{what} have the shape {list(array.shape)}: {wanted}")
    require(array.dtype.kind in "biuf" or not array.size, f"{what} are of type {array.dtype}: {wanted}")
    with np.errstate(invalid="ignore"):
        codes = array.astype(np.int64)
        wrong = np.flatnonzero((codes != array) | (codes < 0))
    for row in wrong[:1]:
        raise InvalidInput(f"{what}: row {row} is {array[row]:g}: {wanted}")
    return codes


def require_one_each(rows: int, **others: Array) -> None:
    """Require as many labels (or other values) as examples."""
    for what, values in others.items():
        require(len(values) == rows, f"There are {rows} examples and {len(values)} {what}: give one for each.")


def _array(what: str, values: Values) -> Array:
    try:
        return as_array(values)
    except ValueError as error:
        raise InvalidInput(f"{what} do not form an array ({error}): wanted the same shape for each.") from None
