from types import SimpleNamespace

import numpy as np
import pytest
import torch

import corymb
from corymb.core.client import Examples
from corymb.core.federation import Federation
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.keys import root
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.runs.fit import as_dataset, fit
from corymb.runs.standardise import (
    Moments,
    NullObjective,
    Standard,
    Standardised,
    send_deviations,
    send_means,
    standard_of,
)
from tests.runs import small

ENGINES = [LoopEngine, VectorisedEngine]


def ragged(values, sizes=(3, 5, 2)):
    """One feature in clients of unequal size, all of it for training."""
    values = np.asarray(values, dtype=np.float32)
    client = np.repeat(np.arange(len(sizes)), sizes)
    return corymb.FederatedDataset.from_arrays(values[:, None], values, client, test=0, standardise=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_sums_give_the_mean_and_deviation_of_all_examples_together(engine):
    data = as_dataset(small.prices(), seed=0)
    standard = standard_of(Federation(engine(NullObjective(), data)), data.features, targets=True)
    x, y = data.train.x.double(), data.train.y.double()
    assert torch.allclose(standard.mean.double(), x.mean(0), rtol=1e-6)
    assert torch.allclose(standard.scale.double(), x.std(0, correction=0), rtol=1e-5)
    assert torch.allclose(standard.target_mean.double(), y.mean(), rtol=1e-6)
    assert torch.allclose(standard.target_scale.double(), y.std(correction=0), rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_example_weighs_the_same_whoever_holds_it(engine):
    values = np.arange(10) ** 2
    data = ragged(values)
    standard = standard_of(Federation(engine(NullObjective(), data)), (1,), targets=False)
    assert float(standard.mean) == pytest.approx(values.mean())
    assert float(standard.scale) == pytest.approx(values.std())


def test_far_from_zero_the_deviation_is_still_right():
    values = 1e6 + np.arange(10) % 3
    standard = standard_of(Federation(VectorisedEngine(NullObjective(), ragged(values))), (1,), targets=False)
    assert float(standard.scale) == pytest.approx(values.std(), rel=1e-3)


def test_what_never_varies_is_divided_by_one():
    standard = standard_of(Federation(VectorisedEngine(NullObjective(), ragged([7.1] * 10))), (1,), targets=True)
    assert float(standard.scale) == float(standard.target_scale) == 1


def test_only_sums_cross_the_door():
    data = as_dataset(small.arrays(), seed=0)
    fed = Federation(VectorisedEngine(NullObjective(), data))
    total, weight, label, note = fed.clients.sum(send_means).value
    assert {name: list(value.shape) for name, value in total.items()} == {
        "x": [1, 2],
        "y": [1],
        "size of x": [1, 2],
        "size of y": [1],
    }
    assert weight.tolist() == [len(data.train.y)]
    assert (label, note) == (None, ())
    moments = Moments(torch.ones(2), torch.ones(()))
    total, weight, label, note = fed.clients.sum(send_deviations, moments, moments).value
    assert {name: list(value.shape) for name, value in total.items()} == {"x": [1, 2], "y": [1]}
    assert (label, note) == (None, ())


@pytest.mark.parametrize("engine", ENGINES)
def test_features_may_be_as_large_as_milliseconds_since_1970(engine):
    """Their squares are larger than what may be added up."""
    values = 1.7e12 + 3e10 * np.arange(10)
    standard = standard_of(Federation(engine(NullObjective(), ragged(values))), (1,), targets=True)
    assert float(standard.mean) == pytest.approx(values.mean(), rel=1e-6)
    assert float(standard.scale) == pytest.approx(values.std(), rel=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_without_examples_changes_nothing(engine):
    data = ragged(np.arange(10))
    rows = data.train._replace(offsets=torch.tensor([0, 3, 3, 10]))
    data = SimpleNamespace(names=data.names, train=rows, test=data.test)
    fed = Federation(engine(NullObjective(), data))
    standard = standard_of(fed, (1,), targets=False)
    assert fed.ledger.rejected == []
    assert float(standard.mean) == pytest.approx(4.5)


STANDARD = Standard(torch.tensor([50.0, 100.0]), torch.tensor([10.0, 20.0]), torch.tensor(5.0), torch.tensor(2.0))


def test_losses_are_in_standard_units_scores_and_predictions_in_the_datas():
    objective = Standardised(LinearRegression(2), STANDARD)
    params = {"weight": torch.tensor([1.0, -1.0])}
    examples = Examples(torch.tensor([[60.0, 80.0]]), torch.tensor([10.0]), torch.ones(1))  # x: 1, -1; y: 2.5
    assert objective.losses(params, examples).tolist() == [0.25]
    assert objective.scores(params, examples).tolist() == [1.0]  # (10 - 9)²
    assert objective.predict(params, examples.x).tolist() == [9.0]
    assert objective.score_name == "squared_error"
    assert objective.squared


def test_classes_are_left_alone():
    inner = Classification(Network(mlp(2, [], 3)), 3)
    plain = STANDARD._replace(target_mean=torch.zeros(()), target_scale=torch.ones(()))
    objective, params = Standardised(inner, plain), inner.init(root(0))
    examples = Examples(torch.tensor([[60.0, 80.0]]), torch.tensor([2]), torch.ones(1))
    seen = examples._replace(x=torch.tensor([[1.0, -1.0]]))
    assert torch.equal(objective.losses(params, examples), inner.losses(params, seen))
    assert torch.equal(objective.scores(params, examples), inner.scores(params, seen))
    assert torch.equal(objective.predict(params, examples.x), inner.predict(params, seen.x))


def test_raw_units_are_learned_and_predicted():
    x, y, client = small.prices()
    run = fit(corymb.IFCA(k=2, rounds=30, local=Descent(lr=0.15, steps=10)), (x, y, client))
    assert run.labels["0"] == run.labels["2"] != run.labels["1"]
    errors = [run.predict(x[client == c], client=c) - y[client == c] for c in range(6)]
    assert np.abs(np.concatenate(errors)).mean() < 2000  # noise of 1000 on prices of some hundred thousand
    assert run.metrics["test_squared_error"] == pytest.approx(1000**2, rel=1)


def test_the_ledger_has_the_rounds_that_ask_for_the_moments(tmp_path):
    data = as_dataset(small.arrays(), seed=0)
    algorithm = corymb.FedAvg(rounds=2)
    raw = fit(algorithm, corymb.FederatedDataset.from_arrays(*small.arrays()))
    standardised = fit(algorithm, data)
    assert standardised.ledger.rounds == raw.ledger.rounds + 2
    numbers = (2 + 1) * 2, 2 + 1  # means and sizes, then squares, of two features and of the labels, in float64
    assert standardised.ledger.bytes_up - raw.ledger.bytes_up == len(data) * (8 * sum(numbers) + 2 * 4)
    assert standardised.ledger.bytes_down - raw.ledger.bytes_down == len(data) * 8 * 2 * (2 + 1)


def test_targets_of_an_objective_of_ones_own_are_left_alone():
    data = as_dataset(small.prices(), seed=0)
    ours = fit(corymb.FedAvg(rounds=1), data)
    assert float(ours.standard.target_scale) > 1000

    class Plain:
        inner = LinearRegression(2)
        init, losses, scores = inner.init, inner.losses, inner.scores

    theirs = fit(corymb.FedAvg(rounds=1, local=Descent(lr=1e-3)), data, Plain())
    assert float(theirs.standard.target_scale) == 1
