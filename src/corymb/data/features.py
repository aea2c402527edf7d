"""Features in the form that training takes: float32, images in [0, 1] with their channels first."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from corymb.settings import require

Array = np.ndarray[Any, Any]

_CHANNELS = (1, 3, 4)


def as_array(values: ArrayLike | Tensor) -> Array:
    """A numpy array of numpy, torch or list values, without a copy where possible."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def as_features(x: ArrayLike | Tensor) -> Tensor:
    """Numbers as float32; bytes are taken for pixels and divided by 255."""
    array = as_array(x)
    require(
        array.dtype.kind in "biuf", f"Features are of type {array.dtype}: wanted numbers; encode text as numbers first."
    )
    require(
        array.ndim >= 2,
        f"x has the shape {list(array.shape)}: wanted [rows, features]; use x[:, None] for one feature.",
    )
    pixels = array.dtype == np.uint8
    if array.dtype != np.float32 or not array.flags.writeable:  # torch takes only writable arrays
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    features = torch.from_numpy(array)
    return features.div_(255) if pixels else features


def as_images(x: Array) -> Array:
    """Images [N, H, W], [N, C, H, W] or [N, H, W, C] as [N, C, H, W] with values in [0, 1].

    Bytes are divided by 255, and so are floats that go beyond 1 but stay within 0 to 255. Others are left as they are.
    """
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in _CHANNELS and x.shape[3] in _CHANNELS:
        x = np.moveaxis(x, 3, 1)
    x = np.ascontiguousarray(x)
    if x.dtype == np.uint8 or x.size == 0:
        return x  # `as_features` divides bytes
    low, high = x.min(), x.max()
    return x / np.float32(255) if low >= 0 and 1 < high <= 255 else x


def is_image(x: Array) -> bool:
    """Whether x holds images: bytes, or anything with rows and columns."""
    return x.dtype == np.uint8 or x.ndim in (3, 4)
