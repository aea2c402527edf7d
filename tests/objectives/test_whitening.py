"""Whitened features for descent: found from sums, the same run on every engine, and unused where they do not apply."""

import numpy as np
import pytest
import torch

import corymb
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression, Regression
from corymb.objectives.whitening import FLOOR, can_whiten, whitening_root
from corymb.runs.fit import as_dataset
from corymb.runs.standardise.objective import Standardised
from corymb.runs.standardise.statistics import standard_of
from corymb.testing.assertions import assert_same_run
from corymb.testing.engines import DOUBLE, ENGINES
from tests.contracts.cases import CASES

WHITE = Descent(lr=0.3, steps=2, safe=True, whiten=True)


def federation(case, engine, objective=None):
    return Federation(ENGINES[engine](objective or case.objective(), case.data(), DOUBLE))


def whitened(case):
    fed, x = federation(case, "loop"), case.data().train.x
    standard = standard_of(fed, tuple(x.shape[1:]), targets=case.data().train.y.is_floating_point())
    return standard._replace(root=whitening_root(fed, standard.mean, standard.scale, standard.limit))


def test_the_root_is_that_of_everybodys_second_moment():
    case = CASES["FedAvg"]
    standard, x = whitened(case), case.data().train.x.double()
    z = (x - standard.mean) / standard.scale
    moment = z.mT @ z / len(z) + FLOOR * torch.eye(3)
    assert torch.allclose(standard.root.double() @ moment @ standard.root.double(), torch.eye(3).double(), atol=1e-4)


@pytest.mark.parametrize("engine", ["vectorised", "wired"])
def test_a_whitened_run_is_the_same_on_every_engine(engine):
    case = CASES["FedAvg"]
    objective = Standardised(case.objective(), whitened(case)).to("cpu", torch.float64)
    algorithm = corymb.FedAvg(rounds=3, local=WHITE)
    runs = [list(drive(algorithm, federation(case, name, objective), seed=1)) for name in ("loop", engine)]
    assert_same_run(runs[1], runs[0])


@pytest.mark.parametrize("intercept", [True, False])
def test_transforming_there_and_back_is_the_identity(intercept):
    standard = whitened(CASES["FedAvg"])
    for objective in (LinearRegression(3, intercept=intercept), Classification(Network(mlp(3, [], 4)), 4)):
        there, params = Standardised(objective, standard).whitened, objective.init(torch.tensor(3))
        again = there.back(there.into(params))
        assert all(torch.allclose(again[name], value, atol=1e-5) for name, value in params.items())
        assert list(again) == list(params)


def test_only_linear_models_of_tables_can_be_whitened():
    assert can_whiten(LinearRegression(3, intercept=True), (3,))
    assert can_whiten(Regression(Network(mlp(3, [], 1))), (3,))
    assert not can_whiten(Regression(Network(mlp(3, [4], 1))), (3,))
    assert not can_whiten(LinearRegression(1000), (1000,))  # the moment would be a million numbers
    assert not can_whiten(Regression(Network(mlp(4, [], 1))), (1, 2, 2))


def correlated(n: int = 8, m: int = 30):
    """Two features that are almost the same, and a target that is their difference."""
    rng = np.random.default_rng(0)
    one = rng.normal(size=(n * m, 1))
    x = np.concatenate([one, one + 0.05 * rng.normal(size=one.shape)], 1)
    y = 20 * (x[:, 0] - x[:, 1]) + 0.1 * rng.normal(size=len(x))
    return as_dataset((x, y, np.repeat(np.arange(n), m)), seed=0)


def test_default_descent_finds_what_correlated_features_hide():
    data = correlated()
    suited = corymb.configure("fedavg", data, rounds=25)
    assert suited.local.whiten
    run = corymb.fit(suited, data)
    assert run.metrics["test_squared_error"] < 0.015  # noise alone is 0.01
    plain = corymb.fit(corymb.configure("fedavg", data, rounds=25, local={"lr": 0.1}), data)
    assert plain.standard.root.numel() == 0  # a step size that is given is one in the model's own coordinates
    assert plain.metrics["test_squared_error"] > 0.5
    network = corymb.fit(corymb.configure("fedavg", data, rounds=1), data, "mlp")
    assert network.standard.root.numel() == 0  # no linear model: nothing to ask for


def test_the_moments_of_clients_in_larger_units_are_not_refused():
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(400, 3)), np.repeat(np.arange(20), 20)
    y = x[:, 0].copy()
    x[client < 10] *= 1000  # at the other clients, standardised features are close to 0
    fed = Federation(
        ENGINES["vectorised"](LinearRegression(3, intercept=True), as_dataset((x, y, client), seed=0), DOUBLE)
    )
    standard = standard_of(fed, (3,), targets=True)
    root = whitening_root(fed, standard.mean, standard.scale, standard.limit)
    assert fed.ledger.rejected == []
    assert torch.allclose(root, torch.eye(3), atol=0.3)  # without the larger half it was 100 times as much
