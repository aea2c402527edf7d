"""k-means that is robust to outliers: the farthest points are left out of the centres.

Cuesta-Albertos, Gordaliza, Matrán: Trimmed k-means. Annals of Statistics 1997; by Lloyd's steps as in Chawla, Gionis:
k-means--. SDM 2013. Starts are drawn as in Bhaskara, Vadgama, Xu (NeurIPS 2019): a point's probability grows with its
distance only up to that of the farthest point that is not trimmed.

Trimming alone may leave out a whole group and split another one, at no higher cost for the kept points. So a point that
is left out costs as much as one at a distance that is rare within groups (`RARE`), and no nearer point is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.clustering.grouping import by_appearance, group_means, in_own_order, k_means
from corymb.keys import Key, fold, uniform
from corymb.settings import require

RARE = 2.5
"""Points may be left out if their squared distance from their centre is more than this many times the usual one."""
RATINGS = 3
"""How often the runs are compared, each time with a better estimate of the usual distance."""
STEPS = 100
"""The most Lloyd's steps."""


class Trimmed(NamedTuple):
    """The group of every point (the nearest one for points left out), and which points entered the centres."""

    labels: Tensor  # n
    kept: Tensor  # n, bool


def trimmed_k_means(points: Tensor, k: int, key: Key, *, trim: float, starts: int = 20) -> Trimmed:
    """The best of several runs, one of them from plain k-means.

    At most ⌊trim × n⌋ points are left out, and at least k are kept. The numbering of groups does not depend on the
    order of the points. There are fewer than k groups if points coincide.
    """
    require(len(points) >= k, f"k-means with k={k} needs at least {k} points, got {len(points)}.")
    require(0 <= trim < 0.5, f"trim must be at least 0 and below 1/2, got {trim}.")
    rows, order = in_own_order(points)
    rows = rows - rows.mean(0)
    keep = len(rows) - min(int(trim * len(rows) + 1e-9), len(rows) - k)
    plain = k_means(rows, k, key)  # the right start if there are no outliers
    initial = [group_means(rows, plain, int(plain.max()) + 1)]
    initial += [_drawn(rows, chances, keep) for chances in uniform(fold(key, "starts"), (starts, k)).double()]
    runs = [_run(rows, centres, keep) for centres in initial]
    squares = torch.stack([_squares(rows, centres).amin(1) for centres in runs])  # starts n
    far = RARE * float(squares.sort(dim=1).values[:, :keep].sum(1).amin()) / max(1, keep - k)
    for _ in range(RATINGS):  # the nearest points alone underestimate the usual distance: repeat with all near ones
        best = int(squares.clamp_max(far).sum(1).argmin())
        near = squares[best] <= max(far, float(squares[best].sort().values[keep - 1]))
        far = RARE * float(squares[best][near].sum()) / max(1, int(near.sum()) - k)
    labels, back = _squares(rows, runs[best]).argmin(1), order.argsort()
    return Trimmed(by_appearance(labels)[back], near[back])


def _drawn(rows: Tensor, numbers: Tensor, keep: int) -> Tensor:
    """k points, drawn by k uniform numbers, with a probability that grows with the distance from earlier ones: k d."""
    chance, chosen = torch.ones(len(rows), dtype=rows.dtype), rows[:0]
    for number in numbers:
        below = chance.cumsum(0)
        at = int(torch.searchsorted(below, number * below[-1]).clamp_max(len(rows) - 1))
        chosen = torch.cat([chosen, rows[at : at + 1]])
        nearest = _squares(rows, chosen).amin(1)
        most = nearest.sort().values[keep - 1]
        chance = nearest.clamp_max(most) if most > 0 else torch.ones_like(chance)
    return chosen


def _run(rows: Tensor, centres: Tensor, keep: int) -> Tensor:
    """The centres after Lloyd's steps with the `keep` points that are nearest to a centre."""
    for _ in range(STEPS):
        nearest, label = _squares(rows, centres).min(1)
        kept = nearest.argsort(stable=True)[:keep]
        member = torch.nn.functional.one_hot(label[kept], len(centres)).to(rows)
        number = member.sum(0)
        means = member.T @ rows[kept] / number.clamp_min(1)[:, None]
        moved = torch.where(number[:, None] > 0, means, centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _squares(rows: Tensor, centres: Tensor) -> Tensor:
    """Squared distances, by a matrix product: n k."""
    squared = rows.square().sum(1, keepdim=True) - 2 * rows @ centres.T + centres.square().sum(1)
    return squared.clamp_min(0)
