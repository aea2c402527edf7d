"""Orthogonal iteration on products: equal to numpy where there is a gap, within Lemma 5 where there is none."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.keys import fold, root
from corymb.orthogonal import (
    leading_subspace,
    orthonormal,
    pair_products,
    points_and_pairs,
    random_bases,
)

SEEDS = st.integers(0, 10_000)


def by_hand(x, left, right, pairs):
    """Σ over ordered pairs of ½(l_a r_bᵀ + r_a l_bᵀ), one pair after another."""
    m, d = x.shape
    total = np.zeros((d, d))
    for a in range(m):
        for b in range(m):
            wanted = a != b if pairs is None else b == a ^ 1 and a < 2 * pairs
            if wanted:
                total += np.outer(left[a] * x[a], right[b] * x[b]) / 2 + np.outer(right[a] * x[a], left[b] * x[b]) / 2
    return total


@given(
    m=st.integers(1, 7),
    d=st.integers(1, 5),
    anchors=st.integers(1, 3),
    noise=st.booleans(),
    pairs=st.none() | st.integers(1, 4),
    seed=SEEDS,
)
def test_products_are_the_pairs_added_up_by_hand(m, d, anchors, noise, pairs, seed):
    rng = np.random.default_rng(seed)
    x, left = rng.normal(size=(m, d)), rng.normal(size=(m, anchors))
    right = rng.normal(size=(m, anchors)) if noise else left
    k = int(rng.integers(1, d + 1))
    bases = rng.normal(size=(anchors, d, k))
    one = torch.tensor(left)
    got = pair_products(torch.tensor(x), one, torch.tensor(right) if noise else one, torch.tensor(bases), pairs)
    assert got.shape == (d, anchors, k)
    for i in range(anchors):
        want = by_hand(x, left[:, i], right[:, i], pairs) @ bases[i]
        assert np.allclose(got[:, i].numpy(), want, atol=1e-9)


@given(m=st.integers(0, 7), padding=st.integers(0, 4), pairs=st.none() | st.integers(1, 4))
def test_points_and_pairs_count_what_products_add_up(m, padding, pairs):
    real = torch.arange(m + padding) < m
    points, number = points_and_pairs(real, pairs)
    used = [a for a in range(m) for b in range(m) if (a != b if pairs is None else b == a ^ 1 and a < 2 * pairs)]
    assert int(number) == len(used)
    assert int(points) == len(set(used))


def test_padding_changes_nothing():
    rng = np.random.default_rng(0)
    x, left, basis = torch.tensor(rng.normal(size=(5, 3))), torch.tensor(rng.normal(size=(5, 1))), torch.eye(3)[None]
    padded = torch.cat([left, torch.zeros(2, 1)]).double()
    for pairs in (None, 2, 9):
        alone = pair_products(x, left, left, basis.double(), pairs)
        stacked = pair_products(torch.cat([x, x[-1:], x[-1:]]), padded, padded, basis.double(), pairs)
        assert torch.allclose(alone, stacked, atol=1e-12)


def iterate(matrix, k, steps, seed):
    basis = random_bases(fold(root(seed), torch.arange(1)), len(matrix), k)[0]
    for _ in range(steps):
        basis = orthonormal(matrix @ basis)
    return basis


@given(d=st.integers(2, 30), data=st.data(), seed=SEEDS)
def test_with_a_gap_the_subspace_is_numpys(d, data, seed):
    k = data.draw(st.integers(1, d - 1))
    rng = np.random.default_rng(seed)
    vectors = np.linalg.qr(rng.normal(size=(d, d)))[0]
    values = np.sort(rng.uniform(1, 10, size=d))[::-1]
    values[k:] *= values[k - 1] / values[k] / 2  # σ_k / σ_{k+1} = 2
    matrix = vectors @ np.diag(values * rng.choice([-1, 1], size=d)) @ vectors.T
    basis = iterate(torch.tensor(matrix), k, 40, seed).numpy()
    want = np.linalg.svd(matrix)[0][:, :k]
    assert angle(basis, want) < 1e-4
    assert angle(leading_subspace(torch.tensor(matrix), k).numpy(), want) < 1e-6


def angle(one, other):
    """The largest principal angle between two subspaces, by the sine, which keeps its digits where angles are small."""
    return np.arcsin(min(1.0, np.linalg.norm(one - other @ (other.T @ one), 2)))


@given(d=st.integers(2, 40), data=st.data(), size=st.sampled_from([1e-6, 1e-3, 1e-1]), seed=SEEDS)
def test_without_a_gap_lemma_5_holds(d, data, size, seed):
    """M = Σ x_i x_iᵀ + E with ‖E‖ ≤ e: every ‖QQᵀx_i − x_i‖ ≤ 3√e, whether or not the x_i stand out from E."""
    k = data.draw(st.integers(1, min(d, 6)))
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(k, d)) * rng.choice([0.0, 1e-3, 1e-2, 1.0, 3.0], size=(k, 1))
    if k > 1 and rng.random() < 0.5:
        x[1] = x[0] * rng.normal()  # fewer than k directions
    noise = rng.normal(size=(d, d))
    noise = (noise + noise.T) / 2
    noise *= size / np.linalg.norm(noise, 2)
    steps = 20 + int(4 * k * np.log(1e4 * d * (1 + np.abs(x).max()) / size))
    basis = iterate(torch.tensor(x.T @ x + noise), k, steps, seed).numpy()
    missed = np.linalg.norm(x.T - basis @ (basis.T @ x.T), axis=0)
    assert missed.max() <= 3 * np.sqrt(size)
