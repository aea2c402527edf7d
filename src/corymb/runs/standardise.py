"""Standardise features in raw units without pooling the data: only sums of moments leave the clients.

Descent diverges on raw units, and if each client standardised by itself, the differences that make clusters would
disappear. So before round 1 every client is asked twice: for the means of its features and of their magnitudes, and
then for the mean squares of their deviations from everybody's mean, in units of everybody's magnitude (for regression,
of its targets too). Replies are weighted by the number of examples, and only their sums over all clients come back.
Means and scales are applied inside the objective, at the clients; the examples themselves stay as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.objective import Draws, Examples, Objective
from corymb.core.sums import Sums
from corymb.keys import Key
from corymb.local.reference import training_losses
from corymb.objectives.measures import measures_of
from corymb.trees import Params, map_tensors


class Standard(NamedTuple):
    """Means and scales of the features, and of the targets of a regression (0 and 1 for classes)."""

    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor


class Moments(NamedTuple):
    """One number for each feature, and one for the targets."""

    x: Tensor
    y: Tensor


@on_client
def send_means(client: Client) -> Share[tuple[()]]:
    """The means of the client's features and targets, and of their magnitudes, weighted by its number of examples."""
    x, y = _wide(client)
    return _mean(client, {"x": x, "y": y, "size of x": x.abs(), "size of y": y.abs()})


@on_client
def send_deviations(client: Client, centre: Moments, unit: Moments) -> Share[tuple[()]]:
    """The mean squares of the client's deviations from `centre`, in units that keep them near 1."""
    x, y = _wide(client)
    return _mean(client, {"x": ((x - centre.x) / unit.x).square(), "y": ((y - centre.y) / unit.y).square()})


def _wide(client: Client) -> Moments:
    x, y, _ = client.train
    dtype = x.dtype if x.device.type == "mps" else torch.float64  # deviations of large numbers need the digits
    return Moments(x.to(dtype).flatten(1), y.to(dtype))


def _mean(client: Client, values: Params) -> Share[tuple[()]]:
    weight = client.train.weight
    portion = weight.to(values["x"]) / weight.sum().clamp_min(1)
    return Share({name: portion @ value for name, value in values.items()}, weight=weight.sum().reshape(1))


def standard_of(fed: Federation, features: tuple[int, ...], *, targets: bool) -> Standard:
    """Means and standard deviations over the training examples of all clients; with `targets`, of the targets too."""
    means = _first(fed.clients.sum(send_means).value)
    centre = Moments(means["x"], means["y"])
    unit = Moments(*(torch.where(size > 0, size, 1) for size in (means["size of x"], means["size of y"])))
    squares = _first(fed.clients.sum(send_deviations, centre, unit).value)
    scale, target_scale = (_deviation(squares[name], getattr(unit, name)).cpu() for name in ("x", "y"))
    target_mean = centre.y.cpu()
    if not targets:
        target_mean, target_scale = torch.zeros(()), torch.ones(())
    rows = Standard(centre.x.cpu().reshape(features), scale.reshape(features), target_mean, target_scale)
    return Standard(*(row.float() for row in rows))


def _first(sums: Sums[tuple[()]]) -> Params:
    """The means of the only sum."""
    return {
        name: (total / sums.weight.to(total).reshape(1, *[1] * (total.dim() - 1)))[0]
        for name, total in sums.total.items()
    }


def _deviation(square: Tensor, unit: Tensor) -> Tensor:
    """The standard deviation; 1 for a feature that never varies, which standardising then makes 0."""
    rounding = (64 * torch.finfo(square.dtype).eps) ** 2
    return torch.where(square <= rounding, 1, square.sqrt() * unit)


class Standardised:
    """An objective that sees standardised examples; its predictions and scores are in the units of the data."""

    def __init__(self, inner: Objective, standard: Standard) -> None:
        self.inner, self.standard = inner, standard
        self.score_name = inner.score_name
        self.higher_is_better = inner.higher_is_better
        self.squared = inner.squared
        self.measures = measures_of(inner)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Standardised:
        """The same objective elsewhere, or in another precision."""
        return Standardised(self.inner.to(device, dtype), map_tensors(lambda t: t.to(device, dtype), self.standard))

    def init(self, key: Key) -> Params:
        """A fresh model."""
        return self.inner.init(key)

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The loss of each example, in standard units."""
        return self.inner.losses(params, self._standardised(examples))

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """What training makes smaller, in standard units."""
        return training_losses(self.inner, params, self._standardised(examples), draws)

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
