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
from corymb.local.descent import Descent
from corymb.trees import Params, align_leading

LANCZOS_ITERATIONS = 6
"""Iterations of Lanczos's method. Six are exact for six parameters, and a few hundredths too small for a hundred; steps
of 1/L leave room for an estimate that is too small by half."""
PROBE_DISTANCE = 1e-2
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
    size, base = PROBE_DISTANCE * _length(params, lead).clamp_min(1), gradient(params)
    link = _length(direction, lead)
    direction, before = _over(direction, link), {name: torch.zeros_like(value) for name, value in params.items()}
    link, alongs, links = torch.zeros_like(link), list[Tensor](), list[Tensor]()
    found = link
    for _ in range(LANCZOS_ITERATIONS):
        shifted = gradient(
            {name: value + align_leading(size, value) * direction[name] for name, value in params.items()}
        )
        change = _over({name: shifted[name] - base[name] for name in params}, size)
        along = _product(change, direction, lead)
        rest = {
            name: value - align_leading(along, value) * direction[name] - align_leading(link, value) * before[name]
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
    """The largest absolute eigenvalue of symmetric tridiagonal matrices, from their diagonals."""
    above = torch.diag_embed(torch.stack(list(beside), -1), 1)
    matrices = torch.diag_embed(torch.stack(list(diagonal), -1)) + above + above.mT
    finite = matrices.isfinite().all(-1).all(-1)  # of a client that diverges, the solver would raise an error
    largest = torch.linalg.eigvalsh(torch.where(align_leading(finite, matrices), matrices, 0).cpu()).abs().amax(-1)
    return torch.where(finite, largest.to(matrices), torch.nan)


def _over(tree: Params, by: Tensor) -> Params:
    least = torch.finfo(by.dtype).tiny
    return {name: value / align_leading(by.clamp_min(least), value) for name, value in tree.items()}


def _length(tree: Params, lead: tuple[int, ...]) -> Tensor:
    return _product(tree, tree, lead).sqrt()


def _product(one: Params, other: Params, lead: tuple[int, ...]) -> Tensor:
    return torch.stack([(value * other[name]).reshape(*lead, -1).sum(-1) for name, value in one.items()]).sum(0)
