from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import corymb
from corymb.core.federation import Federation
from corymb.data import as_dataset
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.local import Descent
from corymb.objectives.null import NullObjective
from corymb.runs.fit import fit
from corymb.runs.standardise import FAR
from corymb.runs.standardise.statistics import BEYOND, robust_standard, standard_of
from tests.runs import small

ENGINES = [LoopEngine, VectorisedEngine]


def ragged(values, sizes=(3, 5, 2)):
    """One feature in clients of unequal size, all of it for training."""
    values = np.asarray(values, dtype=np.float32)
    client = np.repeat(np.arange(len(sizes)), sizes)
    return corymb.FederatedDataset.from_arrays(
        values[:, None], values, client, test=0, standardise=True, task="regression"
    )


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
def test_every_example_has_the_same_weight_at_every_client(engine):
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


def test_the_ledger_has_the_rounds_that_ask_for_the_moments(tmp_path):
    data = as_dataset(small.arrays(), seed=0)
    algorithm = corymb.FedAvg(rounds=2)
    raw = fit(algorithm, corymb.FederatedDataset.from_arrays(*small.arrays(), scale="none"), "linear")
    standardised = fit(algorithm, data, "linear")
    assert standardised.ledger.rounds == raw.ledger.rounds + 3
    d = 2 + 1  # two features and the labels
    # means and sizes, then squares, with a weight each, in float64; then answers for each and one for the targets
    assert standardised.ledger.bytes_up - raw.ledger.bytes_up == len(data) * (8 * 3 * d + 2 * 4 + 2 * d + 1)
    # centre and unit, then those and totals, with two numbers of examples
    assert standardised.ledger.bytes_down - raw.ledger.bytes_down == len(data) * 8 * (d * (2 + 3) + 2)


