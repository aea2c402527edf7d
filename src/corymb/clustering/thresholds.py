"""Groups of neighbours from pairwise distances, and the threshold below which two are neighbours."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.clustering.grouping import Gap, by_appearance
from corymb.keys import Key, fold, normal

log = logging.getLogger(__name__)
BINS = 50
"""Bins of the histogram of distances."""


class Merge(NamedTuple):
    """A merge of single linkage: joins the groups of two points at a height, the least distance between them."""

    height: float
    one: int
    other: int


class Threshold(NamedTuple):
    """A threshold that separates distances within groups from those between groups, with the evidence for it."""

    value: float
    heights: list[float]  # of single linkage's merges, ascending
    gap: Gap | None  # the widest that leaves two groups or more, if any does
    chance: float  # a cloud without groups exceeds a gap of this ratio once in twenty times
    found: bool  # whether the gap is too wide for chance; if not, `value` joins all points


DRAWS = 40
"""Clouds drawn to estimate the gaps that occur by chance."""
MOST_DRAWN = 500
"""At most this many points in such a cloud: the work grows with the cube of their number."""
BEYOND_CHANCE = 1.5
"""A gap must be this many times as wide, in logarithms, as gaps by chance: real clients are not quite normal."""
LEAST_CHANCE = 1.05
"""The least ratio of gaps by chance, however even the distances are."""


def single_linkage(distances: Tensor) -> list[Merge]:
    """The merges in the order of their heights: the edges of a minimum spanning tree (Prim), in n² steps.

    >>> [merge.height for merge in single_linkage(torch.tensor([[0.0, 1, 9], [1, 0, 5], [9, 5, 0]]))]
    [1.0, 5.0]
    """
    rows = distances.detach().cpu().double().numpy()
    n = len(rows)
    nearest, nearest_to, inside = rows[0].copy(), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
    inside[0] = True
    merges = []
    for _ in range(n - 1):
        new = int(np.where(inside, np.inf, nearest).argmin())
        merges.append(Merge(float(nearest[new]), int(nearest_to[new]), new))
        inside[new] = True
        nearer = ~inside & (rows[new] < nearest)
        nearest[nearer], nearest_to[nearer] = rows[new][nearer], new
    return sorted(merges)


def threshold_groups(distances: Tensor, threshold: float, *, order: Tensor, least: int = 1) -> Tensor:
    """The connected components of the graph with an edge between points at most `threshold` apart: n.

    Members of components smaller than `least` get -1. Groups are numbered by their first member in `order` (n).
    """
    near = (merge for merge in single_linkage(distances) if merge.height <= threshold)
    return _numbered(torch.from_numpy(_components(near, len(distances))), order, least)


def pivot_groups(distances: Tensor, threshold: float, *, order: Tensor, draws: Tensor, least: int = 1) -> Tensor:
    """Groups of a pivot and all points within `threshold` of it that have no group yet, with pivots ordered by `draws`.

    Correlation clustering by random pivots (Ailon, Charikar, Newman 2008), as in the SR-FCA authors' code.
    """
    near, group = distances <= threshold, torch.full((len(distances),), -1)
    for pivot in draws.argsort().tolist():
        if group[pivot] < 0:
            group[(group < 0) & (near[pivot] | (torch.arange(len(group)) == pivot))] = pivot
    return _numbered(group, order, least)


def _numbered(component: Tensor, order: Tensor, least: int) -> Tensor:
    _, dense, sizes = component.unique(return_inverse=True, return_counts=True)
    kept = sizes[dense] >= least
    labels, places = torch.full_like(component, -1), order.argsort()
    chosen = places[kept[places]]
    if len(chosen):
        labels[chosen] = by_appearance(dense[chosen])
    return labels


def find_threshold(distances: Tensor, key: Key, *, least: int = 2, squared: bool = False) -> Threshold:
    """The middle of the widest relative gap in the heights of single linkage, if such gaps do not occur by chance.

    Only cuts that leave two groups or more of at least `least` (and a twentieth of all) points count, with half of all
    points in them: outliers are not groups. Gaps by chance are estimated from clouds without groups that are as wide in
    every direction as the points are: normal draws with the spectrum of the distances (classical scaling). So one rule
    serves any kind of distance. `squared`: distances behave like squared lengths above a floor, which is on the
    diagonal, as losses do (to second order).

    Each group found is searched in the same way, because groups within it are closer together; the lowest threshold is
    used. Groups that are too small can be merged later; groups that are too large hide their structure.
    """
    merges = single_linkage(distances)
    heights = [merge.height for merge in merges]
    least_here = max(least, -(-len(distances) // 20))
    gap, members = _widest_between_groups(merges, len(distances), least_here)
    if gap is None:
        return Threshold(float(distances.max()), heights, None, LEAST_CHANCE, False)
    chance = max(LEAST_CHANCE, _by_chance(distances, torch.tensor(members), key, least_here, squared))
    if math.log(gap.ratio) < BEYOND_CHANCE * math.log(chance):
        return Threshold(float(distances.max()), heights, gap, chance, False)
    best = Threshold(gap.threshold, heights, gap, chance, True)
    labels = threshold_groups(distances, best.value, order=torch.arange(len(distances)), least=least)
    for group in range(int(labels.max()) + 1):
        inner = find_threshold(_between(distances, labels == group), key, least=least, squared=squared)
        if inner.found and inner.value < best.value:
            best = inner._replace(heights=heights)
    return best


def settle_threshold(
    given: float | Literal["gap"], distances: Tensor, key: Key, *, least: int, squared: bool
) -> tuple[float, dict[str, object]]:
    """The threshold, given or found, and notes for a plot; logs a warning if none is found."""
    counts, edges = _histogram(distances.detach().cpu().double().numpy())
    notes: dict[str, object] = {"distance_counts": counts.tolist(), "distance_edges": edges.tolist()}
    if given != "gap":
        heights = [merge.height for merge in single_linkage(distances)]
        return given, notes | {"threshold": given, "merge_heights": heights}
    found = find_threshold(distances, key, least=least, squared=squared)
    gap = found.gap.ratio if found.gap else 1.0
    notes |= {"threshold": found.value, "merge_heights": found.heights, "gap": gap, "chance": found.chance}
    if not found.found:
        text = f"distances show no clusters (widest gap {gap:.2f}, by chance up to {found.chance:.2f}): one for all"
        log.warning("clients' %s", text)
        notes["warning"] = text
    return found.value, notes


def _widest_between_groups(merges: Sequence[Merge], n: int, least: int) -> tuple[Gap | None, list[int]]:
    """The widest gap whose cut leaves two groups of `least` or more with half of all points, and these points."""
    groups, widest, cut, done = {i: [i] for i in range(n)}, 1.0, None, 0
    component, positive = list(range(n)), [merge.height for merge in merges if merge.height > 0]
    floor = 1e-6 * median(positive) if positive else 1.0  # avoids infinite ratios if points coincide
    large, held = (n, n) if least <= 1 else (0, 0)  # the groups of `least` or more, and their points
    for number, (below, above) in enumerate(pairwise([*merges, Merge(math.nan, 0, 0)]), 1):
        one, other = component[below.one], component[below.other]
        one, other = (one, other) if len(groups[one]) >= len(groups[other]) else (other, one)
        sizes = len(groups[one]), len(groups[other])
        for size, sign in ((sizes[0], -1), (sizes[1], -1), (sum(sizes), 1)):
            large, held = (large + sign, held + sign * size) if size >= least else (large, held)
        for place in groups[other]:
            component[place] = one
        groups[one] += groups.pop(other)
        ratio = above.height / max(below.height, floor)
        if ratio > widest and large >= 2 and 2 * held >= n:
            widest, done = ratio, number
            cut = Gap(math.sqrt(max(below.height, floor) * above.height), below.height, above.height, ratio)
    return cut, _in_groups(merges[:done], n, least) if cut else []


def _in_groups(merges: Sequence[Merge], n: int, least: int) -> list[int]:
    """The points in groups of `least` or more after these merges."""
    component = _components(merges, n)
    found: list[int] = np.flatnonzero(np.bincount(component, minlength=n)[component] >= least).tolist()
    return found


def _components(merges: Iterable[Merge], n: int) -> NDArray[np.int64]:
    """The group of each point after these merges, named by one of its points."""
    component = np.arange(n)
    for merge in merges:
        component[component == component[merge.other]] = component[merge.one]
    return component


def _histogram(distances: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """How many pairs are how far apart, and the edges of the bins: row by row, since indices of all pairs are large."""
    rows = [row[place:] for place, row in enumerate(distances[:-1], 1)]
    if not rows:
        return np.histogram([], BINS)
    span = min(float(row.min()) for row in rows), max(float(row.max()) for row in rows)
    edges = np.histogram_bin_edges([], BINS, span)
    return sum((np.histogram(row, BINS, span)[0] for row in rows), np.zeros(BINS, np.int64)), edges


def _between(distances: Tensor, which: Tensor) -> Tensor:
    """The distances between some of the points."""
    places = which.nonzero().flatten() if which.dtype == torch.bool else which
    return distances[places[:, None], places]


def _by_chance(distances: Tensor, members: Tensor, key: Key, least: int, squared: bool) -> float:
    """The 95 % quantile of the widest gap's ratio in clouds without groups as wide as these points.

    Of many points, some stand for all: gaps by chance are a little wider among fewer, so this errs on the safe side.
    """
    if len(members) > MOST_DRAWN:
        some = normal(fold(key, DRAWS), (len(members),)).argsort()[:MOST_DRAWN].sort().values
        least = max(2, least * MOST_DRAWN // len(members))
        members = members[some]
    distances = _between(distances, members)
    rows, n = distances.detach().cpu().double().numpy(), len(distances)
    floor = rows.diagonal() if squared else np.zeros(n)
    squares = np.clip(rows - (floor[:, None] + floor) / 2 if squared else rows**2, 0, None)
    np.fill_diagonal(squares, 0)
    centred = squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean()
    spectrum = np.clip(np.linalg.eigvalsh(-centred / 2), 0, None)[::-1] / max(1, n - 1)
    ratios = []
    for draw in range(DRAWS):
        cloud = normal(fold(key, draw), (n, n), torch.float64).numpy() * np.sqrt(spectrum)
        gram = cloud @ cloud.T
        length = gram.diagonal()
        pairwise = np.clip(length[:, None] + length - 2 * gram, 0, None)
        pairwise = pairwise + np.median(floor) if squared else np.sqrt(pairwise)
        gap, _ = _widest_between_groups(single_linkage(torch.from_numpy(pairwise)), n, least)
        ratios.append(gap.ratio if gap else 1.0)
    return float(np.quantile(ratios, 0.95))
