"""Clients whose data did not count are named, also where a run is printed; a run that failed at once is repeated."""

import numpy as np
import pytest
import torch
from torch import nn

import corymb
from corymb.core.federation import NoReplies
from corymb.runs.missed import not_scored, often_rejected


class Logarithms(nn.Module):
    """A model without a loss for negative features."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 2)

    def forward(self, x):
        return self.out(torch.log(x))


def test_of_many_who_are_refused_the_first_are_named_and_the_others_counted():
    rejected = [{"clock": clock, "client": f"c{i:02}", "reason": "not finite"} for clock in range(8) for i in range(12)]
    said = list(often_rejected(rejected[::-1], rounds=8))
    assert [line.split()[1] for line in said[:-1]] == [f"'c0{i}'" for i in range(5)]
    assert said[-1] == "So had 7 more clients, in more than a quarter of the rounds; run.rejected in Python lists all."


def test_only_the_first_of_many_that_were_not_scored_are_named():
    many = [f"site-{i}" for i in range(12)]
    assert not_scored(many, 12, shown=2) == "12 of 12 clients not scored: site-0, site-1, 10 more"


def logarithmic(sign):
    """Six clients, each with 20 rows; with sign −1 none has a loss."""
    x = np.random.default_rng(0).uniform(1, 3, (120, 2))
    return corymb.FederatedDataset.from_arrays(sign * x, (x[:, 0] > 2).astype(int), np.arange(120) // 20, scale="none")


def test_a_run_that_failed_in_its_first_round_can_be_tried_again_in_its_folder(tmp_path):
    with pytest.raises(NoReplies, match="0 of 6 clients gave a usable reply"):
        corymb.fit(corymb.FedAvg(rounds=1), logarithmic(-1), Logarithms, out=tmp_path / "run")
    again = corymb.fit(corymb.FedAvg(rounds=1), logarithmic(1), Logarithms, out=tmp_path / "run")
    assert corymb.Run.load(tmp_path / "run").metrics == again.metrics
    with pytest.raises(corymb.InvalidInput, match="runs are never overwritten"):
        corymb.fit(corymb.FedAvg(rounds=1), logarithmic(1), Logarithms, out=tmp_path / "run")


def test_one_client_without_finite_losses_neither_ends_a_run_nor_is_dropped_silently():
    """It has most examples, so the kernels are tried on them first."""
    client = np.repeat(np.arange(6), [20] * 5 + [40])
    x = np.random.default_rng(0).uniform(1, 3, (140, 2))
    y = (x[:, 0] > 2).astype(int)
    x[client == 5] *= -1
    data = corymb.FederatedDataset.from_arrays(x, y, client, scale="none")
    printed = repr(corymb.fit(corymb.FedAvg(rounds=2), data, Logarithms))
    assert "note      Client '5' had its reply rejected in 2 of 2 rounds (value is not finite)" in printed
    assert "note      1 of 6 clients not scored: 5" in printed
