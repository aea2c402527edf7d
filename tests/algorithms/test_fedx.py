"""FedX: rounds computed by hand, both averaging forms, FedProx in closed form, soft assignment."""

import logging

import numpy as np
import pytest
import torch

from corymb.algorithms import IFCA
from corymb.algorithms.fedx import FedX
from corymb.core.driver import drive
from corymb.core.snapshot import Snapshot
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression, Regression
from corymb.runs.standardise.objective import Standard, Standardised
from corymb.settings import InvalidInput
from tests import tiny

SIZES, TRUTH = (4, 6, 3), (0, 1, 0)
START = torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)  # both are chosen


def world(engine="vectorised", *, half=True, **options):
    data = tiny.regression(SIZES, TRUTH, d=2)
    return data, tiny.federation(engine, LinearRegression(2, half=half, dtype=torch.float64), data, **options)


def after(algorithm, fed, start=START):
    begin = Snapshot(models={"weight": start}, labels=torch.full((len(fed.clients),), -1))
    return list(drive(algorithm, fed, begin))[-1]


def examples(data):
    cuts = data.train.offsets[1:-1].tolist()
    return list(zip(np.split(data.train.x.numpy(), cuts), np.split(data.train.y.numpy(), cuts), strict=True))


def local_work(x, y, theta, lr, steps):
    if steps is None:  # FedProx
        return np.linalg.solve(np.eye(len(theta)) + lr / len(y) * x.T @ x, theta + lr / len(y) * x.T @ y)
    for _ in range(steps):
        theta = theta - lr / len(y) * x.T @ (x @ theta - y)
    return theta


def one_round(data, models, *, lr, steps, averaging, by_examples=True):
    """The paper's Phase 2, client after client; `steps=None` is FedProx."""
    total = sum(len(y) if by_examples else 1 for _, y in examples(data))
    new, weight = np.zeros_like(models), np.zeros(len(models))
    for x, y in examples(data):
        label = np.argmin([np.sum((y - x @ theta) ** 2) for theta in models])
        w = len(y) if by_examples else 1
        refined = local_work(x, y, models[label], lr, steps)
        if averaging == "all":
            new += w / total * np.where(np.arange(len(models))[:, None] == label, refined, models)
        else:
            new[label] += w * refined
            weight[label] += w
    return new if averaging == "all" else np.where(weight[:, None] > 0, new / np.maximum(weight, 1)[:, None], models)


@pytest.mark.parametrize("assignment", ["hard", "soft"])
def test_bytes_are_those_of_the_docs(assignment):
    _, fed = world()
    after(FedX(rounds=1, local=Descent(lr=0.01), assignment=assignment), fed)
    n, k, d, s = len(fed.names), 2, 2, 8
    assert fed.ledger.bytes_down == n * k * d * s
    model = (d + k) * s + 4 * k if assignment == "hard" else (k * d + 2 * k) * s
    assert fed.ledger.bytes_up == n * (model + 8) + n * s  # and the curvature, once


@pytest.mark.parametrize("engine", tiny.ENGINES)
@pytest.mark.parametrize("averaging", ["all", "members"])
@pytest.mark.parametrize("weights", ["examples", "clients"])
@pytest.mark.parametrize("steps", [1, 4, None])
def test_two_rounds_by_hand(engine, averaging, weights, steps):
    data, fed = world(engine)
    algorithm = FedX(
        rounds=2,
        local=Descent(lr=0.1, steps=steps or 1),
        refinement="fedavg" if steps else "fedprox",
        averaging=averaging,
        weights=weights,
    )
    want = START.numpy()
    for _ in range(2):
        by_examples = weights == "examples"
        want = one_round(data, want, lr=0.1, steps=steps, averaging=averaging, by_examples=by_examples)
    assert np.abs(after(algorithm, fed).models["weight"].numpy() - want).max() < 1e-12


