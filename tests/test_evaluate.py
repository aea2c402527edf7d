import builtins
import itertools
import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.algorithms import IFCA, Alone
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.objective import Examples
from corymb.engines import LoopEngine
from corymb.evaluate import (
    SERVED,
    TRIVIAL,
    adjusted_rand_index,
    cluster_metrics,
    clusters_in_use,
    evaluate,
    parameter_metrics,
    score,
)
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.objectives.measures import METRICS
from corymb.objectives.partial import completed
from tests.tiny import DOUBLE, ENGINES, classification, federation, regression

groupings = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(0, 3), min_size=n, max_size=n) for _ in range(2)))
)


def last(snapshots):
    return list(snapshots)[-1]


@given(groupings)
def test_the_adjusted_rand_index_is_what_counting_pairs_gives(pair):
    assert adjusted_rand_index(*map(torch.tensor, pair)) == pytest.approx(_rand_by_counting(*pair))


def _rand_by_counting(labels, truth):
    """Hubert and Arabie's index by looking at every pair of clients."""
    pairs = list(itertools.combinations(range(len(labels)), 2))
    same_label = np.array([labels[i] == labels[j] for i, j in pairs], dtype=float)
    same_truth = np.array([truth[i] == truth[j] for i, j in pairs], dtype=float)
    index, a, b = (same_label * same_truth).sum(), same_label.sum(), same_truth.sum()
    expected = a * b / max(len(pairs), 1)
    return 1.0 if (a + b) / 2 == expected else (index - expected) / ((a + b) / 2 - expected)


def test_the_adjusted_rand_index_is_scikit_learns():
    from sklearn.metrics import adjusted_rand_score

    labels, truth = [0, 0, 1, 2, 2, 2, 0, 1] * 3, [0, 0, 1, 1, 2, 2, 2, 1] * 3
    assert adjusted_rand_index(torch.tensor(labels), torch.tensor(truth)) == pytest.approx(
        adjusted_rand_score(truth, labels)
    )


@given(groupings)
def test_misclustering_is_the_least_over_all_ways_to_name_clusters(pair):
    labels, truth = pair
    right = max(
        sum(names[label] == true for label, true in zip(labels, truth, strict=True))
        for names in itertools.permutations(range(4))
    )
    metrics = cluster_metrics(*map(torch.tensor, pair))
    assert metrics["identity_accuracy"] == pytest.approx(right / len(labels))
    assert metrics["misclustering"] == pytest.approx(1 - right / len(labels))


@given(groupings)
def test_purity_counts_each_clusters_largest_true_cluster(pair):
    labels, truth = pair
    largest = [
        max(sum(t == y for t, own in zip(truth, labels, strict=True) if own == c) for y in range(4))
        for c in set(labels)
    ]
    assert cluster_metrics(*map(torch.tensor, pair))["purity"] == pytest.approx(sum(largest) / len(labels))


def test_a_client_without_a_cluster_is_wrong():
    metrics = cluster_metrics(torch.tensor([1, 1, 0, -1]), torch.tensor([0, 0, 1, 1]))
    assert metrics["identity_accuracy"] == metrics["purity"] == 0.75
    assert metrics["misclustering"] == 0.25


def test_nobody_with_a_cluster():
    metrics = cluster_metrics(torch.tensor([-1, -1, -1, -1]), torch.tensor([0, 0, 1, 1]))
    assert metrics == {"ari": 0.0, "purity": 0.0, "identity_accuracy": 0.0, "misclustering": 1.0}


def test_clusters_in_use_are_those_with_clients():
    assert clusters_in_use(torch.tensor([2, 2, 0, -1])) == 2
    assert clusters_in_use(torch.tensor([-1])) == 0


TRUTH = {"weight": torch.tensor([[0.0, 0.0], [3.0, 4.0]])}


def test_parameter_errors_of_swapped_models():
    metrics = parameter_metrics({"weight": torch.tensor([[3.0, 4.0], [0.0, 1.0]])}, TRUTH)
    assert metrics["parameter_error"] == pytest.approx(1)  # the worse of 0 and 1
    assert metrics["parameter_error_by_index"] == pytest.approx((5 + np.hypot(3, 3)) / 2)
    assert metrics["parameter_error_nearest"] == pytest.approx(0.5)


def test_a_collapse_is_an_error_but_not_for_the_nearest_form():
    metrics = parameter_metrics({"weight": torch.zeros(2, 2)}, TRUTH)
    assert metrics["parameter_error"] == pytest.approx(5)
    assert metrics["parameter_error_nearest"] == 0


