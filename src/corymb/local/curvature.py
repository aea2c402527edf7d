"""The largest curvature L of a client's loss, which limits the step size of gradient descent.

L is the largest eigenvalue of the Hessian; with step sizes above 2/L, descent diverges. It is estimated by Lanczos's
method with Hessian-vector products from differences of gradients: one gradient per iteration, no second derivatives of
the model, and exact products for the squared loss of a linear model. Power iteration takes as many gradients, but its
estimate is too small by half for one client in thousands, whose steepest direction the start happens to miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from corymb.keys import fold, normal, root
from corymb.local.descent import Descent, led
from corymb.trees import Params

ITERATIONS = 6
"""Iterations of Lanczos's method. Six are exact for six parameters, and a few hundredths too small for a hundred; steps
of 1/L leave room for an estimate that is too small by half."""
SHARPENED = 3
"""Steps of Laguerre's method from a bound on an eigenvalue, which come within a hundredth of it."""
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
    """An estimate of the largest curvature at `params`, at most a hundredth too large; one per client if stacked."""
    lead = () if clients is None else (clients,)
    key = fold(root(0), "curvature")
    direction = {
        name: normal(fold(key, place), tuple(value.shape[len(lead) :])).to(value).expand_as(value)
        for place, (name, value) in enumerate(params.items())
    }
    size, base = APART * _length(params, lead).clamp_min(1), gradient(params)
    link = _length(direction, lead)
    direction, before = _over(direction, link), {name: torch.zeros_like(value) for name, value in params.items()}
    link, alongs, links = torch.zeros_like(link), list[Tensor](), list[Tensor]()
    found = link
    for _ in range(ITERATIONS):
        shifted = gradient({name: value + led(size, value) * direction[name] for name, value in params.items()})
        change = _over({name: shifted[name] - base[name] for name in params}, size)
        along = _product(change, direction, lead)
        rest = {
            name: value - led(along, value) * direction[name] - led(link, value) * before[name]
            for name, value in change.items()
        }
        found = torch.maximum(found, along.abs() + link)
        link = _length(rest, lead)
        ended = link <= found * torch.finfo(link.dtype).eps ** 0.6  # what is left is rounding
        before, direction = direction, _over(rest, link.masked_fill(ended, torch.inf))
        link = link.masked_fill(ended, 0)
        alongs.append(along)
        links.append(link)
    return _largest(alongs, links[:-1])


def _largest(diagonal: Sequence[Tensor], beside: Sequence[Tensor]) -> Tensor:
    """The largest absolute eigenvalue of symmetric tridiagonal matrices, at most a hundredth too large.

    Laguerre's method on the characteristic polynomial, from Gershgorin's bound: on a GPU, a solver would be waited for.
    """
    k, none = len(diagonal), torch.zeros_like(diagonal[0])
    sums = [
        one.abs() + left + right for one, left, right in zip(diagonal, [none, *beside], [*beside, none], strict=True)
    ]
    bound = torch.stack(sums).amax(0).clamp_min(torch.finfo(none.dtype).tiny)
    both = [torch.stack([one, -one]) / bound for one in diagonal]  # the negative matrix for negative eigenvalues
    squares = [none, *((one / bound).square() for one in beside)]
    x = torch.ones_like(both[0])
    for _ in range(SHARPENED):
        before, value = torch.zeros_like(x), torch.ones_like(x)
        slopes = bends = (before, before)
        for one, square in zip(both, squares, strict=True):  # the polynomials of the leading parts, and derivatives
            there = x - one
            bends = bends[1], there * bends[1] + 2 * slopes[1] - square * bends[0]
            slopes = slopes[1], there * slopes[1] + value - square * slopes[0]
            before, value = value, there * value - square * before
        g, h = slopes[1] / value, (slopes[1] / value).square() - bends[1] / value
        nearer = x - k / (g + ((k - 1) * (k * h - g.square())).clamp_min(0).sqrt())
        x = torch.where((value > 0) & nearer.isfinite(), nearer, x)  # at an eigenvalue, the polynomial is 0
    return bound * x.amax(0)


def _over(tree: Params, by: Tensor) -> Params:
    least = torch.finfo(by.dtype).tiny
    return {name: value / led(by.clamp_min(least), value) for name, value in tree.items()}


def _length(tree: Params, lead: tuple[int, ...]) -> Tensor:
    return _product(tree, tree, lead).sqrt()


def _product(one: Params, other: Params, lead: tuple[int, ...]) -> Tensor:
    return torch.stack([(value * other[name]).reshape(*lead, -1).sum(-1) for name, value in one.items()]).sum(0)
