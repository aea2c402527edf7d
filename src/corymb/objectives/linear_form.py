"""What is linear in an objective, in the open: how predictions are φ(x)·θ."""

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
    """How predictions are φ(x)·θ: what an objective makes of examples, and of parameters.

    An intercept is the last entry of θ, and the last feature 1. Parameters may have leading axes, such as one for k
    models; θ then has them too. For classes θ has a row for each logit.
    """

    features: Callable[[Tensor], Tensor]
    """A batch of x -> m d."""
    targets: Callable[[Tensor], Tensor]
    """y as θ has to meet it."""
    coefficients: Callable[[Params], Tensor]
    """Parameters -> θ."""
    parameters: Callable[[Tensor], Params]
    """θ -> parameters."""
    intercept: bool = False
    counts: Callable[[Tensor], Tensor] | None = None
    """How much an example with target y counts in training; None: all alike."""
    shares: Callable[[Tensor], Tensor] | None = None
    """The probability of each class that training asks for where the label is y: m classes; None: 1 for y."""

    def after(self, features: Callable[[Tensor], Tensor], targets: Callable[[Tensor], Tensor]) -> LinearForm:
        """The form of an objective that changes examples before this one sees them."""
        return replace(self, features=lambda x: self.features(features(x)), targets=lambda y: self.targets(targets(y)))


def linear_form(objective: Objective) -> LinearForm | None:
    """The form of an objective that is the squared loss of φ(x)·θ, as it says (`linear`); None where it is not."""
    form: LinearForm | None = getattr(objective, "linear", None)
    return form


def logit_form(objective: Objective) -> LinearForm | None:
    """The form of an objective that is the cross-entropy of logits φ(x)·θ (`logits`); None where it is not."""
    form: LinearForm | None = getattr(objective, "logits", None)
    return form


def layer_form(network: Network) -> LinearForm | None:
    """The form of a network that is one linear layer, θ with a row for each output; None for any other."""
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
    """The features and a last one that is 1, for an intercept."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)
