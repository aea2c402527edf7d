"""Convert users' arrays to numpy arrays and to features for training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from corymb.core.rules import MAX_MAGNITUDE
from corymb.settings import InvalidInput, require

Array = np.ndarray[Any, Any]
_NUMPY = (torch.float16, torch.float32, torch.float64)
"""Floating types that numpy has too; others, such as bfloat16, fit in float32."""


def as_array(values: ArrayLike | Tensor) -> Array:
    """A numpy array of numpy, torch, scipy or list values, without a copy where possible.

    What is masked is missing, and what a sparse matrix does not hold is 0.

    >>> as_array(torch.ones(2, dtype=torch.bfloat16)).dtype
    dtype('float32')
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        plain: Array = np.asarray(values.data).astype(np.float64 if values.dtype.kind in "biuf" else object)
        plain[np.ma.getmaskarray(values)] = np.nan if plain.dtype.kind == "f" else None
        return plain
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        values = values.toarray()
    if not isinstance(values, Tensor):
        return np.asarray(values)
    tensor = values.detach().cpu()
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    unknown = tensor.is_floating_point() and tensor.dtype not in _NUMPY
    return (tensor.float() if unknown else tensor).numpy()


LOST = 0.02
"""Rounding errors above this fraction of the range lose the differences: about a tenth of a standard deviation."""


def blurred(values: Array) -> Array:
    """Which columns lose their differences in float32: their numbers are large and differ by little.

    >>> blurred(np.array([[1e9, 1e9, 7.1], [1e9 + 1, 2e9, 7.1]]))
    array([ True, False, False])
    """
    wide = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rounding = np.fmax.reduce(np.abs(wide - wide.astype(np.float32)), axis=0, initial=0)
        spread = np.fmax.reduce(wide, axis=0) - np.fmin.reduce(wide, axis=0)
        lost: Array = np.isfinite(rounding) & (spread > 0) & (rounding > LOST * spread)
    return lost


def require_sums(values: Array, names: Sequence[str]) -> None:
    """Reject columns whose numbers are mostly too large to be summed; a few such numbers are errors of some clients."""
    if values.dtype.itemsize < 4 or not values.size:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        top = np.maximum(np.fmax.reduce(values, axis=0), -np.fmin.reduce(values, axis=0).astype(np.float64))
        large = np.flatnonzero(
            (top > MAX_MAGNITUDE) & (top <= np.finfo(np.float32).max)
        )  # larger ones are infinite in float32 and reported as such
        usual = {names[place]: np.nanmedian(np.abs(values[:, place])) for place in large.tolist()}
    beyond = [f"{name} (such as {size:.3g})" for name, size in usual.items() if size > MAX_MAGNITUDE]
    require(
        not beyond,
        f"Numbers of {', '.join(beyond[:3])} are too large to be summed: wanted at most {MAX_MAGNITUDE:g}; "
        "use larger units.",
    )


def as_codes(x: ArrayLike | Tensor, where: Callable[[int], str]) -> Tensor:
    """Convert codes, integers from 0 that stand for something such as words, to int64 for a model that embeds them."""
    array = as_array(x)
    require(array.dtype.kind in "biuf", f"Features are of type {array.dtype}: wanted codes, integers from 0.")
    _require_axes(array)
    with np.errstate(invalid="ignore"):
        codes = array.astype(np.int64)
        wrong = (codes != array) | (array < 0)  # NaN, fractions, and numbers beyond 64 bits
    if wrong.any():
        row, *place = (int(axis[0]) for axis in wrong.nonzero())
        raise InvalidInput(
            f"A feature in {where(row)} is {array[(row, *place)]:g}: codes (scale='codes') are integers from 0; give "
            "missing or unknown values their own code."
        )
    return torch.from_numpy(codes)


def as_features(x: ArrayLike | Tensor) -> Tensor:
    """Convert numbers of any type to float32 via float64, so that equal numbers get equal bits whatever their type."""
    array = as_array(x)
    require(array.dtype.kind in "biuf", f"Features are of type {array.dtype}: wanted numbers.")
    _require_axes(array)
    if array.dtype.itemsize > 4 and array.dtype.kind in "iu":
        array = array.astype(np.float64)
    reversed_axes = any(stride < 0 for stride in array.strides)
    if array.dtype != np.float32 or not array.flags.writeable or reversed_axes:  # none of which torch takes
        with np.errstate(over="ignore"):
            array = array.astype(np.float32, order="C")
    return torch.from_numpy(array)


def _require_axes(array: Array) -> None:
    require(
        array.ndim >= 2,
        f"x has shape {list(array.shape)}: wanted [rows, features]; use x[:, None] for one feature.",
    )
