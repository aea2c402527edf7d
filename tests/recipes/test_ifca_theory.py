"""IFCA's theory (Ghosh et al. 2022, Theorem 1 and Corollary 1), measured. `make theory` runs the slow ones."""

import itertools
from dataclasses import replace

import pytest
import torch

from corymb.data.built_in.synthetic import mixed_regression_ifca
from corymb.recipes import ifca_theory as theory
from corymb.settings import InvalidInput


def test_the_error_halves_every_round_without_noise():
    ratios = theory.contraction(n=100, fresh=50, rounds=8, seeds=range(2))
    assert ratios.min() > 0.45
    assert ratios.max() < 0.55


def test_too_few_examples_for_new_ones_in_every_round_are_refused():
    data = mixed_regression_ifca(0, n=4, m=9, d=3, k=2, test=1)
    with pytest.raises(InvalidInput, match="10 a client are wanted \\(2 a round\\), one has 9"):
        theory.run(theory.FreshIFCA(k=2, rounds=5), data, None, seed=0)


def test_every_round_chooses_and_works_on_examples_of_its_own():
    """Round t of T sees examples 2t and 2t + 1 of 2T alone: changing any others changes nothing in it."""
    data = mixed_regression_ifca(0, n=4, m=8, d=2, k=2, test=1)
    algorithm = theory.FreshIFCA(k=2, rounds=4)
    whole = theory.run(algorithm, data, None, seed=0)
    spoiled = data.train.x.clone()
    spoiled.view(4, 8, 2)[:, 4:] = 99.0
    changed = replace(data, train=data.train._replace(x=spoiled))
    other = theory.run(algorithm, changed, None, seed=0)
    same = [torch.equal(a.models["weight"], b.models["weight"]) for a, b in zip(whole, other, strict=True)]
    assert same == [True, True, False, False]


def test_pooled_least_squares_is_the_optimum_of_each_true_cluster():
    data = mixed_regression_ifca(0, n=10, m=30, d=5, k=2, sigma=0.1, test=1)
    solution = theory.pooled_least_squares(data)
    for j in range(2):
        mine = data.truth.repeat_interleave(data.sizes) == j
        x, y = data.train.x[mine].double(), data.train.y[mine].double()
        assert torch.allclose(x.T @ (y - x @ solution[j]), torch.zeros(5, dtype=torch.float64), atol=1e-9)


@pytest.mark.theory
def test_the_floor_falls_with_the_square_root_of_all_examples():
    sizes = [(50, 50), (100, 50), (400, 50), (50, 100), (50, 400)]
    # Seeds of their own: with the same seed, equal products n·n' would draw the very same examples.
    scaled = [
        theory.floor(n, f, 0.25, seeds=range(10 * i, 10 * i + 4)) * (n * f) ** 0.5 for i, (n, f) in enumerate(sizes)
    ]
    assert max(scaled) / min(scaled) < 1.10, scaled


@pytest.mark.theory
def test_the_floor_is_linear_in_the_noise():
    per_sigma = [theory.floor(100, 50, sigma) / sigma for sigma in (0.125, 0.25, 0.5)]
    assert max(per_sigma) / min(per_sigma) < 1.05, per_sigma


@pytest.mark.theory
def test_wrong_first_choices_fall_exponentially_in_the_examples():
    shares = [theory.mistakes(fresh) for fresh in (4, 8, 16)]
    for got, wanted in zip(shares, (0.08, 0.02, 0.002), strict=True):
        assert wanted / 2 < got < wanted * 2, shares
    ratios = [b / a for a, b in itertools.pairwise(shares)]
    assert ratios[1] < ratios[0] ** 1.5, shares  # twice the examples, about the square of the share


@pytest.mark.theory
def test_starts_near_the_truth_always_succeed_and_random_ones_sometimes():
    found = theory.starts()
    assert found.near == 1.0
    assert found.best_of_ten >= max(found.single, 0.8)


def test_starts_within_a_quarter_of_the_separation_reach_the_pooled_solution():
    """100 clients × 100, d = 50, k = 2, σ = 0.1, option I: ten seeds of ten."""
    assert theory.near_starts(range(10)) == 1.0
