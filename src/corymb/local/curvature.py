"""The largest curvature L of a client's loss, which limits the step size of gradient descent.

L is the largest eigenvalue of the Hessian; with step sizes above 2/L, descent diverges. It is estimated by power
iteration with Hessian-vector products from differences of gradients: one gradient per iteration, no second derivatives
of the model, and exact products for the squared loss of a linear model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from corymb.keys import fold, normal, root
from corymb.local.descent import Descent, led
from corymb.trees import Params

ITERATIONS = 6
"""Power iterations. Six come within a tenth of L on real tables; steps of 1/L leave room for an estimate that is too
small by half."""
APART = 1e-2
"""The distance between the two points whose gradients are compared, relative to the model's norm (at least 1)."""


def step_part(how: Descent, gradient: Callable[[Params], Params], params: Params, clients: int | None = None) -> Tensor:
    """The factor, at most 1, by which to multiply `how.lr` so that the step size is at most 1/L at `params`.

    L includes the curvature of weight decay and of the proximal term. With `clients`, all tensors have a leading axis
    of that length, and there is one factor per client.
    """
    steepest = curvature(gradient, params, clients) + how.weight_decay + how.proximal
    return (1 / (how.lr * steepest).clamp_min(torch.finfo(steepest.dtype).tiny)).clamp_max(1)


def curvature(gradient: Callable[[Params], Params], params: Params, clients: int | None = None) -> Tensor:
    """An estimate of the largest curvature at `params`, from below; one per client if tensors are stacked."""
    lead = () if clients is None else (clients,)
    key = fold(root(0), "curvature")
    direction = {
        name: normal(fold(key, place), tuple(value.shape[len(lead) :])).to(value).expand_as(value)
        for place, (name, value) in enumerate(params.items())
    }
    size = APART * _length(params, lead).clamp_min(1)
    base, estimate = gradient(params), torch.zeros(lead)
    for _ in range(ITERATIONS):
        scale = size / _length(direction, lead).clamp_min(torch.finfo(size.dtype).tiny)
        step = {name: led(scale, value) * value for name, value in direction.items()}
        shifted = gradient({name: value + step[name] for name, value in params.items()})
        change = {name: shifted[name] - base[name] for name in params}
        estimate = _length(change, lead) / size
        direction = change
    return estimate


def _length(tree: Params, lead: tuple[int, ...]) -> Tensor:
    return torch.stack([value.reshape(*lead, -1).square().sum(-1) for value in tree.values()]).sum(0).sqrt()
