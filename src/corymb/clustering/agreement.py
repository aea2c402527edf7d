"""Agreement of clusters with true ones, from a table of counts: rows are clusters, columns true ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

log = logging.getLogger(__name__)


def purity(table: Tensor) -> float:
    """The share of points that belong to the most frequent true cluster of their cluster.

    >>> purity(torch.tensor([[3.0, 1.0], [0.0, 4.0]]))
    0.875
    """
    return float(table.amax(1).sum() / table.sum())


def normalised_information(table: Tensor) -> float:
    """Mutual information divided by the mean of both entropies: 1 for the same groups, 0 for independent ones."""
    joint = table.double() / table.sum()
    rows, columns = joint.sum(1), joint.sum(0)
    both = float(_entropy(rows) + _entropy(columns))
    shared = float(_entropy(rows) + _entropy(columns) - _entropy(joint.flatten()))
    return 1.0 if both == 0 else max(0.0, 2 * shared / both)


def _entropy(shares: Tensor) -> Tensor:
    entropy: Tensor = -torch.special.xlogy(shares, shares).sum()
    return entropy


def matched_accuracy(table: Tensor) -> tuple[float, Tensor]:
    """The share of points that are right if clusters are matched one to one with true ones, and by true cluster.

    Needs scipy.
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(-table.numpy())
    right = torch.zeros(table.shape[1], dtype=table.dtype)
    right[columns] = table[rows, columns]
    return float(right.sum() / table.sum()), right / table.sum(0).clamp_min(1)


def agreement(table: Tensor, classes: Sequence[str], prefix: str = "") -> dict[str, float]:
    """Every measure by name; there is none for a true cluster without points."""
    plain = {f"{prefix}purity": purity(table), f"{prefix}nmi": normalised_information(table)}
    try:
        accuracy, of_each = matched_accuracy(table)
    except ImportError:
        log.warning("scipy is not installed: metrics that match clusters to true ones are left out")
        return plain
    own = {f"{prefix}accuracy_of_{name}": float(value) for name, value in zip(classes, of_each, strict=True)}
    present = {name: value for (name, value), size in zip(own.items(), table.sum(0), strict=True) if size > 0}
    return {**plain, f"{prefix}matched_accuracy": accuracy, **present}
