"""The paired test: against scipy's, for its own calibration, and on clients of very different sizes."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import ttest_1samp
from torch import Tensor

from corymb.clustering.paired import FEW, NONE, Difference, difference

ONES = torch.ones(40, dtype=torch.float64)


def _draws(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_with_clients_of_one_size_it_is_the_t_test() -> None:
    apart = 0.3 + _draws(0, 40)
    found = difference(apart, ONES, 10 * ONES, 2 * ONES)
    wanted = ttest_1samp(apart.numpy(), 0, alternative="greater")
    assert found.mean == pytest.approx(float(apart.mean()))
    assert found.p == pytest.approx(wanted.pvalue)
    assert found.size == pytest.approx(found.mean / 2)
    assert found.worse == float((apart > 0).double().mean())
    assert found.clients == 40


def test_with_few_clients_it_is_the_t_test_over_their_examples() -> None:
    examples = [0.4 + _draws(seed, 5 + seed) for seed in range(FEW - 1)]
    means, variances = torch.stack([e.mean() for e in examples]), torch.stack([e.var() for e in examples])
    number = torch.tensor([len(e) for e in examples])
    found = difference(means, variances, number, torch.ones(len(examples)))
    wanted = ttest_1samp(torch.cat(examples).numpy(), 0, alternative="greater")
    assert found.mean == pytest.approx(float(torch.cat(examples).mean()))
    assert found.p == pytest.approx(wanted.pvalue)


def test_clients_without_held_out_examples_do_not_count() -> None:
    apart, number = torch.tensor([1.0, 2.0, math.nan]), torch.tensor([4.0, 4.0, 0.0])
    assert difference(apart, torch.ones(3), number, torch.ones(3)).clients == 2
    assert difference(apart[2:], torch.ones(1), number[2:], torch.ones(1)) == NONE


def test_p_values_are_calibrated_for_all_client_sizes() -> None:
    """Without a difference, p below 5 % must come about once in twenty times."""
    number = torch.tensor([2, 3, 5, 10, 30, 100, 300] * 4, dtype=torch.float64)
    low = 0
    for seed in range(400):
        draws = _draws(seed, 2, len(number))
        apart = 0.2 * draws[0] + draws[1] / number.sqrt()  # what clients differ by, and what they cannot know
        low += difference(apart, torch.ones(len(number)), number, torch.ones(len(number))).p < 0.05
    assert 0.02 < low / 400 < 0.09


def test_large_clients_are_believed_more_until_clients_differ() -> None:
    apart, number = torch.tensor([0.5] * 8 + [0.0] * 8), torch.tensor([1.0] * 8 + [400.0] * 8)
    alike = difference(apart, torch.full((16,), 9.0), number, torch.ones(16))
    assert alike.mean < 0.05  # noise of 3 explains the small clients' differences
    apart = torch.cat([_draws(1, 8) + 2, _draws(2, 8) - 2])
    assert abs(difference(apart, torch.full((16,), 0.01), number, torch.ones(16)).mean - float(apart.mean())) < 0.05


def test_its_numbers_travel() -> None:
    found = Difference(0.1, 0.2, 0.3, 0.4, 5, 0.6)
    assert Difference.of(torch.tensor(found, dtype=torch.float64).tolist()) == found
