"""Arrays of users as arrays of numpy, and as the features that training takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from corymb.settings import require

Array = np.ndarray[Any, Any]


def as_array(values: ArrayLike | Tensor) -> Array:
    """A numpy array of numpy, torch or list values, without a copy where possible."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def as_features(x: ArrayLike | Tensor) -> Tensor:
    """Numbers of any type as float32, by way of float64: the same number has the same bits, whatever its type was."""
    array = as_array(x)
    require(array.dtype.kind in "biuf", f"Features are of type {array.dtype}: wanted numbers.")
    require(
        array.ndim >= 2,
        f"x has the shape {list(array.shape)}: wanted [rows, features]; use x[:, None] for one feature.",
    )
    if array.dtype.itemsize > 4 and array.dtype.kind in "iu":
        array = array.astype(np.float64)
    if array.dtype != np.float32 or not array.flags.writeable:  # torch takes only writable arrays
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    return torch.from_numpy(array)
