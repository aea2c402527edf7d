"""What clients do in moment descent: a panel's products with its residual moments, and an anchor's step.

With ε = (y − φ(x)·θ) φ(x) of each point, the residual moment of a client is the mean of ε ε'ᵀ over its pairs of
different points. Its expectation is of rank one, Σ(θ* − θ)(θ* − θ)ᵀΣ with the client's own θ* and Σ: noise and the
size of x drop out, because the two points of a pair are independent.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.parts.linear import linear_features
from corymb.core.client import Client, Share, on_client
from corymb.keys import normal
from corymb.orthogonal import pair_products, points_and_pairs, power_iteration


@on_client
def multiply(client: Client, estimates: Tensor, bases: Tensor, own: Tensor, *, pairs: int | None) -> Share[tuple[()]]:
    """This client's share of every anchor's Y_i, times the anchor's basis: d a k. Only ever summed over a panel.

    `own` is the number of the anchor that the client is itself, or -1: its points do not count for its own subspace.
    """
    x, real = linear_features(client)
    points, number = points_and_pairs(real, pairs)
    scale = number.clamp_min(1).to(x.dtype).rsqrt()
    counts = torch.arange(len(bases), device=own.device) != own
    sides = [_residuals(client, x, real, copy) * scale * counts for copy in estimates]  # two, where noise was added
    product = pair_products(x, sides[0], sides[-1], bases, pairs)
    return Share({"product": product}, weight=points[None].to(product.dtype))


class Moved(NamedTuple):
    """An anchor's estimate after a step, and how far from its own model it felt before."""

    estimate: Tensor  # d
    sigma: Tensor


@on_client
def move(
    client: Client,
    estimate: Tensor,
    basis: Tensor,
    *,
    part: int,
    parts: int,
    power_steps: int,
    step: float,
    stop: float,
) -> Moved:
    """One step of an anchor along the leading direction of its own residual moment inside the subspace."""
    x, real = linear_features(client)
    real = real & (torch.arange(len(real), device=real.device) % parts == part)
    seen = (x @ basis) * _residuals(client, x, real, estimate[None])  # m k, Uᵀε of each point
    number = points_and_pairs(real)[1].clamp_min(1)
    total = seen.sum(0)
    moment = (torch.outer(total, total) - seen.mT @ seen) / number
    start = normal(client.key("power"), (basis.shape[-1],)).to(basis)
    direction, value = power_iteration(moment, start, power_steps)
    sigma = value.clamp_min(0).sqrt()
    length = torch.where(sigma > stop, step * sigma, 0)
    return Moved(estimate + length * (basis @ oriented(direction, total)), sigma)


def oriented(direction: Tensor, towards: Tensor) -> Tensor:
    """The direction or its opposite, whichever points more `towards`."""
    return torch.where(direction @ towards < 0, -direction, direction)


def _residuals(client: Client, x: Tensor, real: Tensor, estimates: Tensor) -> Tensor:
    """y − φ(x)·θ of each point for each estimate: m a; 0 for what does not count."""
    return torch.where(real[:, None], client.train.y[:, None] - x @ estimates.mT, 0)