def test_fedprox_is_the_same_for_clients_with_more_and_with_fewer_examples_than_features():
    data = tiny.regression((2, 9), (0, 0), d=4)
    start = torch.ones(1, 4, dtype=torch.float64)
    algorithm = FedX(rounds=1, local=Descent(lr=0.3), refinement="fedprox")
    want = one_round(data, start.numpy(), lr=0.3, steps=None, averaging="all")
    for engine in tiny.ENGINES:
        fed = tiny.federation(engine, LinearRegression(4, dtype=torch.float64), data)
        assert np.abs(after(algorithm, fed, start).models["weight"].numpy() - want).max() < 1e-12


def test_the_step_is_one_on_half_the_mean_square_with_and_without_the_half():
    results = [after(FedX(rounds=3), world(half=half)[1]).models for half in (True, False)]
    assert tiny.farthest(*results) < 1e-12


def test_the_temperature_is_one_of_half_the_mean_square_too():
    soft = FedX(rounds=3, assignment="soft", temperature=20.0)
    one, other = (after(soft, world(half=half)[1]) for half in (True, False))
    assert tiny.farthest(one.models, other.models) < 1e-12
    assert tiny.farthest(one.shares, other.shares) < 1e-12


def test_standardising_does_not_change_the_step():
    """A wrapper around the objective must not hide that its loss is (or is not) half of the square."""
    data = tiny.regression(SIZES, TRUTH, d=2)
    units = Standard(torch.zeros(2), torch.ones(2), torch.zeros(()), torch.ones(()))
    plain, wrapped = (
        after(FedX(rounds=3), tiny.federation("vectorised", objective, data)).models
        for objective in (LinearRegression(2, dtype=tiny.DOUBLE.dtype), Standardised(LinearRegression(2), units))
    )
    assert tiny.farthest(plain, wrapped) < 1e-12


@pytest.mark.parametrize("engine", tiny.ENGINES)
@pytest.mark.parametrize("half", [True, False])
def test_a_whitened_round_by_hand(engine, half):
    data, fed = world(engine, half=half)
    want, total = START.numpy().copy(), sum(SIZES)
    second = sum(x.T @ x for x, _ in examples(data)) / total
    for x, y in examples(data):
        label = np.argmin([np.sum((y - x @ theta) ** 2) for theta in START.numpy()])
        want[label] -= np.linalg.solve(second, x.T @ (x @ START[label].numpy() - y)) / total
    got = after(FedX(rounds=1, refinement="whitened"), fed).models["weight"].numpy()
    assert np.abs(got - want).max() < 1e-10


def test_whitened_rounds_reach_least_squares_whatever_the_units():
    data = tiny.regression((30, 40), (0, 0), d=3)
    data.train.x[:, 0] *= 1000
    data.train.x[:, 1] += 50
    fed = tiny.federation("vectorised", LinearRegression(3, dtype=torch.float64), data)
    at = after(FedX(rounds=20, refinement="whitened"), fed, torch.zeros(1, 3, dtype=torch.float64))
    best = torch.linalg.lstsq(data.train.x, data.train.y).solution
    assert tiny.farthest(at.models["weight"][0], best) < 1e-6 * float(best.abs().max())


def test_a_linear_layer_is_a_linear_model():
    data = tiny.regression((30, 40), (0, 0), d=3)
    objective = Regression(Network(mlp(3, [], 1), dtype=torch.float64))
    fed = tiny.federation("vectorised", objective, data)
    models = list(drive(FedX(k=1, rounds=3, refinement="whitened"), fed))[-1].models
    x = torch.cat([data.train.x, torch.ones(70, 1).double()], 1)
    best = torch.linalg.lstsq(x, data.train.y).solution
    assert tiny.farthest(objective.linear.coefficients(models)[0], best) < 1e-9
    assert tiny.farthest(objective.linear.parameters(objective.linear.coefficients(models)), models) == 0
    assert Regression(Network(mlp(3, [4], 1))).linear is None


def test_averaging_over_equally_weighted_members_is_ifca():
    local = Descent(lr=0.05, steps=3)
    fedx = after(FedX(rounds=4, local=local, averaging="members", weights="clients"), world()[1])
    ifca = after(IFCA(k=2, rounds=4, local=local), world()[1])
    assert torch.equal(fedx.labels, ifca.labels)
    assert tiny.farthest(fedx.models, ifca.models) < 1e-12


