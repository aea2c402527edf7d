"""Averages of J rows that are robust to a few bad ones: median, trimmed mean, geometric median, Krum, centred clipping.

Yin et al. (ICML 2018): median and trimmed mean, coordinate by coordinate. Pillutla, Kakade, Harchaoui (IEEE TSP 2022):
geometric median by smoothed Weiszfeld steps. Blanchard et al. (NeurIPS 2017): Krum and Multi-Krum. Karimireddy, He,
Jaggi (ICML 2021): centred clipping. `f` is the number of rows that may be bad. `tests/core` compares them with byzfl.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

BLOCK = 2**22
"""Entries in a block of rows or of coordinates: memory holds one block in addition to the rows."""
FEW_THREADS = 4
"""Up to this many threads of a CPU, numpy's sort of columns is faster than torch's: 4 to 10 times with one thread."""
SORTED_BY_NUMPY = (torch.float32, torch.float64)


def median(rows: Tensor) -> Tensor:
    """The median of each coordinate; of an even number of rows, the mean of the middle two: J d -> d."""
    half = (len(rows) - 1) // 2
    return _by_coordinate(rows, lambda block: sorted_columns(block)[half : len(rows) - half].mean(0))


def trimmed_mean(rows: Tensor, f: int) -> Tensor:
    """The mean of each coordinate without its f least and f greatest values."""
    if not f:
        return rows.mean(0)
    return _by_coordinate(rows, lambda block: sorted_columns(block)[f : len(rows) - f].mean(0))


def sorted_columns(rows: Tensor) -> Tensor:
    """Each coordinate's values in ascending order, NaN last: J d."""
    if rows.device.type == "cpu" and rows.dtype in SORTED_BY_NUMPY and torch.get_num_threads() <= FEW_THREADS:
        return torch.from_numpy(np.sort(rows.detach().numpy(), axis=0))
    return rows.sort(dim=0).values


def _by_coordinate(rows: Tensor, middle: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of columns to blocks of them, and join the results."""
    return torch.cat([middle(block) for block in rows.split(max(1, BLOCK // len(rows)), dim=1)])


def geometric_median(rows: Tensor, *, smoothing: float, steps: int) -> Tensor:
    """The point with the least sum of distances to the rows; distances are at least `smoothing`."""
    centre = torch.zeros_like(rows[0])
    for _ in range(steps):
        weight = 1 / _distances_from(centre, rows).clamp_min(smoothing)
        centre = weight @ rows / weight.sum()
    return centre


def _blocks(rows: Tensor) -> tuple[Tensor, ...]:
    parts: tuple[Tensor, ...] = rows.split(max(1, BLOCK // max(1, rows.shape[1])))
    return parts


def _distances_from(centre: Tensor, rows: Tensor) -> Tensor:
    """The distance of each row from a point."""
    return torch.cat([(block - centre).norm(dim=1) for block in _blocks(rows)])


def krum(rows: Tensor, f: int) -> Tensor:
    """The row with the least mean squared distance to its J − f − 1 nearest others."""
    return rows[_krum_scores(rows, f).argmin()]


def multi_krum(rows: Tensor, f: int) -> Tensor:
    """The mean of the J − f rows with the best Krum scores."""
    best = _krum_scores(rows, f).argsort(stable=True)[: len(rows) - f]
    return rows[best].mean(0)


def _krum_scores(rows: Tensor, f: int) -> Tensor:
    """The mean squared distance of each row to its nearest others.

    Rows are updates, which are relative to one start: their distances are not much smaller than their lengths, so that
    matrix products in double precision lose few digits, and take a fraction of the time of n² differences.
    """
    gram = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for block in rows.split(max(1, BLOCK // len(rows)), dim=1):
        gram.addmm_(block.double(), block.double().T)
    squares = gram.diagonal()
    squared_distances = (squares[:, None] + squares - 2 * gram).clamp_min(0).fill_diagonal_(0)
    nearest = squared_distances.sort(dim=1).values[:, 1 : len(rows) - f]
    return nearest.mean(1) if nearest.shape[1] else torch.zeros(len(rows))


def centred_clipping(rows: Tensor, *, radius: float, steps: int) -> Tensor:
    """Starting at 0, repeatedly move by the mean of the rows' differences from the centre, each clipped to `radius`."""
    centre = torch.zeros_like(rows[0])
    for _ in range(steps):
        share, blocks = radius / _distances_from(centre, rows).clamp_min(radius), _blocks(rows)
        total = torch.zeros_like(centre)
        for block, own in zip(blocks, share.split([len(block) for block in blocks]), strict=True):
            total += own @ (block - centre)
        centre = centre + total / len(rows)
    return centre
