"""Clusters from points: complete linkage with a threshold (given, or found from the widest gap), Ward, k-means."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.keys import Key, integers, normal, root
from corymb.settings import require


class Gap(NamedTuple):
    """The largest jump in sorted heights, from `below` to `above`, `ratio` times as high; `threshold` is in between."""

    threshold: float
    below: float
    above: float
    ratio: float


class Groups(NamedTuple):
    """A group for every point; the numbering does not depend on the order of the points."""

    labels: Tensor  # n
    number: int
    threshold: float
    heights: list[float]  # of the merges, ascending
    gap: Gap | None = None  # if the threshold was found, not given


def widest_gap(heights: Sequence[float], *, most: int | None = None) -> Gap:
    """The widest relative gap between neighbouring heights of merges, among cuts that leave at most `most` groups.

    The threshold is the geometric mean of its two ends. By default, cuts that leave groups of fewer than two points on
    average are excluded: wide relative gaps between the smallest heights mean nothing.

    >>> widest_gap([1.0, 1.1, 1.2, 4.8]).threshold
    2.4
    """
    ascending = sorted(float(height) for height in heights)
    require(len(ascending) >= 2, f"A gap needs at least two heights, that is three points; got {len(ascending)}.")
    n = len(ascending) + 1
    most = max(2, n // 2) if most is None else most
    floor = max(ascending[-1], 1e-300) * 1e-3  # differences below a thousandth of the greatest height do not matter
    steps = [(above / max(below, floor), below, above) for below, above in pairwise(ascending)]
    steps = steps[max(0, n - 1 - most) :]  # a cut between heights i and i + 1 (from 0) leaves n - 1 - i groups
    ratio, below, above = max(steps)
    return Gap(math.sqrt(max(below, floor) * above), below, above, ratio)


def complete_linkage(points: Tensor, threshold: float | None = None, *, most: int | None = None) -> Groups:
    """Groups whose two farthest members are at most `threshold` apart; without it, found by `widest_gap`.

    Complete linkage, because single linkage chains: one stray point between two groups would merge them.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(points) == 1:
        return Groups(torch.zeros(1, dtype=torch.int64), 1, threshold or 0.0, [])
    rows, order = in_own_order(points)
    tree = linkage(rows.numpy(), method="complete")
    heights: list[float] = tree[:, 2].tolist()
    gap = widest_gap(heights, most=most) if threshold is None and len(heights) >= 2 else None
    cut = threshold if threshold is not None else gap.threshold if gap else heights[0]
    labels = by_appearance(torch.from_numpy(fcluster(tree, cut, criterion="distance")).long())[order.argsort()]
    return Groups(labels, int(labels.max()) + 1, cut, heights, gap)


def ward(points: Tensor, k: int) -> Tensor:
    """At most k groups by Ward's method; the numbering does not depend on the order of the points."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if k <= 1 or len(points) < 2:
        return torch.zeros(len(points), dtype=torch.int64)
    rows, order = in_own_order(points)
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(0)
    tree = linkage(squareform(distances.numpy(), checks=False), method="ward")
    labels = torch.from_numpy(fcluster(tree, k, criterion="maxclust")).long()
    return by_appearance(labels)[order.argsort()]


def k_means(points: Tensor, k: int, key: Key, *, starts: int = 10) -> Tensor:
    """The labels of the best of several runs of k-means (k-means++ starts); fewer than k if points coincide.

    The numbering of groups does not depend on the order of the points.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    require(len(points) >= k, f"k-means with k={k} needs at least {k} points, got {len(points)}.")
    seed = int(integers(key, 2**32))
    rows, order = in_own_order(points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer groups than k if points coincide
        found = KMeans(k, n_init=starts, random_state=seed).fit(rows.numpy())
    return by_appearance(torch.from_numpy(found.labels_).long())[order.argsort()]


def in_own_order(points: Tensor) -> tuple[Tensor, Tensor]:
    """Points sorted along a fixed direction, and the order: results must not depend on the order of clients."""
    rows = points.detach().cpu().double()
    order = (rows @ normal(root(0), rows.shape[1:], torch.float64)).argsort()
    return rows[order], order


def by_appearance(labels: Tensor) -> Tensor:
    """The same groups, numbered 0, 1, ... in the order in which they first appear.

    >>> by_appearance(torch.tensor([7, 2, 7, 5]))
    tensor([0, 1, 0, 2])
    """
    _, dense = torch.unique(labels, return_inverse=True)
    n = len(labels)
    first = torch.full((int(dense.max()) + 1,), n).scatter_reduce(0, dense, torch.arange(n), "amin")
    return first.argsort().argsort()[dense]


def group_means(points: Tensor, labels: Tensor, k: int) -> Tensor:
    """The mean of each group's points: k ...; 0 for an empty group."""
    member = (labels[None] == torch.arange(k, device=labels.device)[:, None]).to(points)  # k n
    return (member @ points.flatten(1) / member.sum(1, keepdim=True).clamp_min(1)).reshape(k, *points.shape[1:])
