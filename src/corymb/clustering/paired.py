"""Is one model worse than another, for these clients? Paired differences of held-out losses, and their test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

FEW = 8
"""With fewer clients than this the test is over their examples: it then says something of just these clients."""


class Difference(NamedTuple):
    """How much larger one loss is than another, over some clients."""

    mean: float
    error: float
    """Standard error of the mean."""
    p: float
    """One-sided: how likely a mean as large as this is, if there is no difference or it is the other way round."""
    size: float
    """The mean as a share of the smaller model's loss: 0.1 is ten per cent worse."""
    clients: int
    worse: float
    """The share of the clients for whom it is larger."""

    @staticmethod
    def of(numbers: Sequence[float]) -> Difference:
        """From its numbers."""
        mean, error, p, size, clients, worse = numbers
        return Difference(mean, error, p, size, int(clients), worse)


NONE = Difference(0.0, math.inf, 1.0, 0.0, 0, 0.0)
"""Nobody to ask."""


def difference(apart: Tensor, variance: Tensor, number: Tensor, base: Tensor) -> Difference:
    """Test clients' mean differences, each from `number` examples with that `variance` between them.

    Clients are like the studies of a meta-analysis: each has a difference of its own (variance τ² between clients) that
    it knows up to σ² / number. They are weighted accordingly, with one σ² for all: where those who lose much also vary
    much, their own variances would hide what they lose. The test is Hartung and Knapp's, t with one degree of freedom
    less than there are clients. `base` is what the differences are shares of.
    """
    there = number > 0
    apart, variance, number, base = (row[there].double() for row in (apart, variance, number, base))
    n = len(apart)
    if n == 0:
        return NONE
    if n >= FEW:
        weight = _weights(apart, variance, number)
        mean = float(weight @ apart)
        error, freedom = math.sqrt(float(weight @ (apart - mean).square()) / (n - 1)), n - 1
    else:
        total = float(number.sum())
        weight = number / total
        mean = float(weight @ apart)
        spread = float((variance * (number - 1) + number * (apart - mean).square()).sum()) / max(total - 1, 1)
        error, freedom = math.sqrt(spread / total), max(int(total) - 1, 1)
    size = mean / max(float(weight @ base), 1e-12)
    return Difference(mean, error, _tail(mean, error, freedom), size, n, float((apart > 0).double().mean()))


def _weights(apart: Tensor, variance: Tensor, number: Tensor) -> Tensor:
    """1 / (τ² + σ² / number), of sum 1; τ² by the method of moments (DerSimonian and Laird)."""
    freedom = number - 1
    least = 1e-12 * float(apart.square().mean()) + 1e-300  # where nobody knows it, each having one example, say
    within = ((variance * freedom).sum() / freedom.sum().clamp_min(1)).clamp_min(least) / number
    weight = 1 / within
    mean = (weight @ apart) / weight.sum()
    excess = weight @ (apart - mean).square() - (len(apart) - 1)
    between = (excess / (weight.sum() - weight.square().sum() / weight.sum()).clamp_min(1e-300)).clamp_min(0)
    weight = 1 / (between + within)
    return weight / weight.sum()


def _tail(mean: float, error: float, freedom: int) -> float:
    from scipy.stats import t as student

    if error == 0:
        return 0.5 if mean == 0 else float(mean < 0)
    return float(student.sf(mean / error, freedom))
