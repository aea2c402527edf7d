"""Moment descent's theory (Su, Xu, Yang 2022), measured. `make theory` runs the slow ones."""

import pytest

from corymb.recipes.moment_descent import theory


@pytest.mark.theory
def test_proposition_1_projection_errors_fall_with_the_panel():
    """The gap-free bound has n^(-1/4); with the gap that there is, n^(-1/2) is measured."""
    sizes = (50, 200, 800)
    missed = [theory.mean_step(n, seeds=range(100, 103)).projection for n in sizes]
    assert -0.7 < theory.exponent(sizes, missed) < -0.25, missed


@pytest.mark.theory
def test_lemma_5_a_few_steps_find_the_subspace():
    few, ten, many = (theory.step(200, steps=steps, seed=100).projection for steps in (1, 10, 40))
    assert ten < 1.01 * many
    assert few > 2 * many


@pytest.mark.theory
def test_proposition_2_sigma_is_the_distance_and_a_step_takes_half_of_it():
    near, far = (theory.mean_step(400, m=m, d=20, seeds=range(100, 102)) for m in (192, 24))
    assert near.sigma < far.sigma < 0.4
    assert 0.4 < near.ratio < 0.6
    assert 0.4 < far.ratio < 0.65


@pytest.mark.theory
@pytest.mark.parametrize(
    ("steps", "lr", "prox"), [(1, 0.02, False), (5, 0.02, False), (10, 0.02, False), (1, 0.1, True)]
)
def test_theorem_2_the_rate_is_one_minus_a_constant_times_s_eta_p_over_kappa(steps, lr, prox):
    assert 0.85 < theory.rate(steps, lr, prox=prox).constant < 1.3


@pytest.mark.theory
def test_theorem_2_the_error_is_of_the_order_of_the_noise_and_falls_as_the_root_of_the_clients():
    per_sigma = [theory.floor(s, seeds=range(100 + 2 * i, 102 + 2 * i)) / s for i, s in enumerate((0.1, 0.2, 0.4))]
    assert max(per_sigma) / min(per_sigma) < 1.25, per_sigma
    by_clients = [theory.floor(0.2, n=n, seeds=range(110, 112)) for n in (50, 200, 800)]
    assert -0.65 < theory.exponent((50, 200, 800), by_clients) < -0.35, by_clients


def test_kappa_is_one_for_small_steps_and_grows_with_them():
    assert theory.kappa(1e-6, 10) == pytest.approx(1, abs=1e-4)
    assert theory.kappa(0.5, 1) == 1
    assert theory.kappa(0.5, 2) == pytest.approx(1 / 0.75)
    assert theory.kappa(0.5, 1, prox=True) == 1.5
