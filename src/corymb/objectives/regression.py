"""Regression with squared loss: a linear model over features, or any network with one output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from corymb.core.client import Examples
from corymb.core.objective import Draws
from corymb.keys import Key, normal
from corymb.models.network import Network
from corymb.objectives.linear_form import LinearForm, layer_form, with_ones
from corymb.objectives.measures.numbers import OfNumbers
from corymb.objectives.shapes import wrong_shape
from corymb.settings import InvalidInput
from corymb.trees import Params


class LinearRegression:
    """y ≈ φ(x)·θ, loss (y − ŷ)², or half of it with `half=True` (as in Su, Xu, Yang 2022).

    `features` is φ, a function of one batch of x; without it, x itself. With `intercept`, the last entry of θ is added.
    """

    score_name = "squared_error"
    higher_is_better = False
    measures = OfNumbers()

    def __init__(
        self,
        inputs: int,
        *,
        features: Callable[[Tensor], Tensor] | None = None,
        intercept: bool = False,
        half: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.inputs, self.features, self.intercept, self.half = inputs, features, intercept, half
        self.squared: float | None = 0.5 if half else 1.0
        self.device, self.dtype = torch.device(device), dtype
        self.width = intercept + (inputs if features is None else int(features(torch.zeros(1, inputs)).shape[-1]))

    def to(self, device: torch.device | str, dtype: torch.dtype) -> LinearRegression:
        """The same objective on another device or in another precision."""
        return LinearRegression(**self.recipe(), device=device, dtype=dtype)

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this objective: see `corymb.objectives.recipe`."""
        return {"inputs": self.inputs, "features": self.features, "intercept": self.intercept, "half": self.half}

    @property
    def linear(self) -> LinearForm:
        """The linear form of the predictions."""
        return LinearForm(
            self._design,
            lambda y: y,
            lambda params: params["weight"],
            lambda theta: {"weight": theta},
            intercept=self.intercept,
        )

    def _design(self, x: Tensor) -> Tensor:
        x = x if self.features is None else self.features(x)
        return with_ones(x) if self.intercept else x

    def init(self, key: Key) -> Params:
        """A random direction of expected norm 1."""
        return {"weight": (normal(key, (self.width,)) / self.width**0.5).to(self.device, self.dtype)}

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """ŷ of each example."""
        x, weight = x if self.features is None else self.features(x), params["weight"]
        if weight.ndim != 1:  # k stacked models, whose predictions would be broadcast against the targets
            raise ValueError(f"The weight is {list(weight.shape)}, wanted one model's, [{self.width}].")
        return linear(x, weight[:-1]) + weight[-1] if self.intercept else linear(x, weight)

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """(Half of) the squared error of each example."""
        squared = (examples.y - self.predict(params, examples.x)).square()
        return squared / 2 if self.half else squared

    def scores(self, params: Params, examples: Examples) -> Tensor:
        """The squared error of each example, without the half."""
        return self.grade(self.predict(params, examples.x), examples)

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """The squared error of each prediction."""
        return (examples.y - predictions).square()

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """The mean of the predictions."""
        return _mean(predictions, weights)

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        features = "x" if self.features is None else getattr(self.features, "__qualname__", repr(self.features))
        intercept = ", intercept" if self.intercept else ""
        return f"linear regression on {self.width} features {features}{intercept}, half={self.half}"


class Regression:
    """Squared loss of any network with one output."""

    score_name = "squared_error"
    higher_is_better = False
    squared = 1.0
    measures = OfNumbers()

    def __init__(self, network: Network) -> None:
        self.network = network

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Regression:
        """The same objective on another device or in another precision."""
        return Regression(self.network.to(device, dtype))

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this objective: see `corymb.objectives.recipe`."""
        return {"network": self.network}

    def init(self, key: Key) -> Params:
        """Fresh parameters of the network."""
        return self.network.init(key)

    @property
    def linear(self) -> LinearForm | None:
        """The linear form of the predictions, if the network is a single linear layer."""
        form = layer_form(self.network)
        if form is None or not self._one_output:
            return None
        return replace(
            form,
            coefficients=lambda params: form.coefficients(params).squeeze(-2),
            parameters=lambda theta: form.parameters(theta.unsqueeze(-2)),
        )

    @property
    def _one_output(self) -> bool:
        return all(p.shape[0] == 1 for p in self.network.module.parameters())

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """ŷ of each example."""
        return self._checked(self.network(params, x), x)

    def _checked(self, out: Tensor, x: Tensor) -> Tensor:
        if out.shape not in ((len(x),), (len(x), 1)):
            raise InvalidInput(wrong_shape(out, [len(x), 1]))
        return out.reshape(len(x))

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The squared error of each example."""
        return self.grade(self.predict(params, examples.x), examples)

    scores = losses

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """The squared error of each example, with dropout."""
        return self.grade(self._checked(self.network.training(params, examples.x, draws), examples.x), examples)

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """The squared error of each prediction."""
        return (examples.y - predictions).square()

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """The mean of the predictions."""
        return _mean(predictions, weights)

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        return f"regression by {self.network.describe()}"


def _mean(predictions: Tensor, weights: Tensor) -> Tensor:
    mean: Tensor = torch.tensordot(weights.to(predictions), predictions, dims=1)
    return mean
