"""Coordinates in which all clients' features have second moment I, from sums over all clients.

With Σ the mean of φ(x) φ(x)ᵀ over all training examples, θ = Σ^{-1/2} β has features Σ^{-1/2} φ(x). Clients need not
know Σ: what they are sent and what they return is in the features' own coordinates; the server changes between the two.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.parts.linear import Design, design
from corymb.algorithms.parts.work import Weights
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.keys import fold, root
from corymb.orthogonal import orthonormal, random_bases, roots

NUMBERS = 2**15
"""The most entries in one reply: a larger moment is requested in parts."""
WHOLE = 512
"""The most features for which the whole moment is requested; with more, only its leading directions are."""
LEADING, STEPS = 64, 8
"""The number of leading directions, and the steps of orthogonal iteration that find them."""
TINY = 1e-9
"""Directions whose second moment is below this fraction of the largest are dropped: nothing can be learned there."""


class Whitening(NamedTuple):
    """Σ^{-1/2}, Σ^{1/2}, and the coefficients of the single model that fits all clients best."""

    root: Tensor  # d d
    back: Tensor  # d d
    pooled: Tensor  # d

    @property
    def kept(self) -> Tensor:
        """The projection on directions along which features vary: d d."""
        return self.root @ self.back


@on_client
def send_second_moments(client: Client, *, first: int, last: int, weights: Weights) -> Share[tuple[()]]:
    """Columns `first` to `last` of the mean of φ φᵀ, and the mean of y φ; the server gets only sums over clients."""
    x, y, real = _wide(client)
    m = real.sum().clamp_min(1)
    return Share({"xx": x.mT @ x[:, first:last] / m, "xy": x.mT @ y / m}, weight=_weight(real, weights))


@on_client
def multiply_second_moment(client: Client, basis: Tensor, *, weights: Weights) -> Share[tuple[()]]:
    """The mean of φ φᵀ times a basis (d r), and the mean of y φ; the server gets only sums over all clients."""
    x, y, real = _wide(client)
    m = real.sum().clamp_min(1)
    value = {"product": x.mT @ (x @ basis.to(x)) / m, "xy": x.mT @ y / m}
    return Share(value, weight=_weight(real, weights))


def _wide(client: Client) -> Design:
    x, y, real = design(client)
    dtype = x.dtype if x.device.type == "mps" else torch.float64
    return Design(x.to(dtype), y.to(dtype), real)


def _weight(real: Tensor, weights: Weights) -> Tensor:
    weight = real.sum() if weights == "examples" else real.any()
    return weight[None].to(torch.float64 if real.device.type != "mps" else torch.float32)


def whitening_of(fed: Federation, like: Tensor, *, weights: Weights = "examples") -> Whitening:
    """Ask all clients for the second moment of their features; `like` is one model's coefficients (d)."""
    d = len(like)
    if d > WHOLE:
        return _leading(fed, like, weights)
    parts, columns = [], max(1, NUMBERS // d)
    for first in range(0, d, columns):
        found = fed.clients.sum(send_second_moments, first=first, last=min(d, first + columns), weights=weights).value
        parts.append(found.total["xx"][0] / found.weight)
    values, vectors = torch.linalg.eigh(torch.cat(parts, dim=1))
    kept = values > TINY * values.max()
    values, vectors = values[kept], vectors[:, kept]
    pooled = vectors @ ((vectors.mT @ (found.total["xy"][0] / found.weight)) / values)
    return Whitening(*(one.to(like) for one in (*roots(values, vectors), pooled)))


def _leading(fed: Federation, like: Tensor, weights: Weights) -> Whitening:
    """Whitening by the leading directions, as if the moment were constant in all others.

    That constant is the smallest of the leading values, an upper bound for the rest.
    """
    d = len(like)
    basis = random_bases(fold(root(0), torch.arange(1)), d, LEADING)[0].to(like.device)
    for _ in range(STEPS):
        found = fed.clients.sum(multiply_second_moment, basis, weights=weights).value
        product = found.total["product"][0] / found.weight
        small = basis.mT @ product
        basis, before = orthonormal(product), basis
    values, vectors = torch.linalg.eigh((small + small.mT) / 2)
    vectors = before @ vectors
    tail = values.min().clamp_min(TINY * values.max())
    values = values.clamp_min(tail)
    whole = torch.eye(d).to(vectors)
    root_, back = (
        (vectors * (values**power - tail**power)) @ vectors.mT + whole * tail**power for power in (-0.5, 0.5)
    )
    pooled = root_ @ root_ @ (found.total["xy"][0] / found.weight)
    return Whitening(*(one.to(like) for one in (root_, back, pooled)))
