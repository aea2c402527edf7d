"""Several views of one set of images, with a cluster of clients for each view."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from corymb.core.pixels import MAX_PIXEL
from corymb.data.features import Array
from corymb.data.ragged import Ragged, offsets_of
from corymb.settings import require

View = Callable[[Array], Array]

_BLOCK = 4096  # images transformed at once, to keep temporaries small


def rotations(count: int) -> list[View]:
    """Rotations by equal parts of a circle: 4 are 0, 90, 180 and 270 degrees anticlockwise, 2 are 0 and 180."""
    require(count in (1, 2, 4), f"rotations={count}: wanted 1, 2 or 4.")
    return [_turn(cluster * 4 // count) for cluster in range(count)]


def _turn(quarters: int) -> View:
    return lambda images: np.rot90(images, quarters, axes=(-2, -1))


def inversions(top: int) -> list[View]:
    """Two views: unchanged pixels, and `top` minus each pixel."""
    return [unchanged, lambda images: np.subtract(top, images, dtype=images.dtype)]


def check_whole(name: str, value: object) -> None:
    """Require a positive integer, such as a number of clients."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 1
    require(whole, f"{name}={value}: wanted a whole number, 1 or more.")


def unchanged(images: Array) -> Array:
    """The identity view."""
    return images


def apply_views(
    x: Array, y: Array, rows: Sequence[Array], sizes: Tensor, views: Sequence[View], *, top: int = MAX_PIXEL, flat: bool
) -> Ragged:
    """Apply `views[j]` to the images `rows[j]`, concatenated by cluster, for clients with these `sizes`.

    Images are uint8 [N, H, W] or [N, C, H, W]; the results are [C, H, W], or vectors if `flat`. They stay bytes if
    `top` is 255, and are divided by `top` otherwise.
    """
    shape = (1, *x.shape[1:]) if x.ndim == 3 else x.shape[1:]
    total = sum(len(chosen) for chosen in rows)
    out = torch.empty(total, *shape, dtype=torch.uint8 if top == MAX_PIXEL else torch.float32)
    start = 0
    for chosen, view in zip(rows, views, strict=True):
        for block in np.array_split(chosen, max(1, len(chosen) // _BLOCK)):
            seen = torch.from_numpy(np.ascontiguousarray(view(x[block])))
            out[start : start + len(block)] = seen.reshape(-1, *shape)
            start += len(block)
    if top != MAX_PIXEL:
        out.div_(top)
    labels = torch.from_numpy(np.concatenate([y[chosen] for chosen in rows]).astype(np.int64))
    return Ragged(out.flatten(1) if flat else out, labels, offsets_of(sizes))


def client_names(n: int) -> tuple[str, ...]:
    """`client-00`, `client-01` and so on, with as many digits as the last one needs."""
    width = len(str(n - 1))
    return tuple(f"client-{position:0{width}}" for position in range(n))
