"""Averages of J rows that are robust to a few bad ones: median, trimmed mean, geometric median, Krum, centred clipping.

Yin et al. (ICML 2018): median and trimmed mean, coordinate by coordinate. Pillutla, Kakade, Harchaoui (IEEE TSP 2022):
geometric median by smoothed Weiszfeld steps. Blanchard et al. (NeurIPS 2017): Krum and Multi-Krum. Karimireddy, He,
Jaggi (ICML 2021): centred clipping. `f` is the number of rows that may be bad. `tests/core` compares them with byzfl.
"""

from __future__ import annotations

import torch
from torch import Tensor


def median(rows: Tensor) -> Tensor:
    """The median of each coordinate; of an even number of rows, the mean of the middle two: J d -> d."""
    half = (len(rows) - 1) // 2
    return rows.sort(dim=0).values[half : len(rows) - half].mean(0)


def trimmed_mean(rows: Tensor, f: int) -> Tensor:
    """The mean of each coordinate without its f least and f greatest values."""
    return rows.sort(dim=0).values[f : len(rows) - f].mean(0) if f else rows.mean(0)


def geometric_median(rows: Tensor, *, smoothing: float, steps: int) -> Tensor:
    """The point with the least sum of distances to the rows; distances are at least `smoothing`."""
    centre = torch.zeros_like(rows[0])
    for _ in range(steps):
        weight = 1 / (rows - centre).norm(dim=1).clamp_min(smoothing)
        centre = (weight[:, None] * rows).sum(0) / weight.sum()
    return centre


def krum(rows: Tensor, f: int) -> Tensor:
    """The row with the least mean squared distance to its J − f − 1 nearest others."""
    return rows[_krum_scores(rows, f).argmin()]


def multi_krum(rows: Tensor, f: int) -> Tensor:
    """The mean of the J − f rows with the best Krum scores."""
    best = _krum_scores(rows, f).argsort(stable=True)[: len(rows) - f]
    return rows[best].mean(0)


def _krum_scores(rows: Tensor, f: int) -> Tensor:
    """The mean squared distance of each row to its nearest others.

    Distances are computed from differences: by matrix products, nearby rows would lose digits to cancellation.
    """
    squared_distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest = squared_distances.sort(dim=1).values[:, 1 : len(rows) - f]
    return nearest.mean(1) if nearest.shape[1] else torch.zeros(len(rows))


def centred_clipping(rows: Tensor, *, radius: float, steps: int) -> Tensor:
    """Starting at 0, repeatedly move by the mean of the rows' differences from the centre, each clipped to `radius`."""
    centre = torch.zeros_like(rows[0])
    for _ in range(steps):
        differences = rows - centre
        length = differences.norm(dim=1, keepdim=True)
        centre = centre + (differences * (radius / length.clamp_min(radius))).mean(0)
    return centre
