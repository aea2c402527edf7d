"""Metrics of predicted numbers: squared error, R², mean absolute error and root mean squared error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.core.objective import Examples
from corymb.objectives.measures import METRICS, Metric, Values, ratio, wide
from corymb.trees import Params

ROUNDING = 64.0**2
"""Targets whose variance is below this multiple of rounding errors count as constant."""
ENOUGH = 6
"""The least number m of test examples for a client's R². It divides by their own spread, which for normal targets is
a χ² with m − 1 degrees of freedom: with m < 6, R² has no finite variance over clients, with m < 4 not even a mean, and
the few clients whose targets are close together by chance decide any average."""
NAMES = ("squared_error", "r2", "mae", "rmse")


@dataclass(frozen=True)
class OfNumbers:
    """Metrics of one number for each example, in the units of the data."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics of numbers."""
        return tuple(METRICS[name] for name in NAMES)

    def labels(self, examples: Examples) -> Tensor:
        """The mean target."""
        weight = wide(examples.weight)
        return (wide(examples.y) * weight).sum() / weight.sum().clamp_min(1)

    def trivial(self, labels: Tensor) -> Tensor:
        """The mean of all targets."""
        return labels

    def repeated(self, trivial: Tensor, m: int) -> Tensor:
        """The same number for every example."""
        return trivial.expand(m)

    def values(self, predictions: Tensor, examples: Examples) -> Values:
        """The metrics of a client's test examples; R² is not defined for fewer than `ENOUGH`, or equal targets."""
        y, weight = wide(examples.y), wide(examples.weight)
        error, total = y - wide(predictions), weight.sum()
        squared, absolute, mean = (_mean(rows, weight) for rows in (error.square(), error.abs(), y))
        spread = _mean((y - mean).square(), weight)
        varied = spread > ROUNDING * torch.finfo(y.dtype).eps ** 2 * _mean(y.square(), weight)
        varied = varied & ((weight > 0).sum() >= ENOUGH)
        value = torch.stack([squared, torch.where(varied, 1 - ratio(squared, spread), 0), absolute, squared.sqrt()])
        tested = total > 0
        return Values(value, torch.stack([tested, tested & varied, tested, tested]))

    def sums(self, predictions: Tensor, trivial: Tensor, examples: Examples) -> Params:
        """The number of examples, and the deviations of their targets from the trivial prediction."""
        y, weight = wide(examples.y), wide(examples.weight)
        deviation = torch.where(weight > 0, (y - trivial.to(y)) * weight, 0)
        return {"count": weight.sum(), "deviation": deviation.sum()}

    def if_constant(self, sums: Params, trivial: Tensor) -> Params:
        """The sums unchanged, since they do not depend on predictions."""
        return sums

    def over_examples(
        self, sums: Params, means: Mapping[str, float], trivial_means: Mapping[str, float]
    ) -> dict[str, float]:
        """RMSE over all examples, and R² with respect to the mean target of all test examples."""
        found = {"rmse": means["squared_error"] ** 0.5}
        off = float(ratio(sums["deviation"], sums["count"]))  # mean test target minus trivial prediction
        spread = trivial_means["squared_error"] - off**2
        if spread > ROUNDING * torch.finfo(torch.float64).eps * trivial_means["squared_error"]:
            found["r2"] = 1 - means["squared_error"] / spread
        return found


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return ratio(torch.where(weight > 0, values * weight, 0).sum(), weight.sum())
