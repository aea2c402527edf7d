"""Thirty runs as columns of one product are IFCA's own runs."""

import torch

from corymb.algorithms import IFCA
from corymb.data.dataset import FederatedDataset
from corymb.data.ragged import Ragged, offsets_of
from corymb.local import Descent
from corymb.recipes.ifca import success
from corymb.recipes.ifca.success import Point
from corymb.recipes.ifca.theory import run


def test_the_batched_runs_are_ifca():
    point = Point(m=8, n=12, k=2, sigma=0.1, r=1.0)
    trial = success.draw(point, 3, "cpu", d=6, restarts=2)
    found = success.run(trial, point.m, (0.4, 0.1), rounds=15)
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
    ends = [success.distances(success.run(t, 20, (1.0, 0.1), rounds=100), t.truth) for t in (easy, hard)]
    assert ends[0].nan_to_num(9).min() < 0.06
    assert ends[1].nan_to_num(9).min() > 0.06


def test_every_panel_has_the_points_of_the_authors_program():
    assert [len(points) for points in success.panels().values()] == [20, 20, 42, 30]
    names = success.jobs()
    assert len(set(names)) == len(names) == 4 * 112
