"""Client functions of moment descent: the panel's products with residual moments, and an anchor's step.

With ε = (y − φ(x)·θ) φ(x) of each point, the residual moment of a client is the mean of ε ε'ᵀ over its pairs of
different points. Its expectation is of rank one, Σ(θ* − θ)(θ* − θ)ᵀΣ with the client's own θ* and Σ: noise and the
size of x drop out, because the two points of a pair are independent.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.parts.linear import Design, design
from corymb.core.client import Client, Share, on_client
from corymb.orthogonal import pair_products, points_and_pairs


@on_client
def multiply(client: Client, estimates: Tensor, bases: Tensor, own: Tensor, *, pairs: int | None) -> Share[tuple[()]]:
    """This client's share of every anchor's Y_i times the anchor's basis: d a k; the server gets only panel sums.

    `own` is the number of the anchor that the client is itself, or -1: its points do not count for its own subspace.
    """
    seen = design(client)
    points, number = points_and_pairs(seen.real, pairs)
    scale = number.clamp_min(1).to(seen.x.dtype).rsqrt()
    counts = torch.arange(len(bases), device=own.device) != own
    sides = [residuals(seen, copy) * scale * counts for copy in estimates]  # two copies if noise was added
    product = pair_products(seen.x, sides[0], sides[-1], bases, pairs)
    return Share({"product": product}, weight=points[None].to(product.dtype))


class Moved(NamedTuple):
    """An anchor's estimate after a step."""

    estimate: Tensor  # d
    sigma: Tensor
    """The estimated distance from its own model before the step."""
    noise: Tensor
    """The distance that noise alone explains: √(k v / m), for k coefficients, m points and mean squared residual v."""


@on_client
def move(client: Client, estimate: Tensor, basis: Tensor, *, part: int, parts: int, step: float, stop: float) -> Moved:
    """One step of an anchor along the leading direction of its own residual moment inside the subspace.

    The moment is a small matrix, of which all eigenvalues are found: the largest, not the largest in magnitude.
    """
    whole = design(client)
    real = whole.real & (torch.arange(len(whole.real), device=whole.real.device) % parts == part)
    mine = whole._replace(real=real)
    seen = (whole.x @ basis) * residuals(mine, estimate[None])  # m k, Uᵀε of each point
    total, m = seen.sum(0), real.sum().clamp_min(1)
    moment = (torch.outer(total, total) - seen.mT @ seen) / points_and_pairs(real)[1].clamp_min(1)
    values, vectors = torch.linalg.eigh(moment)
    sigma = values[-1].clamp_min(0).sqrt()
    length = torch.where(sigma > stop, step * sigma, 0)
    moved = estimate + length * (basis @ oriented(vectors[:, -1], total))
    return Moved(moved, sigma, (basis.shape[-1] * residuals(mine, moved[None]).square().sum()).sqrt() / m)


def oriented(direction: Tensor, towards: Tensor) -> Tensor:
    """The direction or its opposite, whichever points more `towards`."""
    return torch.where(direction @ towards < 0, -direction, direction)


def residuals(seen: Design, estimates: Tensor) -> Tensor:
    """y − φ(x)·θ of each point for each estimate: m a; 0 for padding."""
    return torch.where(seen.real[:, None], seen.y[:, None] - seen.x @ estimates.mT, 0)
