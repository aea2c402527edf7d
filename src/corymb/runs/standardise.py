"""Standardise features in raw units without pooling the data: only sums of moments leave the clients.

Descent diverges on raw units, and if each client standardised by itself, the differences that make clusters would
disappear. So before round 1 every client sends the means of its features and of their squares (for regression, of its
targets too), weighted by its number of examples, and only their sums over all clients come back. Means and scales are
applied inside the objective, at the clients; the examples themselves stay as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.objective import Examples, Objective
from corymb.keys import Key
from corymb.trees import Params, map_tensors


class Standard(NamedTuple):
    """Means and scales of the features, and of the targets of a regression (0 and 1 for classes)."""

    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor


@on_client
def send_moments(client: Client) -> Share[tuple[()]]:
    """The means of the client's features and targets and of their squares, weighted by its number of examples."""
    x, y, weight = client.train
    dtype = x.dtype if x.device.type == "mps" else torch.float64  # E[x²] − E[x]² cancels: float32 has too few digits
    mean = weight.to(dtype) / weight.sum()
    x, y = x.to(dtype).flatten(1), y.to(dtype)
    value = {"x": mean @ x, "xx": mean @ x.square(), "y": mean @ y, "yy": mean @ y.square()}
    return Share(value, weight=weight.sum().reshape(1))


def standard_of(fed: Federation, features: tuple[int, ...], *, targets: bool) -> Standard:
    """Means and standard deviations over the training examples of all clients; with `targets`, of the targets too."""
    sums = fed.clients.sum(send_moments).value
    mean = {
        name: (total / sums.weight.to(total.dtype).reshape(1, *[1] * (total.dim() - 1)))[0].cpu()
        for name, total in sums.total.items()
    }
    scale, target_scale = (_deviation(mean[name], mean[name * 2]) for name in "xy")
    if not targets:
        mean["y"], target_scale = torch.zeros(()), torch.ones(())
    rows = Standard(mean["x"].reshape(features), scale.reshape(features), mean["y"], target_scale)
    return Standard(*(row.float() for row in rows))


def _deviation(mean: Tensor, mean_square: Tensor) -> Tensor:
    """The standard deviation; 1 for a feature that never varies, which standardising then makes 0."""
    variance, digits = mean_square - mean.square(), torch.finfo(mean.dtype)
    constant = variance <= 64 * digits.eps * mean_square.clamp_min(digits.tiny)
    return torch.where(constant, 1, variance.clamp_min(0)).sqrt()


class Standardised:
    """An objective that sees standardised examples; its predictions and scores are in the units of the data."""

    def __init__(self, inner: Objective, standard: Standard) -> None:
        self.inner, self.standard = inner, standard
        self.score_name = inner.score_name
        self.higher_is_better = inner.higher_is_better
        self.squared = inner.squared

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Standardised:
        """The same objective elsewhere, or in another precision."""
        return Standardised(self.inner.to(device, dtype), map_tensors(lambda t: t.to(device, dtype), self.standard))

    def init(self, key: Key) -> Params:
        """A fresh model."""
        return self.inner.init(key)

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The loss of each example, in standard units."""
        return self.inner.losses(params, self._standardised(examples))

    def scores(self, params: Params, examples: Examples) -> Tensor:
        """The score of each example, in the units of the data: a squared error grows with the square of the scale."""
        return self.inner.scores(params, self._standardised(examples)) * self.standard.target_scale.square()

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """The prediction for each example of raw features, in the units of the data."""
        return self.inner.predict(params, self._features(x)) * self.standard.target_scale + self.standard.target_mean

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """One prediction from those of several models, in the units of the data."""
        return self.inner.mix(predictions, weights)

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """The score of each example from predictions, both in the units of the data."""
        return self.inner.grade(predictions, examples._replace(x=self._features(examples.x)))

    def describe(self) -> str:
        """What is learned, for fingerprints and run records."""
        return f"{self.inner.describe()}, features standardised"

    def _standardised(self, examples: Examples) -> Examples:
        x, y, weight = examples
        if y.is_floating_point():
            y = (y - self.standard.target_mean) / self.standard.target_scale
        return Examples(self._features(x), y, weight)

    def _features(self, x: Tensor) -> Tensor:
        return (x - self.standard.mean) / self.standard.scale


class NullObjective:
    """Learns nothing: the objective of an engine that only holds the data."""

    score_name = "nothing"
    higher_is_better = True
    squared = None

    def __init__(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device, self.dtype = device, dtype

    def to(self, device: torch.device | str, dtype: torch.dtype) -> NullObjective:
        """The same elsewhere."""
        return NullObjective(device, dtype)

    def init(self, key: Key) -> Params:
        """A single number that is never used."""
        return {"nothing": torch.zeros(1, device=self.device, dtype=self.dtype)}

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """0 for each example."""
        return params["nothing"] * torch.zeros_like(examples.weight)

    scores = losses

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """0 for each example."""
        return params["nothing"].expand(len(x))

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """0 for each example."""
        return predictions[0]

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """0 for each example."""
        return torch.zeros_like(examples.weight)

    def describe(self) -> str:
        """What is learned, for fingerprints and run records."""
        return "nothing"
