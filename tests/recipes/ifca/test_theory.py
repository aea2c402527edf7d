"""IFCA's theory (Ghosh et al. 2022, Theorem 1 and Corollary 1), measured. `make theory` runs the slow ones."""

import itertools
from dataclasses import replace

import pytest
import torch

from corymb.data.built_in.synthetic import mixed_regression_ifca
from corymb.recipes.ifca import theory
from corymb.recipes.moment_descent.theory import exponent
from corymb.settings import InvalidInput


def test_the_error_halves_every_round_without_noise():
    ratios = theory.contraction(n=100, fresh=50, rounds=8, seeds=range(2))
    assert ratios.min() > 0.45
    assert ratios.max() < 0.55


def test_too_few_examples_for_new_ones_in_every_round_are_refused():
    data = mixed_regression_ifca(0, n=4, m=9, d=3, k=2, test=1)
    with pytest.raises(InvalidInput, match="A client has 9 examples; fresh examples need 10 per client"):
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
    """With seeds of their own: the same examples with more noise would show nothing."""
    sigmas = (0.125, 0.25, 0.5)
    per_sigma = [theory.floor(100, 50, s, seeds=range(10 * i, 10 * i + 4)) / s for i, s in enumerate(sigmas, 40)]
    assert max(per_sigma) / min(per_sigma) < 1.1, per_sigma


@pytest.mark.theory
def test_the_floor_grows_as_one_over_the_root_of_p():
    """Corollary 1's bound has 1/p; what is measured is 1/√p, as for least squares on a cluster's own examples."""
    floors = [theory.floor(240, 25, 0.25, k=k, seeds=range(200 + 10 * k, 202 + 10 * k)) for k in (2, 4, 8)]
    assert -0.6 < exponent([1 / 2, 1 / 4, 1 / 8], floors) < -0.4, floors


@pytest.mark.theory
def test_the_floor_grows_as_the_root_of_d():
    floors = [theory.floor(100, 25, 0.25, d=d, seeds=range(300 + d, 302 + d)) for d in (10, 20, 40)]
    assert 0.4 < exponent([10, 20, 40], floors) < 0.6, floors


@pytest.mark.theory
def test_wrong_first_choices_fall_faster_from_nearer_starts_and_with_less_noise():
    by_alpha = [theory.decay(a, 1.0, sizes=(4, 12), seed=500 + int(100 * a)) for a in (0.05, 0.1, 0.2, 0.4)]
    assert by_alpha == sorted(by_alpha)
    assert by_alpha[-1] > 4 * by_alpha[0]
    by_noise = [theory.decay(0.25, s, sizes=(4, 12), seed=600 + int(10 * s)) for s in (2.0, 1.0, 0.5)]
    assert by_noise == sorted(by_noise)
    assert by_noise[-1] > 2 * by_noise[0]


@pytest.mark.theory
def test_a_quarter_of_one_over_p_needs_a_largest_cluster_below_four_times_the_smallest():
    assert [theory.uneven(p) < 0.1 for p in (0.1, 0.18, 0.22, 0.3)] == [False, False, True, True]


@pytest.mark.theory
def test_ridge_logistic_regression_contracts_and_its_floor_falls_as_the_theory_has_it():
    errors = theory.logistic_trace(400, 40, 6, seed=3).mean(1)
    bound = 1 - 0.5 * theory.RIDGE / (8 * (0.25 + theory.RIDGE))
    assert float((errors[1:5] / errors[:4]).max()) < bound
    by_clients = [theory.logistic_floor(n, 20, seeds=[10 * n]) for n in (50, 200, 800)]
    assert -0.6 < exponent([50, 200, 800], by_clients) < -0.4, by_clients
    by_examples = [theory.logistic_floor(100, fresh, seeds=[fresh]) for fresh in (10, 40, 160)]
    assert -0.65 < exponent([10, 40, 160], by_examples) < -0.4, by_examples


def test_the_optimum_of_ridge_logistic_regression_is_where_its_gradient_is_0():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(400_000, theory.D, generator=rng, dtype=torch.float64)
    true = torch.zeros(theory.D, dtype=torch.float64)
    true[0] = 3.0
    y = torch.sigmoid(x @ true)  # the mean of y: the gradient is linear in it
    best = true * theory.shrunk(3.0)
    gradient = (torch.sigmoid(x @ best) - y) @ x / len(x) + theory.RIDGE * best
    assert float(gradient.abs().max()) < 3e-3


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