def test_fewer_and_more_models_than_true_clusters():
    one = parameter_metrics({"weight": torch.zeros(1, 2)}, TRUTH)
    assert one["parameter_error"] == pytest.approx(5)  # the second true cluster has only the first one's model
    assert "parameter_error_by_index" not in one
    three = parameter_metrics({"weight": torch.tensor([[9.0, 9.0], [3.0, 4.0], [0.0, 0.0]])}, TRUTH)
    assert three["parameter_error"] == pytest.approx(0)


def test_models_of_another_kind_have_no_parameter_error():
    assert parameter_metrics({"1.weight": torch.zeros(2, 2)}, TRUTH) == {}
    assert parameter_metrics({"weight": torch.zeros(2, 3)}, TRUTH) == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_accuracy_is_that_of_the_served_model_on_the_clients_own_test_examples(engine):
    data = classification(sizes=(3, 5, 4, 6))
    objective = Classification(Network(mlp(4, [], 3), dtype=torch.float64), 3)
    fed = federation(engine, objective, data)
    algorithm = IFCA(k=2, rounds=2, local=Descent(lr=0.5, steps=3))
    snapshot = last(drive(algorithm, fed))
    metrics = evaluate(fed, algorithm, snapshot, truth=torch.tensor([0, 1, 0, 1]))
    hits, losses = [], []
    for i, label in enumerate(snapshot.labels.tolist()):
        weight, bias = (snapshot.models[name][label] for name in ("1.weight", "1.bias"))
        test, train = (slice(int(part.offsets[i]), int(part.offsets[i + 1])) for part in (data.test, data.train))
        hits.append(((data.test.x[test] @ weight.T + bias).argmax(1) == data.test.y[test]).double().mean())
        logits = data.train.x[train] @ weight.T + bias
        losses.append(torch.nn.functional.cross_entropy(logits, data.train.y[train]))
    assert metrics["test_accuracy"] == pytest.approx(float(torch.stack(hits).mean()))
    assert metrics["worst_decile_accuracy"] == pytest.approx(float(torch.stack(hits).min()))
    assert metrics["train_loss"] == pytest.approx(float(torch.stack(losses).mean()))
    assert {"ari", "misclustering", "identity_accuracy", "purity"} < set(metrics)


def test_means_over_clients_and_over_examples_differ_where_sizes_do():
    data = regression(sizes=(2, 2))
    offsets = torch.tensor([0, 1, 4])
    uneven = data._replace(test=data.test._replace(offsets=offsets))
    fed = federation("vectorised", LinearRegression(3, dtype=torch.float64), uneven)
    algorithm = IFCA(k=1, rounds=1)
    snapshot = last(drive(algorithm, fed))
    metrics = evaluate(fed, algorithm, snapshot)
    errors = (data.test.y - data.test.x @ snapshot.models["weight"][0]).square()
    assert metrics["test_squared_error"] == pytest.approx(float((errors[0] + errors[1:].mean()) / 2))
    assert metrics["test_squared_error_examples"] == pytest.approx(float(errors.mean()))
    assert metrics["worst_decile_squared_error"] == pytest.approx(float(max(errors[0], errors[1:].mean())))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tested", [[0, 0, 0, 0], [0, 1, 0, 3]])
def test_clients_without_test_examples_count_in_no_mean(engine, tested):
    data = classification(sizes=(3, 5, 4, 6))
    offsets = torch.tensor([0, *tested]).cumsum(0)
    rows = slice(int(offsets[-1]))
    some = data._replace(test=type(data.test)(data.test.x[rows], data.test.y[rows], offsets))
    fed = federation(engine, Classification(Network(mlp(4, [], 3), dtype=torch.float64), 3), some)
    algorithm = IFCA(k=2, rounds=1)
    metrics, _, not_scored, *_ = score(fed, algorithm, last(drive(algorithm, fed)))
    assert ("test_accuracy" in metrics) == (sum(tested) > 0)
    assert "train_loss" in metrics
    assert all(map(math.isfinite, metrics.values()))
    assert not_scored == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_cannot_be_scored_is_named_and_makes_means_infinite(engine):
    data = regression(sizes=(3, 5, 4, 6))
    test = data.test._replace(x=data.test.x.clone())
    test.x[2:4] = 1e200  # both of client-1's test examples: their squared errors are infinite
    fed = federation(engine, LinearRegression(3, dtype=torch.float64), data._replace(test=test))
    algorithm = IFCA(k=1, rounds=1)
    found = score(fed, algorithm, last(drive(algorithm, fed)), truth=torch.zeros(4, dtype=torch.int64))
    assert found.not_scored == found.exploded == ["client-1"]
    assert found.scores.isfinite().tolist() == [True, False, True, True]
    errors = [name.format(error) for name in SERVED for error in ("squared_error", "mae", "rmse")]
    assert {name for name, value in found.metrics.items() if value == math.inf} == {*errors, "train_loss"}
    assert found.metrics["test_r2_examples"] == -math.inf
    assert math.isnan(found.metrics["trivial_squared_error"])  # that client's is not known
    assert found.metrics["ari"] == 1.0  # labels are known of everybody
    assert math.isfinite(found.answered_loss)


