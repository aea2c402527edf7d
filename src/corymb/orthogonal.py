"""Leading subspaces of a sum of clients' matrices, by orthogonal iteration on products, without forming the matrices.

Su, Xu, Yang 2022 (Algorithm 3) find the leading k directions of Y = Σ_c Y_c, where Y_c is known to client c alone: the
server sends an orthonormal basis Q, clients return Y_c Q (d k), the server adds up and takes the QR decomposition. Here
Y_c is the mean of ½(l_a r_bᵀ + r_a l_bᵀ) over pairs a ≠ b of a client's points, with vectors l_a = left_a · x_a and
r_b = right_b · x_b; it is symmetric, so that one product per step is enough. No d × d matrix is ever formed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.keys import Key, normal


def random_bases(keys: Key, d: int, k: int) -> Tensor:
    """A random orthonormal basis of k directions in d dimensions for each key, in float64: a d k."""
    return orthonormal(normal(keys, (d, k), torch.float64))


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis of the span of the columns: ... d k.

    >>> basis = orthonormal(torch.tensor([[3.0, 1.0], [4.0, 0.0]]))
    >>> bool(torch.allclose(basis.mT @ basis, torch.eye(2), atol=1e-6))
    True
    """
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis


def leading_subspace(matrices: Tensor, k: int) -> Tensor:
    """The left singular vectors of the k largest singular values: ... d d -> ... d k."""
    vectors: Tensor = torch.linalg.svd(matrices).U
    return vectors[..., :k]


class Roots(NamedTuple):
    """The powers -1/2 and 1/2 of a symmetric matrix."""

    root: Tensor
    back: Tensor


def roots(values: Tensor, vectors: Tensor) -> Roots:
    """The roots of a matrix with these positive eigenvalues and eigenvectors, on the space that the latter span."""
    return Roots(*((vectors * values**power) @ vectors.mT for power in (-0.5, 0.5)))


def pair_products(x: Tensor, left: Tensor, right: Tensor, bases: Tensor, pairs: int | None = None) -> Tensor:
    """One client's sum over ordered pairs of its points, times each of a bases: d a k.

    `x` are its points (m d), `left` and `right` the factors of each point for each basis (m a; 0 for padding), `bases`
    is a d k. `pairs` takes that many disjoint pairs of neighbouring points instead of all.
    """
    a, d, k = bases.shape
    along = (x @ bases.movedim(0, 1).reshape(d, a * k)).unflatten(-1, (a, k))  # m a k
    back = _half(left, right, along, pairs)
    if left is not right:
        back = (back + _half(right, left, along, pairs)) / 2
    product: Tensor = torch.matmul(x.mT, back.flatten(1)).unflatten(-1, (a, k))
    return product


def _half(left: Tensor, right: Tensor, along: Tensor, pairs: int | None) -> Tensor:
    return left[..., None] * _partners(right[..., None] * along, pairs)


def _partners(values: Tensor, pairs: int | None) -> Tensor:
    """For every point, the sum over the points it is paired with: m a k."""
    if pairs is None:
        return values.sum(0) - values
    m = len(values)
    place = torch.arange(m, device=values.device)
    other = place ^ 1  # 0 with 1, 2 with 3
    paired = (other < m) & (place < 2 * pairs)
    return torch.where(paired[:, None, None], values[other.clamp_max(m - 1)], 0)


def points_and_pairs(real: Tensor, pairs: int | None = None) -> tuple[Tensor, Tensor]:
    """The number of a client's points that count, and of ordered pairs they form; `real` is False for padding.

    >>> points_and_pairs(torch.tensor([True, True, True, False]))
    (tensor(3), tensor(6))
    """
    m = real.sum()
    if pairs is None:
        return torch.where(m > 1, m, 0), m * (m - 1)
    used = 2 * (m // 2).clamp_max(pairs)
    return used, used
