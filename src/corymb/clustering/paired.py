"""Tests whether one model is worse than another for some clients, by paired differences of held-out losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

FEW = 8
"""With fewer clients, the test is over their examples, and is valid for just these clients."""


class Difference(NamedTuple):
    """How much larger one loss is than another, over some clients."""

    mean: float
    error: float
    """Standard error of the mean."""
    p: float
    """One-sided p-value: the probability of a mean this large if there is no difference."""
    size: float
    """The mean as a share of the other model's loss: 0.1 is ten per cent worse."""
    clients: int
    worse: float
    """The share of clients with a larger loss."""

    @staticmethod
    def of(numbers: Sequence[float]) -> Difference:
        """A difference from its fields as plain numbers."""
        mean, error, p, size, clients, worse = numbers
        return Difference(mean, error, p, size, int(clients), worse)


NONE = Difference(0.0, math.inf, 1.0, 0.0, 0, 0.0)
"""The difference over no clients."""


def difference(differences: Tensor, variance: Tensor, number: Tensor, base: Tensor) -> Difference:
    """Test clients' mean differences, each over `number` examples with variance `variance` between them.

    Clients are treated like the studies of a meta-analysis: each has its own true difference (variance τ² between
    clients), estimated with variance σ² / number. They are weighted accordingly, with a common σ²: if clients that lose
    much also vary much, weights by their own variances would hide the loss. The test is Hartung and Knapp's, with a t
    distribution of n − 1 degrees of freedom for n clients. `base` holds the losses that differences are shares of.
    """
    tested = number > 0
    differences, variance, number, base = (row[tested].double() for row in (differences, variance, number, base))
    n = len(differences)
    if n == 0:
        return NONE
    if n >= FEW:
        weight = _weights(differences, variance, number)
        mean = float(weight @ differences)
        error, freedom = math.sqrt(float(weight @ (differences - mean).square()) / (n - 1)), n - 1
    else:
        total = float(number.sum())
        weight = number / total
        mean = float(weight @ differences)
        spread = float((variance * (number - 1) + number * (differences - mean).square()).sum()) / max(total - 1, 1)
        error, freedom = math.sqrt(spread / total), max(int(total) - 1, 1)
    size = mean / max(float(weight @ base), 1e-12)
    return Difference(mean, error, _tail(mean, error, freedom), size, n, float((differences > 0).double().mean()))


def _weights(differences: Tensor, variance: Tensor, number: Tensor) -> Tensor:
    """1 / (τ² + σ² / number), normalised to sum 1; τ² by the method of moments (DerSimonian and Laird)."""
    freedom = number - 1
    least = 1e-12 * float(differences.square().mean()) + 1e-300  # if the variance is unknown: one example each
    within = ((variance * freedom).sum() / freedom.sum().clamp_min(1)).clamp_min(least) / number
    weight = 1 / within
    mean = (weight @ differences) / weight.sum()
    excess = weight @ (differences - mean).square() - (len(differences) - 1)
    between = (excess / (weight.sum() - weight.square().sum() / weight.sum()).clamp_min(1e-300)).clamp_min(0)
    weight = 1 / (between + within)
    return weight / weight.sum()


def _tail(mean: float, error: float, freedom: int) -> float:
    from scipy.stats import t as student

    if error == 0:
        return 0.5 if mean == 0 else float(mean < 0)
    return float(student.sf(mean / error, freedom))
