"""A trained model as a plain `torch.nn.Module`: raw features in, logits or targets in the data's units out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from corymb.core.objective import Objective
from corymb.objectives.classification import Classification
from corymb.objectives.regression import LinearRegression, Regression
from corymb.trees import Params


class Units(NamedTuple):
    """Means and scales: of the features, and of the targets."""

    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor


class InUnits(nn.Module):
    """A model with the standardising inside; it needs nothing but torch.

    Its input is a batch of raw features, floats or bytes (which are pixels, and divided by 255); its output is a logit
    for each class (m classes) or a target for each example (m).
    """

    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor

    def __init__(self, model: nn.Module, units: Units | None, *, targets: bool) -> None:
        super().__init__()
        self.model, self.targets, self.standardises = model, targets, units is not None
        for name, value in (units._asdict() if units is not None else {}).items():
            self.register_buffer(name, value.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Raw features -> logits or targets."""
        x = x / 255 if x.dtype == torch.uint8 else x
        out: Tensor = self.model((x - self.mean) / self.scale if self.standardises else x)
        out = out.reshape(x.shape[0]) if self.targets else out  # not len(x): ONNX wants the number to stay open
        return out * self.target_scale + self.target_mean if self.standardises else out


class Linear(nn.Module):
    """φ(x)·θ, without an intercept."""

    def __init__(self, weight: Tensor, features: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.weight, self.features = nn.Parameter(weight), features

    def forward(self, x: Tensor) -> Tensor:
        """m inputs -> m."""
        return linear(x if self.features is None else self.features(x), self.weight)


class Own(nn.Module):
    """The predictions of an objective of a user's own."""

    def __init__(self, objective: Objective, params: Params) -> None:
        super().__init__()
        self.objective, self.names = objective, tuple(params)
        self.values = nn.ParameterList([nn.Parameter(value.clone()) for value in params.values()])

    def forward(self, x: Tensor) -> Tensor:
        """What the objective predicts for each example."""
        return self.objective.predict(dict(zip(self.names, self.values, strict=True)), x)


def module_of(objective: Objective, params: Params, units: Units | None, *, targets: bool) -> InUnits:
    """A model of an objective as a module of its own, in evaluation mode; it shares no memory with the parameters."""
    return InUnits(_bare(objective, params), units, targets=targets).eval()


def _bare(objective: Objective, params: Params) -> nn.Module:
    """The module that takes features as the objective does."""
    if isinstance(objective, LinearRegression):
        return Linear(params["weight"].clone(), objective.features)
    if not isinstance(objective, (Classification, Regression)):
        return Own(objective, params)
    module = copy.deepcopy(objective.network.module).requires_grad_(True)
    own = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in params.items():
            own[name].copy_(value)
    return module
