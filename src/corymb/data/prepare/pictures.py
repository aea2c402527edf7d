"""Convert images to [0, 1] with channels first; the majority of clients decides the range of pixels.

Images given as bytes stay bytes until they are used in training: see `corymb.core.pixels`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from corymb.core.pixels import MAX_PIXEL
from corymb.data.clients import Clients, majority
from corymb.data.features import Array, as_features
from corymb.settings import InvalidInput, require

_CHANNELS = (1, 3, 4)
_BYTES, _UNIT, _OTHER = range(3)
LARGE = 10
"""Pixels outside the usual ranges are mostly standardised, and then not larger than this."""


def is_picture(x: Array) -> bool:
    """Whether examples are images, judged by their shape: height and width, perhaps channels."""
    return x.ndim in (3, 4)


def channels_first(x: Array) -> Array:
    """Convert images [N, H, W], [N, C, H, W] or [N, H, W, C] to [N, C, H, W]; other arrays are unchanged."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and _channels_last(*x.shape[1:]):
        x = np.moveaxis(x, 3, 1)
    return np.ascontiguousarray(x)


def _channels_last(first: int, middle: int, last: int) -> bool:
    """Whether the channels are the last axis of an example, not the first; raises if the shape is ambiguous.

    There are mostly 1, 3 or 4 channels, images are mostly square, and channels are fewer than rows and columns.
    """
    usual = first in _CHANNELS, last in _CHANNELS
    if usual[0] != usual[1]:
        return usual[1]
    if first != last:
        square = middle == last, middle == first
        fewest = first < min(middle, last), last < min(first, middle)
        for at_the_front, at_the_end in (square, fewest):
            if at_the_front != at_the_end:
                return at_the_end
    require(
        usual[0],  # if both readings are plausible, torch's order
        f"Images have shape [{first}, {middle}, {last}], whose channel axis is ambiguous: arrange them as [rows, "
        "channels, height, width], scale pixels to [0, 1], and give scale='none' (--scale none).",
    )
    return False


def in_unit_range(x: Array, clients: Clients) -> tuple[Tensor, int, list[str]]:
    """Pixels in [0, 1], their divisor, and notes; bytes to be divided by 255 are left as bytes.

    If most clients have pixels from 0 to 255, all are divided by 255; if most stay within 0 to 1, none are. A client
    that differs from the majority is rejected by name. If most have another range, pixels are not changed.
    """
    low, high = _range(x, clients)
    votes = np.full(clients.n, _OTHER)
    votes[(low >= 0) & (high <= MAX_PIXEL)] = _BYTES
    votes[(low >= 0) & (high <= 1)] = _UNIT
    ranges = majority(votes[np.isfinite(low)], 3)
    if ranges == _OTHER:
        return as_features(x), 1, _note_large(float(np.nanmin(low)), float(np.nanmax(high)))
    top = MAX_PIXEL if ranges == _BYTES else 1
    scaled = [
        client for client in np.flatnonzero(votes == _UNIT) if top == MAX_PIXEL and _fractions(x, clients, client)
    ]
    for client in (*np.flatnonzero((low < 0) | (high > top)), *scaled):
        got = f"{low[client]:g} to {high[client]:g}"
        raise InvalidInput(
            f"Client {clients.names[client]!r} has pixels from {got}, while most clients have them from 0 to {top}: "
            "correct its images, or leave it out."
        )
    if top == MAX_PIXEL and x.dtype == np.uint8:
        return torch.from_numpy(x if x.flags.writeable else x.copy()), MAX_PIXEL, []  # torch needs writable arrays
    pixels = as_features(x)
    return (pixels / MAX_PIXEL, MAX_PIXEL, []) if top == MAX_PIXEL else (pixels, 1, [])


def _note_large(low: float, high: float) -> list[str]:
    """A note if pixels are left unchanged although they are too large for models to learn well."""
    largest = max(abs(low), abs(high))
    if not LARGE < largest < np.inf:
        return []
    note = f"pixels range from {low:g} to {high:g} and are not scaled: divide them by {largest:g} first"
    return [note if low >= 0 else f"{note}; for data that are not images use scale='none' or 'standard' (--scale)"]


def as_in_run(x: Array, top: int) -> Tensor:
    """Scale new pixels like those of a run, which were divided by `top`; pixels already in [0, 1] are unchanged."""
    pixels = as_features(x)
    undivided = top == 1 and x.dtype == np.uint8 and x.size > 0 and int(x.max()) > 1
    require(
        not undivided, "Pixels are bytes beyond 1, and the run's were not: bring them into its range, mostly by / 255."
    )
    if top == 1 or not len(pixels) or (x.dtype != np.uint8 and float(pixels.max()) <= 1):
        return pixels
    low, high = float(pixels.min()), float(pixels.max())
    require(low >= 0 and high <= top, f"Pixels range from {low:g} to {high:g}, but the run's from 0 to {top}.")
    return pixels / top


def _range(x: Array, clients: Clients) -> tuple[Array, Array]:
    """Each client's smallest and largest pixel; NaN for a client without images."""
    flat = x.reshape(len(x), -1)
    low, high = np.full(clients.n, np.inf), np.full(clients.n, -np.inf)
    with np.errstate(invalid="ignore"):  # NaN is reported when the data set is validated
        np.minimum.at(low, clients.codes, flat.min(1))
        np.maximum.at(high, clients.codes, flat.max(1))
        no_pixels = low > high
    return np.where(no_pixels, np.nan, low), np.where(no_pixels, np.nan, high)


def _fractions(x: Array, clients: Clients, client: np.signedinteger) -> bool:
    """Whether a client with pixels within 0 to 1 has fractions, that is, whether they were already divided."""
    mine = x[clients.codes == client]
    return bool((mine != np.floor(mine)).any())