def test_an_empty_cluster_keeps_its_model():
    far = torch.tensor([[0.0, 0.0], [1e6, 1e6]], dtype=torch.float64)
    for averaging in ("all", "members"):
        at = after(FedX(rounds=2, averaging=averaging), world()[1], far)
        assert at.labels.tolist() == [0, 0, 0]
        assert torch.equal(at.models["weight"][1], far[1])


@pytest.mark.parametrize("averaging", ["all", "members"])
def test_soft_assignment_becomes_hard_as_the_temperature_falls(averaging):
    hard = after(FedX(rounds=3, averaging=averaging), world()[1])
    soft = after(FedX(rounds=3, averaging=averaging, assignment="soft", temperature=1e-3), world()[1])
    warm = after(FedX(rounds=3, averaging=averaging, assignment="soft", temperature=50.0), world()[1])
    assert hard.shares is None
    assert tiny.farthest(soft.models, hard.models) < 1e-9
    assert soft.shares.argmax(1).tolist() == hard.labels.tolist()
    assert torch.allclose(warm.shares.sum(1), torch.ones(3, dtype=torch.float64))
    assert float(warm.shares.min()) > 0.01
    assert tiny.farthest(warm.models, hard.models) > 1e-3


def test_one_soft_step_is_the_papers_step_on_the_weighted_loss():
    data, fed = world()
    lr, temperature, models = 0.1, 20.0, START.numpy()
    want, total = models.copy(), sum(SIZES)
    for x, y in examples(data):
        loss = np.array([np.mean((y - x @ theta) ** 2) / 2 for theta in models])
        likely = np.exp(-len(y) * loss / temperature)
        likely /= likely.sum()
        for j, theta in enumerate(models):
            want[j] -= lr * len(y) / total * likely[j] * x.T @ (x @ theta - y) / len(y)
    soft = FedX(rounds=1, local=Descent(lr=lr, steps=1), assignment="soft", temperature=temperature)
    assert np.abs(after(soft, fed).models["weight"].numpy() - want).max() < 1e-12


def test_clients_not_asked_do_not_count_towards_all():
    data, fed = world()
    at = after(FedX(rounds=1, local=Descent(lr=0.1, steps=1), participants=1), fed)
    asked = int((at.labels >= 0).nonzero())
    x, y = examples(data)[asked]
    label = int(at.labels[asked])
    assert np.allclose(at.models["weight"][label], local_work(x, y, START[label].numpy(), 0.1, 1))
    assert torch.equal(at.models["weight"][1 - label], START[1 - label])


def test_a_long_step_is_named_in_the_log(caplog):
    with caplog.at_level(logging.WARNING):
        after(FedX(rounds=1, local=Descent(lr=0.045, steps=1)), world()[1])
        assert not caplog.records
        after(FedX(rounds=1, local=Descent(lr=5.0, steps=1)), world()[1])
    assert "wanted below 1" in caplog.text


def test_it_trains_other_models_too_but_for_fedprox():
    data = tiny.classification((5, 7, 6), (0, 1, 0))
    fed = tiny.federation("vectorised", Classification(Network(mlp(4, [5], 3), dtype=torch.float64), 3), data)
    assert list(drive(FedX(k=2, rounds=2), fed))[-1].round == 2
    line = tiny.regression((5, 7), (0, 1), d=3)
    network = tiny.federation("vectorised", Regression(Network(mlp(3, [4], 1), dtype=torch.float64)), line)
    with pytest.raises(InvalidInput, match="closed form needs linear regression"):
        list(drive(FedX(k=2, rounds=1, refinement="fedprox"), network))


def test_wrong_settings_are_refused():
    with pytest.raises(InvalidInput, match="k is missing, and there are no models to start from"):
        list(drive(FedX(rounds=1), world()[1]))
    for wrong, name in [({"k": 0}, "k must"), ({"rounds": 0}, "rounds"), ({"temperature": 0.0}, "temperature")]:
        with pytest.raises(InvalidInput, match=name):
            FedX(**wrong)
