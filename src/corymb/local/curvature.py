"""How steep a client's loss is: the largest curvature, which says how long a step of descent may be.

Steps longer than 2/L grow without bound, where L is the largest eigenvalue of the Hessian. L is found by power
iteration, and the product of the Hessian with a vector as a difference of gradients: that takes one gradient an
iteration, needs no second derivative of the model, and is exact for a squared loss of a linear model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from corymb.keys import fold, normal, root
from corymb.local.descent import Descent, led
from corymb.trees import Params

ITERATIONS = 6
"""Within a tenth of L on real tables; a step of 1/L leaves room for an L found too small by half."""
APART = 1e-2
"""How far apart, beside the size of the model, the two gradients are taken."""


def step_part(how: Descent, gradient: Callable[[Params], Params], params: Params, clients: int | None = None) -> Tensor:
    """The part of a step of `how.lr` that is safe at `params`: 1, or less where curvature asks for less.

    With a number of clients the tensors have a leading axis of them, and each has a part of its own.
    """
    steepest = curvature(gradient, params, clients) + how.weight_decay + how.proximal
    return (1 / (how.lr * steepest).clamp_min(torch.finfo(steepest.dtype).tiny)).clamp_max(1)


def curvature(gradient: Callable[[Params], Params], params: Params, clients: int | None = None) -> Tensor:
    """The largest curvature at `params`, a little less for few iterations; for each client where there is an axis."""
    lead = () if clients is None else (clients,)
    key = fold(root(0), "curvature")
    direction = {
        name: normal(fold(key, place), tuple(value.shape[len(lead) :])).to(value).expand_as(value)
        for place, (name, value) in enumerate(params.items())
    }
    size = APART * _length(params, lead).clamp_min(1)
    here, found = gradient(params), torch.zeros(lead)
    for _ in range(ITERATIONS):
        scale = size / _length(direction, lead).clamp_min(torch.finfo(size.dtype).tiny)
        step = {name: led(scale, value) * value for name, value in direction.items()}
        there = gradient({name: value + step[name] for name, value in params.items()})
        change = {name: there[name] - here[name] for name in params}
        found = _length(change, lead) / size
        direction = change
    return found


def _length(tree: Params, lead: tuple[int, ...]) -> Tensor:
    return torch.stack([value.reshape(*lead, -1).square().sum(-1) for value in tree.values()]).sum(0).sqrt()