def attacked(task, *, cell=None, target=None, clients=10):
    """Sixty rows a client, one number of the first client replaced; the score of the others after FedAvg."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60 * clients, 4))
    y = x @ [2.0, -1.0, 0.5, 1.0]
    y = (y > 0).astype(int) if task == "classification" else 10 * y + rng.normal(size=len(y))
    x[3, 1], y[3] = x[3, 1] if cell is None else cell, y[3] if target is None else target
    data = corymb.FederatedDataset.from_arrays(x, y, np.repeat(np.arange(clients), 60), task=task)
    run = fit(corymb.configure("fedavg", data, rounds=6), data, evaluate_every=0)
    return float(run.scores[1:].mean()), run


@pytest.mark.parametrize("cell", [1e5, -1e12])
def test_one_cell_of_one_client_harms_nobody_and_is_named(cell):
    fair, _ = attacked("classification")
    score, run = attacked("classification", cell=cell)
    assert fair > 0.95
    assert score > fair - 0.01
    line = "client '0' would dominate the variance of feature 1: it is excluded from its scale"
    assert run.schema.notes == (line,)
    assert run.standard.limit.tolist() == [FAR, BEYOND, FAR, FAR]
    assert float(run.standard.scale[1]) == pytest.approx(1, rel=0.1)
    new = np.array([[0.5, 1e5, 0, 0], [0.5, -0.1, 0, 0]], dtype=np.float32)
    chances = run.module(0)(torch.from_numpy(new)).softmax(-1).detach().numpy()
    assert np.allclose(chances, run.predict_proba(new, cluster=0), atol=1e-6)


def test_one_target_of_one_client_harms_nobody():
    fair, _ = attacked("regression")
    score, run = attacked("regression", target=1e5)
    assert score < fair + 0.01 * 625  # the targets' variance
    assert "of the target: it is excluded" in run.schema.notes[0]


@pytest.mark.parametrize("kind", [corymb.FedAvg, partial(corymb.FedSoft, k=2)])
def test_one_of_two_clients_has_targets_out_of_all_proportion(kind, caplog):
    """Its sums are refused and do not enter the totals; it is still named, and harms no other client."""
    x, y, client = small.prices()
    x, y, client = (part[np.isin(client, [0, 2])] for part in (x, y, client))
    wild = y.copy()
    wild[np.flatnonzero(client == 0)[:3]] *= 1e6
    fair, run = (fit(kind(rounds=10, local=Descent(lr=0.1, steps=5)), (x, t, client)) for t in (y, wild))
    assert run.schema.notes[0].startswith("client '0' would dominate the variance of the target")
    assert float(run.standard.target_limit) == BEYOND
    assert run.stopped == ""
    assert run.history[-1]["train_loss"] < 10
    assert run.not_scored == ("0",)  # one of its wild rows is a test row
    assert "client '0' is not scored: its errors are out of all proportion" in caplog.text
    other = client == 2
    errors = [np.square(one.predict(x[other], client="2") - y[other]).mean() for one in (fair, run)]
    assert errors[1] < errors[0] + 0.3 * y.var()


def with_wild_targets(wild, how, clients=20):
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(20 * clients, 3)), np.repeat(np.arange(clients), 20)
    y = x @ [1.0, 2.0, -1.0] + 0.3 * rng.normal(size=len(x))
    y[client < wild] = how(y[client < wild])
    return as_dataset((x, y, client), seed=0)


def test_a_few_clients_with_equally_wild_targets_are_named_and_do_not_rule():
    data = with_wild_targets(3, lambda y: 1000 * y)
    run = fit(corymb.configure("fedavg", data, rounds=10), data, evaluate_every=0)
    assert run.schema.notes == (
        "clients '0', '1' and '2' would dominate the variance of the target: they are excluded from its scale, and "
        "their targets are limited in training, so predictions for them will be far off: check their units",
    )
    assert float(run.standard.target_scale) == pytest.approx(2.4, rel=0.1)
    assert float(run.scores[3:].mean()) < 0.5 * 6  # of the others' variance; 1e5 where the wild ones count


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("wild", "how", "named"),
    [
        (3, lambda y: y + 1000, 3),
        (6, lambda y: 1000 * y, 0),  # too many to be the exception
        (3, lambda y: 10 * y, 0),  # far out, but not out of all proportion
        (1, lambda y: 1000 * y, 1),
    ],
)
def test_clients_with_disproportionate_targets_are_excluded(engine, wild, how, named):
    fed = Federation(engine(NullObjective(), with_wild_targets(wild, how)))
    standard, excluded, *_ = robust_standard(fed, (3,), targets=True)
    assert excluded == {str(client): [3] for client in range(named)}
    assert standard.target_limit.isfinite() == (named > 0)
    assert robust_standard(fed, (3,), targets=False)[1] == {}  # classes have no scale


def test_a_client_that_is_only_large_keeps_its_values():
    """Like General Motors among ten firms: it contributes most of the variance, but its values are right."""
    rng = np.random.default_rng(0)
    size = np.where(np.arange(11) == 4, 5.0, 1.0)[:, None] * rng.uniform(0.5, 1.5, (11, 20))
    client = np.repeat(np.arange(11), 20)
    x = (size.reshape(-1, 1) * rng.uniform(0.8, 1.2, (220, 2))).astype(np.float32)
    y = (x @ [30.0, 10.0] + size.reshape(-1) * rng.normal(size=220)).astype(np.float32)
    data = as_dataset((x, y, client), seed=0)
    run = fit(corymb.configure("alone", data), data, evaluate_every=0)
    line = "client '4' would dominate the variance of feature 0 and feature 1: it is excluded from their scale"
    assert run.schema.notes == (line,)
    assert (set(run.standard.limit.tolist()), float(run.standard.target_limit)) == ({FAR}, np.inf)
    assert float(run.scores[4]) < 0.1 * y[client == 4].var()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_with_most_examples_is_the_rule_and_not_the_exception(engine):
    rng = np.random.default_rng(0)
    values = np.r_[rng.normal(size=400), 0.03 + 0.01 * rng.normal(size=9)]
    data, few = ragged(values, (400, 2, 3, 4)), np.r_[values[:200] * 0.03, values[400:]]
    few[7] = 1e5
    found = robust_standard(Federation(engine(NullObjective(), data)), data.features, targets=True)
    assert not found.excluded
    assert found.standard.scale.item() == pytest.approx(data.train.x.std(correction=0).item())
    outlier = ragged(few, (200, 2, 3, 4))  # of its own values, only one is out of proportion
    found = robust_standard(Federation(engine(NullObjective(), outlier)), data.features, targets=True)
    assert list(found.excluded) == ["0"]
    assert found.standard.scale.item() < 0.05


def test_where_nobody_supplies_most_nothing_changes():
    data = as_dataset(small.arrays(), seed=0)
    standard, excluded, *_ = robust_standard(
        Federation(VectorisedEngine(NullObjective(), data)), data.features, targets=False
    )
    assert excluded == {}
    assert (standard.limit == FAR).all()
    assert not standard.target_limit.isfinite()


@pytest.mark.parametrize("engine", ENGINES)
def test_binary_features_are_never_out_of_proportion(engine):
    values = np.repeat([1.0, 0, 0, 0, 0, 0], 5)
    data = ragged(values, sizes=(5,) * 6)
    assert robust_standard(Federation(engine(NullObjective(), data)), (1,), targets=False)[1] == {}
    large = ragged(values * 1000, sizes=(5,) * 6)
    standard, excluded, *_ = robust_standard(Federation(engine(NullObjective(), large)), (1,), targets=False)
    assert excluded == {"0": [0]}
    assert (float(standard.mean), float(standard.scale)) == (0, 1)


def test_a_client_whose_sums_are_refused_is_no_obstacle():
    values = np.arange(30) % 7 * 1.0
    values[0], values[7] = 1e30, 100  # too large to be added up, and out of proportion
    fed = Federation(VectorisedEngine(NullObjective(), ragged(values, sizes=(5,) * 6)))
    standard, excluded, *_ = robust_standard(fed, (1,), targets=False)
    assert {entry["client"] for entry in fed.ledger.rejected} == {"0"}
    assert excluded == {"0": [0], "1": [0]}
    assert float(standard.scale) == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("clients", "times", "broad", "narrow"),
    [(3, 1e3, 3, 0), (3, 20, 0, 0), (5, 1e3, 5, 0), (7, 1e3, 0, 3), (9, 1e3, 0, 1), (3, 1e-3, 0, 3)],
)
def test_clients_with_a_feature_or_targets_in_other_units_are_named(engine, clients, times, broad, narrow):
    """The fewer ones are named, and nothing is changed, since the right units are unknown."""
    rng = np.random.default_rng(0)
    x, client = rng.normal(10, 3, size=(200, 3)), np.repeat(np.arange(10), 20)
    x[:, 2] = client  # never varies at a client
    x[client < clients, 1] *= times
    data = corymb.FederatedDataset.from_arrays(x, x[:, 1], client, task="regression", test=0)
    found = robust_standard(Federation(engine(NullObjective(), data)), (3,), targets=True)
    others = range(10) if times < 1 else range(clients, 10)
    named = [str(one) for one in (range(clients) if broad or times < 1 else others)]
    assert found.broad == ({name: [1, 3] for name in named} if broad else {})
    assert found.narrow == ({name: [1, 3] for name in named} if narrow else {})
    assert found.excluded == {}
    of_classes = robust_standard(Federation(engine(NullObjective(), data)), (3,), targets=False)
    assert all(columns == [1] for columns in (*of_classes.broad.values(), *of_classes.narrow.values()))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_few_examples_show_nothing_about_units(engine):
    x = np.array([[0.0], [1e-4], [-1.0], [1.0], [-2.0], [2.0]])
    data = corymb.FederatedDataset.from_arrays(x, x[:, 0], [0, 0, 1, 1, 2, 2], task="regression", test=0)
    found = robust_standard(Federation(engine(NullObjective(), data)), (1,), targets=True)
    assert found.narrow == found.broad == {}


def test_features_in_other_units_are_reported_by_the_run(caplog):
    rng = np.random.default_rng(0)
    x, client = rng.normal(10, 3, size=(200, 2)), np.repeat(np.arange(10), 20)
    x[client < 3, 1] *= 1e3
    run = fit(corymb.FedAvg(rounds=1), (x, x[:, 0] + 0.1 * x[:, 1] / x[:, 1].max(), client))
    (line,) = run.schema.notes
    assert line.startswith(
        "clients '0', '1' and '2' have values of feature 1 out of all proportion to the others', perhaps"
    )
    assert line in caplog.text
