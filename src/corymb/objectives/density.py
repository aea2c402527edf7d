"""Densities with exact likelihood: a flow, and the negative log-likelihood of each example as its loss.

Labels are ignored: an example is its features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corymb.core.objective import Examples
from corymb.keys import Key, normal
from corymb.models.flows.base import Flow, log_normal
from corymb.trees import Params, align_leading, count, take


class Density:
    """log p(x) = log N(f(x); 0, 1) + log |det Df(x)| of a flow f, in nats."""

    score_name = "log_density"
    higher_is_better = True
    squared = None

    def __init__(self, flow: Flow, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.flow, self.device, self.dtype = flow, torch.device(device), dtype
        self.loss_unit = float(flow.inputs)
        """One nat per dimension, as a scale for losses: log-densities have no natural zero."""

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Density:
        """The same objective on another device or in another precision."""
        return Density(self.flow, device=device, dtype=dtype)

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this objective: see `corymb.objectives.recipe`."""
        return {"flow": self.flow}

    def init(self, key: Key) -> Params:
        """Fresh parameters of the flow."""
        return {name: value.to(self.device, self.dtype) for name, value in self.flow.init(key.cpu()).items()}

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """The log-density of each example."""
        z, log_det = self.flow.forward(params, x.flatten(1))
        return log_normal(z) + log_det

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The negative log-density of each example."""
        return -self.predict(params, examples.x)

    def scores(self, params: Params, examples: Examples) -> Tensor:
        """The log-density of each example."""
        return self.predict(params, examples.x)

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """The log-density of the mixture."""
        weights = align_leading(weights.to(predictions).log(), predictions)
        return torch.logsumexp(predictions + weights, 0)

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """The log-density itself."""
        return predictions

    def space(self, params: Params, x: Tensor) -> Tensor:
        """Examples as vectors in the coordinates in which the density is defined."""
        return self.flow.space(params, x.flatten(1))

    def sample(self, params: Params, key: Key, n: int) -> Tensor:
        """n new examples, as vectors."""
        drawn = normal(key.cpu(), (n, self.flow.latent), self.dtype).to(self.device)
        return self.flow.inverse(params, drawn)

    def label_points(self, models: Params, x: Tensor) -> Tensor:
        """The cluster of each example: the density under which it is most likely."""
        each = [self.predict(take(models, j), x) for j in range(count(models))]
        return torch.stack(each).argmax(0)

    def sample_cluster(self, models: Params, cluster: int, key: Key, n: int) -> Tensor:
        """n new examples from a cluster's density, as vectors."""
        return self.sample(take(models, cluster), key, n)

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        return f"density by {self.flow.describe()}"
