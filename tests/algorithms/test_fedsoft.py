"""FedSoft: importance, draws and the pull to the models, by hand."""

import itertools
from dataclasses import replace

import pytest
import torch

from corymb import datasets
from corymb.algorithms.fedsoft import FedSoft, estimate_importance, train_between
from corymb.core.driver import drive
from corymb.core.federation import Federation, each
from corymb.engines import VectorisedEngine
from corymb.evaluate import cluster_metrics
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.settings import InvalidInput
from tests import tiny
from tests.contracts.cases import same_bits

every_engine = pytest.mark.parametrize("engine", tiny.ENGINES)


def points(*clients: list[float], engine: str = "loop") -> Federation:
    """Clients who want θ = y, example by example: x = 1 everywhere."""
    y = torch.tensor([value for mine in clients for value in mine], dtype=torch.float64)
    data = tiny.clients(torch.ones(len(y), 1, dtype=torch.float64), y, [len(mine) for mine in clients])
    return tiny.federation(engine, LinearRegression(1, dtype=torch.float64), data)


def models(*values: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor(values, dtype=torch.float64)[:, None]}


@every_engine
def test_importance_is_the_share_of_examples_that_a_model_fits_best(engine):
    fed = points([0.0, 0.0, 1.0, 10.0], [5.6, 2.1, 2.2], [9.0], engine=engine)
    got = fed.clients.map(estimate_importance, models(0.0, 2.0, 9.0), floor=1e-4).value
    want = [
        [0.75, 1e-4, 0.25],
        [1e-4, 2 / 3, 1 / 3],
        [1e-4, 1e-4, 1.0],
    ]  # 1.0 is as near to 0 as to 2: the lower number
    assert torch.allclose(got, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=0)


@every_engine
def test_local_work_is_held_near_all_models_by_importance(engine):
    """Against gradient steps on F(w) + (λ/2) Σ_j u_j ‖w − c_j‖² with u that sums to one."""
    fed = points([1.0, 3.0], [8.0], engine=engine)
    centres, u = torch.tensor([0.0, 4.0]), torch.tensor([[0.25, 0.75], [0.9, 0.1]], dtype=torch.float64)
    pull, lr = 0.5, 0.1
    local = Descent(lr=lr, steps=3, proximal=pull)
    drawn = torch.tensor([[True, False], [True, True]])
    sums = fed.clients.sum(train_between, models(0.0, 4.0), each(u), each(drawn), local=local).value
    own = []
    for mine, y in zip(u, ([1.0, 3.0], [8.0]), strict=True):
        w = float(mine @ centres.double())
        for _ in range(3):
            slope = sum(2 * (w - value) for value in y) / len(y)
            slope += pull * sum(float(mine[j]) * (w - float(centres[j])) for j in range(2))
            w -= lr * slope
        own.append(w)
    assert sums.weight.tolist() == [2.0, 1.0]
    assert float(sums.total["weight"][0]) == pytest.approx(own[0] + own[1], rel=1e-12)
    assert float(sums.total["weight"][1]) == pytest.approx(own[1], rel=1e-12)


def test_clients_are_drawn_in_proportion_to_importance_without_replacement():
    fed = points(*[[1.0]] * 4)
    shares = torch.tensor([[0.1, 0.5], [0.2, 0.5], [0.7, 0.5], [0.0, 0.5]], dtype=torch.float64)
    firsts, rounds = torch.zeros(4, 2), 1500
    for clock in range(rounds):
        fed.set_clock(seed=0, clock=clock)
        drawn = FedSoft(k=2, draws=1)._draw(fed, shares)
        assert drawn.sum(0).tolist() == [1, 1]
        firsts += drawn
    assert torch.allclose(firsts[:, 0] / rounds, shares[:, 0].float(), atol=0.04)
    assert torch.allclose(firsts[:, 1] / rounds, torch.tensor(0.25), atol=0.04)
    assert FedSoft(k=2, draws=3)._draw(fed, shares).sum(0).tolist() == [3, 3]
    assert FedSoft(k=2, draws=4)._draw(fed, shares).sum(0).tolist() == [3, 4]  # one that has no share is never drawn
    assert FedSoft(k=2)._draw(fed, shares).sum(0).tolist() == [2, 2]


def test_draws_by_examples_count_them():
    fed = points([1.0], [1.0, 1.0, 1.0])
    shares, seconds = torch.full((2, 1), 0.5, dtype=torch.float64), 0
    for clock in range(1000):
        fed.set_clock(seed=0, clock=clock)
        seconds += int(FedSoft(k=1, draws=1, weights="examples")._draw(fed, shares)[1, 0])
    assert seconds / 1000 == pytest.approx(0.75, abs=0.04)


@every_engine
def test_importance_is_estimated_again_every_few_rounds(engine):
    fed = tiny.federation(
        engine, LinearRegression(3, dtype=torch.float64), tiny.regression((6, 9, 12, 7), (0, 1, 0, 1))
    )
    algorithm = FedSoft(k=2, rounds=6, every=3, local=Descent(lr=0.1, steps=3))
    got = list(drive(algorithm, fed))
    same = [torch.equal(one.shares, other.shares) for one, other in itertools.pairwise(got)]
    assert same == [True, True, False, True, True]
    assert all(torch.equal(at.labels, at.shares.argmax(1)) for at in got)
    assert all(float(at.shares.min()) >= 1e-4 for at in got)
    for place in reversed(range(6)):
        rest = list(drive(algorithm, fed, got[place]))
        assert all(same_bits(one, other) for one, other in zip(rest, got[place + 1 :], strict=True))


def test_clients_who_hold_two_clusters_data_have_a_share_of_each():
    """Half of a client's points are one cluster's: mixtures are what FedSoft is for."""
    draw = torch.Generator().manual_seed(0)
    theta = torch.tensor([[2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    x = torch.randn(8 * 40, 2, generator=draw, dtype=torch.float64)
    which = torch.cat([torch.arange(40) >= 5 * i for i in range(8)]).long()  # client i: 5 i points of cluster 0
    data = tiny.clients(x, (x * theta[which]).sum(1), [40] * 8)
    fed = tiny.federation("vectorised", LinearRegression(2, dtype=torch.float64), data)
    best = 0.0
    for seed in range(3):
        *_, last = drive(FedSoft(k=2, rounds=40, pull=0.5, local=Descent(lr=0.1, steps=5)), fed, seed=seed)
        share = last.shares[:, 0] if last.shares[7, 0] > last.shares[0, 0] else last.shares[:, 1]
        best = max(best, float(torch.corrcoef(torch.stack([share, torch.arange(8.0).double()]))[0, 1]))
    assert best > 0.95


def test_it_learns_on_digits():
    data = datasets.digits_inverted(0)
    fed = Federation(VectorisedEngine(Classification(Network(mlp(64, [32], 10)), 10), data))
    algorithm = FedSoft(k=2, rounds=20, local=Descent(lr=0.3, steps=10))
    got = list(drive(algorithm, fed))
    assert got[-1].notes["train_loss"] < got[0].notes["train_loss"] / 2
    assert cluster_metrics(got[-1].labels, data.truth)["ari"] > 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 0},
        {"rounds": 0},
        {"every": 0},
        {"draws": 0},
        {"pull": -1.0},
        {"floor": 0.0},
        {"local": Descent(proximal=0.1)},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InvalidInput):
        replace(FedSoft(k=2), **wrong)