def test_an_accuracy_that_cannot_be_had_is_the_worst():
    data = classification(sizes=(3, 5, 4, 6))
    train = data.train._replace(x=data.train.x.clone())
    train.x[0] = torch.nan
    fed = federation("loop", Classification(Network(mlp(4, [], 3), dtype=torch.float64), 3), data._replace(train=train))
    algorithm = IFCA(k=2, rounds=1)
    found = score(fed, algorithm, last(drive(algorithm, fed)))
    assert found.not_scored == ["client-0"]
    assert found.metrics["test_accuracy"] == -math.inf
    assert found.metrics["train_loss"] == math.inf


def known_metrics(models, labels, data, trivial):
    """scikit-learn's metrics of each client and of all examples, for the model or for a constant."""
    by_client, everything = {}, []
    for i, label in enumerate(labels):
        rows = slice(int(data.test.offsets[i]), int(data.test.offsets[i + 1]))
        x, y = data.test.x[rows], data.test.y[rows]
        if not len(y):
            continue
        if y.is_floating_point():
            predicted = x @ models["weight"][label]
        else:
            predicted = x @ models["1.weight"][label].T + models["1.bias"][label]
        predicted = predicted if trivial is None else trivial.expand(predicted.shape)
        everything.append((predicted, y))
        for name, value in sklearn_metrics(predicted, y).items():
            by_client.setdefault(name, []).append(value)
    return by_client, sklearn_metrics(*map(torch.cat, zip(*everything, strict=True)))


def sklearn_metrics(predicted, y):
    from sklearn import metrics as known

    if y.is_floating_point():
        squared = known.mean_squared_error(y, predicted)
        found = {"squared_error": squared, "mae": known.mean_absolute_error(y, predicted), "rmse": squared**0.5}
        return {**found, "r2": known.r2_score(y, predicted) if len(y) > 1 else math.nan}
    answer, chances = predicted.argmax(-1), predicted.softmax(-1)
    areas = [known.roc_auc_score(y == c, chances[:, c]) for c in y.unique().tolist()] if len(y.unique()) > 1 else []
    right = [float((answer == c)[y == c].double().mean()) for c in y.unique()]
    return {
        "accuracy": known.accuracy_score(y, answer),
        "balanced_accuracy": np.mean(right),
        "macro_f1": known.f1_score(y, answer, average="macro"),
        "auc": np.mean(areas) if areas else math.nan,
        "log_loss": known.log_loss(y, chances, labels=range(chances.shape[1])),
    }


