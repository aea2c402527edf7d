"""A trained model as a plain `torch.nn.Module`: raw features in, logits or targets in the data's units out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from corymb.core.objective import Objective
from corymb.models.copying import copied
from corymb.models.network import only_tensor
from corymb.objectives.classification import Classification
from corymb.objectives.regression import LinearRegression, Regression
from corymb.trees import Params


class Units(NamedTuple):
    """Means and scales of the features and of the targets."""

    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor
    limit: Tensor | None = None
    """Standard deviations beyond which features grow only logarithmically; None or infinite for no limit."""


def limited(z: Tensor, limit: Tensor) -> Tensor:
    """Limit values: beyond ±`limit` they grow only as a quarter of the logarithm of the excess.

    >>> limited(torch.tensor([-2.0, 3.0, 1e5]), torch.tensor(3.0))
    tensor([-2.0000,  3.0000,  5.8782])
    """
    size = z.abs()
    return z.sign() * (torch.minimum(size, limit) + (size - limit).clamp_min(0).log1p() / 4)


def unlimited(z: Tensor, limit: Tensor) -> Tensor:
    """The values that `limited` makes into `z`; those beyond float32 are cut to its range.

    >>> limit = torch.tensor(3.0)
    >>> [round(value, 3) for value in unlimited(limited(torch.tensor([-2.0, 3.0, 50.0]), limit), limit).tolist()]
    [-2.0, 3.0, 50.0]
    """
    size, most = z.abs().double(), torch.finfo(torch.float32).max
    beyond = (4 * (size - limit).clamp_min(0)).expm1().clamp_max(most)
    return (z.sign() * (torch.minimum(size, limit.double()) + beyond)).clamp(-most, most).to(z)


class InUnits(nn.Module):
    """A model with built-in standardisation; it needs nothing but torch.

    Its input is a batch of raw features, floats or bytes (which are pixels, and divided by 255, unless features are
    standardised); its output is a logit for each class (m classes) or a target for each example (m).
    """

    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor
    limit: Tensor

    def __init__(self, model: nn.Module, units: Units | None, *, targets: bool) -> None:
        super().__init__()
        self.model, self.targets, self.standardises = model, targets, units is not None
        self.limits = units is not None and units.limit is not None and bool(units.limit.isfinite().any())
        for name, value in (units._asdict() if units is not None else {}).items():
            if value is not None and (name != "limit" or self.limits):
                self.register_buffer(name, value.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Raw features -> logits or targets."""
        x = x / 255 if x.dtype == torch.uint8 and not self.standardises else x
        z = (x - self.mean) / self.scale if self.standardises else x
        out = only_tensor(self.model(limited(z, self.limit) if self.limits else z))
        out = out.reshape(x.shape[0]) if self.targets else out  # not len(x), which ONNX would fix as a constant
        return out * self.target_scale + self.target_mean if self.standardises else out


class Linear(nn.Module):
    """φ(x)·θ; the last entry of θ is the intercept, if there is one."""

    def __init__(self, weight: Tensor, features: Callable[[Tensor], Tensor] | None, *, intercept: bool) -> None:
        super().__init__()
        self.weight, self.features, self.intercept = nn.Parameter(weight), features, intercept

    def forward(self, x: Tensor) -> Tensor:
        """m inputs -> m."""
        x = x if self.features is None else self.features(x)
        return linear(x, self.weight[:-1]) + self.weight[-1] if self.intercept else linear(x, self.weight)


class Own(nn.Module):
    """The predictions of a custom objective."""

    def __init__(self, objective: Objective, params: Params) -> None:
        super().__init__()
        self.objective, self.names = objective, tuple(params)
        self.values = nn.ParameterList([nn.Parameter(value.clone()) for value in params.values()])

    def forward(self, x: Tensor) -> Tensor:
        """The objective's prediction for each example."""
        return self.objective.predict(dict(zip(self.names, self.values, strict=True)), x)


def module_of(objective: Objective, params: Params, units: Units | None, *, targets: bool) -> InUnits:
    """An objective's model as a standalone module in evaluation mode; it shares no memory with the parameters."""
    return InUnits(_bare(objective, params), units, targets=targets).eval()


def _bare(objective: Objective, params: Params) -> nn.Module:
    """The model as a module that takes features in the objective's units."""
    if isinstance(objective, LinearRegression):
        return Linear(params["weight"].clone(), objective.features, intercept=objective.intercept)
    if not isinstance(objective, (Classification, Regression)):
        return Own(objective, params)
    module = copied(objective.network.module).requires_grad_(True)
    own = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in params.items():
            own[name].copy_(value)
    return module
