"""Thirty runs as columns of one product are IFCA's own runs."""

import pytest
import torch

from corymb.algorithms import IFCA
from corymb.data.dataset import FederatedDataset
from corymb.data.ragged import Ragged, offsets_of
from corymb.local import Descent
from corymb.recipes.ifca import success
from corymb.recipes.ifca.success import STEP_SIZES, Point, Trial
from corymb.recipes.ifca.theory import run


def ran(trials, m, step_sizes, rounds):
    """The models of all runs of trials to the end: trials, step sizes × restarts, clusters, d."""
    trials = Trial(*map(torch.stack, zip(*trials, strict=True)))
    runs = success.begin(trials, step_sizes)
    success.descend(trials, runs, m, rounds)
    return runs.models.mT.unflatten(1, (-1, trials.truth.shape[1]))


def test_the_batched_runs_are_ifca():
    point = Point(m=8, n=12, k=2, sigma=0.1, r=1.0)
    other, trial = (success.draw(point, seed, "cpu", d=6, restarts=2) for seed in (1, 3))
    found = ran([other, trial], point.m, (0.4, 0.1), rounds=15)[1].unflatten(0, (2, 2))
    rows = Ragged(trial.x.double(), trial.y.double(), offsets_of(torch.full((8,), 12)))
    data = FederatedDataset(name="made", names=tuple("abcdefgh"), train=rows, test=rows, task="regression")
    for number, step in enumerate((0.4, 0.1)):
        algorithm = IFCA(k=2, rounds=15, local=Descent(lr=step), averaging="gradients", repair=False)
        for restart in range(2):
            end = run(algorithm, data, trial.starts[restart].double(), seed=0)[-1].models["weight"]
            assert torch.allclose(found[number, restart].double(), end, atol=1e-4)


def test_a_trial_with_much_data_succeeds_and_one_with_little_does_not():
    assert success.distances(torch.ones(1, 1, 2, 3), torch.stack([torch.ones(3), torch.zeros(3)])).tolist() == [[0.0]]
    easy, hard = (success.draw(Point(20, n, 2, 0.1, 1.0), 0, "cpu", d=10) for n in (50, 1))
    ends = [success.distances(ran([t], 20, (1.0, 0.1), rounds=100)[0], t.truth) for t in (easy, hard)]
    assert ends[0].nan_to_num(9).min() < 0.06
    assert ends[1].nan_to_num(9).min() > 0.06


D = 30


def few(m, n, k, sigma, r, margin=0.0):
    """A point for few features, as far apart as it is for 1000."""
    return Point(m, n, k, sigma, r * (1000 / D) ** 0.5, margin)


POINTS = {
    "all succeed": (few(50, 12, 2, 0.1, 0.1), 4, 4),
    "one does, in the end": (few(30, 7, 2, 0.1, 0.1), 0, 3),
    "none does": (few(26, 6, 2, 0.1, 0.75), 0, 0),
    "four clusters, no noise": (few(48, 6, 4, 0.0, 0.5, 0.001), 1, 3),
}


@pytest.mark.parametrize(("point", "least", "most"), POINTS.values(), ids=POINTS)
def test_a_trial_that_is_left_early_would_have_succeeded_and_no_other_does(point, least, most, monkeypatch):
    trials = [success.draw(point, seed, "cpu", d=D) for seed in range(4)]
    truth = torch.stack([trial.truth for trial in trials])
    want = success.end_well(point, ran(trials, point.m, STEP_SIZES[point.k], 300), truth.unsqueeze(1)).any(1)
    left, ask = [], success.are_sure

    def asked(*given):
        left.append(ask(*given))
        return left[-1]

    monkeypatch.setattr(success, "are_sure", asked)
    assert success.succeed(point, range(4), "cpu", d=D) == int(want.sum())
    assert least <= int(torch.cat(left).sum()) <= int(want.sum()) <= most


def test_a_client_that_changes_later_is_not_sure():
    """Six clients on a line; one of the second kind changes over in time, when the first model has come its way."""
    x = torch.ones(1, 6, 1)
    y = torch.tensor([[0.0, 0.0, 0.0, 10.0, 10.0, 3.9]])
    point = Point(6, 1, 2, 100.0, 1.0)  # any end is near enough: only who chooses what decides
    trials = Trial(x, y, torch.tensor([[[0.0], [10.0]]]), torch.tensor([[[[-3.0], [8.0]]]]))
    runs = success.begin(trials, (0.3,))
    assert success.errors(x, y, runs.models, 6, 2)[1].flatten().tolist() == [0, 0, 0, 1, 1, 1]
    assert success.are_sure(point, trials, runs, left=1).tolist() == [True]
    assert success.are_sure(point, trials, runs, left=20).tolist() == [False]


def test_every_panel_has_the_points_of_the_authors_program():
    assert [len(points) for points in success.panels().values()] == [20, 20, 42, 30]
    names = success.jobs()
    assert len(set(names)) == len(names) == 4 * 112
