"""The linear form of an objective whose predictions are φ(x)·θ, for algorithms that need φ and θ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from corymb.core.objective import Objective
from corymb.models.network import Network
from corymb.trees import Params


@dataclass(frozen=True)
class LinearForm:
    """Functions that turn examples and parameters into φ(x), y and θ, such that predictions are φ(x)·θ.

    An intercept is the last entry of θ, and the last feature is 1. Parameters may have leading axes, such as one for k
    models; θ then has them too. For classes θ has a row for each logit.
    """

    features: Callable[[Tensor], Tensor]
    """A batch of x -> m d."""
    targets: Callable[[Tensor], Tensor]
    """y -> the targets of φ(x)·θ."""
    coefficients: Callable[[Params], Tensor]
    """Parameters -> θ."""
    parameters: Callable[[Tensor], Params]
    """θ -> parameters."""
    intercept: bool = False
    counts: Callable[[Tensor], Tensor] | None = None
    """The weight in training of an example with target y; None if all weights are equal."""
    shares: Callable[[Tensor], Tensor] | None = None
    """The target probability of each class for label y: m classes; None for probability 1 of y."""

    def after(self, features: Callable[[Tensor], Tensor], targets: Callable[[Tensor], Tensor]) -> LinearForm:
        """The form of an objective that transforms examples before passing them to this one."""
        return replace(self, features=lambda x: self.features(features(x)), targets=lambda y: self.targets(targets(y)))


def linear_form(objective: Objective) -> LinearForm | None:
    """The form of an objective that is the squared loss of φ(x)·θ (its attribute `linear`); None for others."""
    form: LinearForm | None = getattr(objective, "linear", None)
    return form


def logit_form(objective: Objective) -> LinearForm | None:
    """The form of an objective that is the cross-entropy of logits φ(x)·θ (its attribute `logits`); None for others."""
    form: LinearForm | None = getattr(objective, "logits", None)
    return form


def layer_form(network: Network) -> LinearForm | None:
    """The form of a network that is a single linear layer, with a row of θ for each output; None for any other."""
    layers = list(network.module.named_children()) or [("", network.module)]
    name, layer = layers[-1]
    flat = all(isinstance(other, nn.Flatten) for _, other in layers[:-1])
    chained = isinstance(network.module, (nn.Sequential, nn.Linear))
    if not (chained and flat and isinstance(layer, nn.Linear)):
        return None
    weight, bias = (f"{name}.{kind}".lstrip(".") for kind in ("weight", "bias"))
    names = {weight} | ({bias} if layer.bias is not None else set())
    if names != network.trainable:
        return None  # part of it is frozen
    intercept = bias in names

    def coefficients(params: Params) -> Tensor:
        return torch.cat([params[weight], params[bias].unsqueeze(-1)], -1) if intercept else params[weight]

    def parameters(theta: Tensor) -> Params:
        return {weight: theta[..., :-1], bias: theta[..., -1]} if intercept else {weight: theta}

    def features(x: Tensor) -> Tensor:
        x = x.flatten(1)
        return with_ones(x) if intercept else x

    return LinearForm(features, lambda y: y, coefficients, parameters, intercept)


def with_ones(x: Tensor) -> Tensor:
    """Append a feature that is 1, for an intercept."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)
