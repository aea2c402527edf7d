"""Pictures in [0, 1] with their channels first; most clients decide what range pixels have.

Pictures that come as bytes stay bytes until a client's are taken for training: see `corymb.core.pixels`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from corymb.core.pixels import TOP
from corymb.data.clients import Clients, majority
from corymb.data.features import Array, as_features
from corymb.settings import InvalidInput, require

_CHANNELS = (1, 3, 4)
_BYTES, _UNIT, _OTHER = range(3)


def is_picture(x: Array) -> bool:
    """Whether examples are pictures, which their shape decides: rows and columns, perhaps channels."""
    return x.ndim in (3, 4)


def channels_first(x: Array) -> Array:
    """Pictures [N, H, W], [N, C, H, W] or [N, H, W, C] as [N, C, H, W]; others as they are."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in _CHANNELS and x.shape[3] in _CHANNELS:
        x = np.moveaxis(x, 3, 1)
    return np.ascontiguousarray(x)


def in_unit_range(x: Array, clients: Clients) -> tuple[Tensor, int]:
    """Pixels in [0, 1], and what they were divided by; bytes that are to be divided by 255 are left as bytes.

    If most clients have pixels from 0 to 255, everybody's are divided by 255; if most stay within 0 to 1, nothing is.
    A client with other pixels than most is refused by name. Where most have another range, pixels are left alone.
    """
    low, high = _range(x, clients)
    votes = np.full(clients.n, _OTHER)
    votes[(low >= 0) & (high <= TOP)] = _BYTES
    votes[(low >= 0) & (high <= 1)] = _UNIT
    ranges = majority(votes[np.isfinite(low)], 3)
    if ranges == _OTHER:
        return as_features(x), 1
    top = TOP if ranges == _BYTES else 1
    scaled = [client for client in np.flatnonzero(votes == _UNIT) if top == TOP and _fractions(x, clients, client)]
    for client in (*np.flatnonzero((low < 0) | (high > top)), *scaled):
        got = f"{low[client]:g} to {high[client]:g}"
        raise InvalidInput(
            f"Client {clients.names[client]!r} has pixels from {got}, where most clients have them from 0 to {top}: "
            "correct its pictures, or leave it out."
        )
    if top == TOP and x.dtype == np.uint8:
        return torch.from_numpy(x if x.flags.writeable else x.copy()), TOP  # torch takes only writable arrays
    pixels = as_features(x)
    return (pixels / TOP, TOP) if top == TOP else (pixels, 1)


def as_in_run(x: Array, top: int) -> Tensor:
    """New pixels as those of a run, which were divided by `top`; pixels that are in [0, 1] already stay."""
    pixels = as_features(x)
    if top == 1 or not len(pixels) or (x.dtype != np.uint8 and float(pixels.max()) <= 1):
        return pixels
    low, high = float(pixels.min()), float(pixels.max())
    require(low >= 0 and high <= top, f"Pixels go from {low:g} to {high:g}: the run's were from 0 to {top}.")
    return pixels / top


def _range(x: Array, clients: Clients) -> tuple[Array, Array]:
    """Each client's smallest and largest pixel; NaN for one without pictures."""
    flat = x.reshape(len(x), -1)
    low, high = np.full(clients.n, np.inf), np.full(clients.n, -np.inf)
    np.minimum.at(low, clients.codes, flat.min(1))
    np.maximum.at(high, clients.codes, flat.max(1))
    nobody = low > high
    return np.where(nobody, np.nan, low), np.where(nobody, np.nan, high)


def _fractions(x: Array, clients: Clients, client: np.signedinteger) -> bool:
    """Whether a client whose pixels stay within 0 to 1 has some in between: they were divided before."""
    mine = x[clients.codes == client]
    return bool((mine != np.floor(mine)).any())
