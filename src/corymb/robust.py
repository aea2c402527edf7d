"""Averages of rows inside groups: trimmed mean and median, which are robust to a few bad rows, and the plain mean.

Rows are processed in blocks of coordinates, so that memory holds one block of one group in addition to the rows. A
trimmed mean is computed as the mean of the kept values, never as the sum of all minus the extremes: a huge value would
cancel every digit of the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from corymb.core.reductions import sorted_columns
from corymb.settings import require
from corymb.trees import Params, align_leading, count

BLOCK = 2**22
"""Entries in a block."""
Middle = Callable[[Tensor], Tensor]  # J c -> c


def group_trimmed_mean(rows: Params, labels: Tensor, empty: Params, *, trim: float, block: int = BLOCK) -> Params:
    """TrMean of each group's rows, coordinate by coordinate: the ⌊βJ⌋ least and greatest of J are dropped.

    The mean is over the kept values. A group without rows takes its row of `empty`, which has k rows; rows of label -1
    are in no group.
    """
    require(0 <= trim < 0.5, f"trim must be at least 0 and below 1/2, got {trim}.")

    def middle(values: Tensor) -> Tensor:
        drop = trimmed(len(values), trim)
        return sorted_columns(values)[drop : len(values) - drop].mean(0) if drop else values.mean(0)

    return _in_groups(rows, labels, empty, middle, block)


def group_median(rows: Params, labels: Tensor, empty: Params, *, block: int = BLOCK) -> Params:
    """The median of each group's rows, coordinate by coordinate; of an even number, the mean of the middle two."""

    def middle(values: Tensor) -> Tensor:
        half = (len(values) - 1) // 2
        return sorted_columns(values)[half : len(values) - half].mean(0)

    return _in_groups(rows, labels, empty, middle, block)


def group_mean(rows: Params, labels: Tensor, empty: Params, *, block: int = BLOCK) -> Params:
    """The mean of each group's rows; for sums that need no rows, see `Cohort.sum`."""
    return _in_groups(rows, labels, empty, lambda values: values.mean(0), block)


def into_ball(models: Params, centre: Params, radius: float) -> Params:
    """Project models that are farther than `radius` from the centre back onto the ball."""
    differences = {name: value - centre[name] for name, value in models.items()}
    squares = [value.reshape(len(value), -1).square().sum(1) for value in differences.values()]
    scale = radius / torch.stack(squares).sum(0).sqrt().clamp_min(radius)
    return {name: centre[name] + value * align_leading(scale, value) for name, value in differences.items()}


def trimmed(rows: int, trim: float) -> int:
    """⌊βJ⌋: the number of values dropped at either end, of J.

    >>> trimmed(10, 0.15), trimmed(100, 0.29)
    (1, 29)
    """
    return int(trim * rows + 1e-9)  # 0.29 × 100 is 28.999999999999996


def _in_groups(rows: Params, labels: Tensor, empty: Params, middle: Middle, block: int) -> Params:
    n, k = count(rows), count(empty)
    require(len(labels) == n, f"{len(labels)} labels for {n} rows: give one for each.")
    require(
        bool((labels < k).all()), f"A label is {int(labels.max())}, but `empty` has {k} rows: give it one per group."
    )
    members = [(labels == group).nonzero().flatten() for group in range(k)]
    return {name: _of_leaf(value, members, empty[name], middle, block) for name, value in rows.items()}


def _of_leaf(value: Tensor, members: list[Tensor], empty: Tensor, middle: Middle, block: int) -> Tensor:
    out = empty.to(value).flatten(1).clone() if value.dim() > 1 else empty.to(value)[:, None].clone()
    flat = value.reshape(len(value), -1)
    for group, rows in enumerate(members):
        if not len(rows):
            continue
        rows, step = rows.to(value.device), max(1, block // len(rows))
        for first in range(0, flat.shape[1], step):
            out[group, first : first + step] = middle(flat[:, first : first + step][rows])
    return out.reshape(len(members), *value.shape[1:])
