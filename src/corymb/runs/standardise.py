"""Features in raw units, standardised without pooling them: means and variances come through the door as sums.

Descent diverges on raw units, and clients that each standardised by themselves would hide the differences that make
clusters. So before round 1 every client sends the means of its features and of their squares (and, for regression, of
its targets), weighted by its number of examples, and only the sums over all clients come back. They are applied inside
the objective, at the clients; examples stay where they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Client, Examples, Objective, Share, on_client
from corymb.core.federation import Federation
from corymb.keys import Key
from corymb.trees import Params, map_tensors


class Standard(NamedTuple):
    """What is subtracted and what is divided by: for each feature, and for targets (0 and 1 where they are classes)."""

    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor


@on_client
def send_moments(client: Client) -> Share[tuple[()]]:
    """The means of the client's features and targets and of their squares; it weighs as much as it has examples."""
    x, y, weight = client.train
    dtype = x.dtype if x.device.type == "mps" else torch.float64  # a mean square minus a squared mean needs the digits
    mean = weight.to(dtype) / weight.sum()
    x, y = x.to(dtype).flatten(1), y.to(dtype)
    value = {"x": mean @ x, "xx": mean @ x.square(), "y": mean @ y, "yy": mean @ y.square()}
    return Share(value, weight=weight.sum().reshape(1))


def standard_of(fed: Federation, features: tuple[int, ...], *, targets: bool) -> Standard:
    """Means and standard deviations over everybody's training examples; `targets`: of the targets too."""
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
    """The standard deviation; 1 for what never varies, which then is 0 for everybody."""
    variance, digits = mean_square - mean.square(), torch.finfo(mean.dtype)
    constant = variance <= 64 * digits.eps * mean_square.clamp_min(digits.tiny)
    return torch.where(constant, 1, variance.clamp_min(0)).sqrt()


class Standardised:
    """An objective that sees standardised examples; what it predicts and scores is in the units of the data."""

    def __init__(self, inner: Any, standard: Standard) -> None:
        self.inner, self.standard = inner, standard
        self.score_name: str = getattr(inner, "score_name", "score")
        self.squared: bool = getattr(inner, "squared", False)
        if hasattr(inner, "to"):  # one that cannot move cannot move when standardised either
            self.to = self._to

    def _to(self, device: torch.device | str, dtype: torch.dtype) -> Standardised:
        """The same objective elsewhere, or in another precision."""
        return Standardised(self.inner.to(device, dtype), map_tensors(lambda t: t.to(device, dtype), self.standard))

    def init(self, key: Key) -> Params:
        """A fresh model."""
        params: Params = self.inner.init(key)
        return params

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The loss of each example, in standard units."""
        losses: Tensor = self.inner.losses(params, self._standardised(examples))
        return losses

    def scores(self, params: Params, examples: Examples) -> Tensor:
        """The score of each example, in the units of the data: a squared error grows with the square of the scale."""
        scores: Tensor = self.inner.scores(params, self._standardised(examples))
        return scores * self.standard.target_scale.square()

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """What the model says of raw features."""
        out: Tensor = self.inner.predict(params, self._features(x))
        return out * self.standard.target_scale + self.standard.target_mean

    def describe(self) -> str:
        """What is learned, for fingerprints and run records."""
        return f"{describe(self.inner)}, features standardised"

    def _standardised(self, examples: Examples) -> Examples:
        x, y, weight = examples
        if y.is_floating_point():
            y = (y - self.standard.target_mean) / self.standard.target_scale
        return Examples(self._features(x), y, weight)

    def _features(self, x: Tensor) -> Tensor:
        return (x - self.standard.mean) / self.standard.scale


class NullObjective:
    """Learns nothing: what an engine works with while only moments are asked for."""

    def __init__(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device, self.dtype = device, dtype

    def to(self, device: torch.device | str, dtype: torch.dtype) -> NullObjective:
        """The same elsewhere."""
        return NullObjective(device, dtype)

    def init(self, key: Key) -> Params:
        """One number that is never used."""
        return {"nothing": torch.zeros(1, device=self.device, dtype=self.dtype)}

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """0 for each example."""
        return params["nothing"] * torch.zeros_like(examples.weight)

    scores = losses


def describe(objective: Objective) -> str:
    """What an objective says of itself, or its type's name."""
    own = getattr(objective, "describe", None)
    return str(own()) if own else type(objective).__qualname__