def uneven(data, tested=(1, 0, 9, 14)):
    """The same data with that many test examples at each client, copies of training examples among them."""
    x, y = (torch.cat([data.test[part], data.train[part]])[: sum(tested)] for part in (0, 1))
    return data._replace(test=type(data.test)(x, y, torch.tensor([0, *tested]).cumsum(0)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_metrics_are_scikit_learns_for_every_client_for_all_examples_and_for_the_trivial_prediction(task, engine):
    if task == "classes":
        data = uneven(classification(sizes=(3, 5, 4, 16)))
        objective = Classification(Network(mlp(4, [], 3), dtype=torch.float64), 3)
        shares = data.train.y.bincount(minlength=3) / len(data.train.y)
        constant = shares.double().log()
    else:
        data = uneven(regression(sizes=(3, 5, 4, 16)))
        objective, constant = LinearRegression(3, dtype=torch.float64), data.train.y.mean()
    fed = federation(engine, objective, data)
    algorithm = IFCA(k=2, rounds=2, local=Descent(lr=0.1, steps=3))
    at = last(drive(algorithm, fed))
    found = score(fed, algorithm, at)
    for trivial, keys in ((None, SERVED), (constant, TRIVIAL)):
        by_client, of_all = known_metrics(at.models, at.labels.tolist(), data, trivial)
        for name, values in by_client.items():
            mine = found.by_client[name]
            assert (mine.served if trivial is None else mine.trivial)[[0, 2, 3]].tolist() == pytest.approx(
                values, abs=1e-6, nan_ok=True
            )
            defined = [value for value in values if not math.isnan(value)]
            worst = max(defined) if METRICS[name].higher_is_better is False else min(defined)
            got = [found.metrics[key.format(name)] for key in keys]
            near = found.metrics["test_auc_error_examples"] if name == "auc" and trivial is None else 1e-6
            assert got[::2] == pytest.approx([np.mean(defined), worst], abs=1e-6)
            assert got[1] == pytest.approx(of_all[name], abs=near + 1e-9)
            assert found.metrics.get(f"undefined_{name}", 0) == len(values) - len(defined)
    assert found.metrics["undefined_auc" if task == "classes" else "undefined_r2"] == 1  # one test example only


def test_logits_that_are_no_numbers_on_test_examples_are_not_scored():
    data = classification(sizes=(3, 5, 4, 6))
    test = data.test._replace(x=data.test.x.clone())
    test.x[2] = torch.nan  # one of client-1's; its training examples are sound
    objective = Classification(Network(mlp(4, [], 3), dtype=torch.float64), 3)
    for engine in ENGINES:
        fed = federation(engine, objective, data._replace(test=test))
        algorithm = IFCA(k=2, rounds=1)
        found = score(fed, algorithm, last(drive(algorithm, fed)))
        assert found.not_scored == found.exploded == ["client-1"]
        assert found.metrics["test_accuracy"] == found.metrics["test_auc"] == -math.inf
        assert found.metrics["test_log_loss"] == math.inf


@pytest.mark.parametrize("logits", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_logits_that_give_no_probabilities_are_right_about_nothing(logits):
    objective = Classification(Network(mlp(4, [], 2)), 2)
    examples = Examples(torch.zeros(2, 4), torch.tensor([0, 0]), torch.ones(2))
    grades = objective.grade(torch.tensor([logits, [0.0, -math.inf]]), examples)
    assert grades[0].isnan()
    assert grades[1] == 1


def test_evaluating_changes_nothing():
    data, seen = regression(), []
    for look in (False, True):
        fed = federation("vectorised", LinearRegression(3, dtype=torch.float64), data)
        algorithm = Alone(rounds=3, local=Descent(lr=0.1, epochs=1, batch=2))
        for snapshot in drive(algorithm, fed):
            if look:
                evaluate(fed, algorithm, snapshot)
        seen.append(evaluate(fed, algorithm, snapshot))
    assert seen[0] == seen[1]


def test_clients_that_keep_their_own_models_are_served_those():
    data = regression(sizes=(20, 20), truth=[0, 1])
    fed = federation("vectorised", LinearRegression(3, dtype=torch.float64), data)
    algorithm = Alone(rounds=30, local=Descent(lr=0.05, steps=10))
    metrics = evaluate(fed, algorithm, last(drive(algorithm, fed)), truth=torch.tensor([0, 1]))
    assert metrics["test_squared_error"] < 0.01
    assert "ari" not in metrics  # without clusters, there is nothing to compare with the true ones


def test_an_objective_that_names_no_score_gives_test_score():
    class Plain:
        inner = LinearRegression(3, dtype=torch.float64)
        init, losses, scores, to = inner.init, inner.losses, inner.scores, lambda self, device, dtype: self

    fed = federation("loop", completed(Plain()), regression())
    algorithm = IFCA(k=1, rounds=1)
    assert "test_score" in evaluate(fed, algorithm, last(drive(algorithm, fed)))


def test_without_scipy_what_needs_no_matching_is_still_there(monkeypatch, caplog):
    def without_scipy(name, *args, **kwargs):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    real_import = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without_scipy)
    with caplog.at_level(logging.WARNING):
        metrics = cluster_metrics(torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert metrics == {"ari": 1.0, "purity": 1.0}
    assert "scipy" in caplog.text


class Counting(Classification):
    """Counts the training and test examples that a model is asked about."""

    asked = 0

    def predict(self, params, x):
        self.asked += len(x)
        return super().predict(params, x)


@pytest.mark.parametrize("k", [1, 3])
def test_an_evaluation_reads_every_example_once(k):
    objective = Counting(Network(mlp(4, [3], 3), dtype=torch.float64), 3)
    fed = Federation(LoopEngine(objective, classification([6, 8, 10], classes=3), DOUBLE))
    algorithm = IFCA(k=k, rounds=1, local=Descent(lr=0.1, steps=1))
    at = last(drive(algorithm, fed))
    examples = sum(len(fed._engine.host.examples[split].y) for split in ("train", "test"))
    objective.asked = 0
    found = score(fed, algorithm, at)
    assert objective.asked == examples
    lost = at.next(models=at.models, labels=torch.tensor([-1, *at.labels[1:].tolist()]))
    own = score(fed, algorithm, lost)
    assert (objective.asked > 2 * examples) == (k > 1)  # whoever has no cluster looks for the model that fits best
    assert torch.allclose(found.losses[1:], own.losses[1:])
    assert float(own.losses[0]) <= float(found.losses[0]) + 1e-9


def test_clients_without_clusters_are_compared_with_a_truth_of_one_group():
    assert cluster_metrics(torch.tensor([-1, -1]), torch.tensor([0, 0]))["identity_accuracy"] == 0
