import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import corymb
from corymb.local import Descent
from corymb.runs.fit import as_dataset, fit
from corymb.settings import InvalidInput
from tests.runs import small

FAST = corymb.IFCA(k=2, rounds=2, local=Descent(lr=0.3, steps=2))


def wrong(predictions, y):
    return (predictions.argmax(-1) != y).float()


def off_by(predictions, y):
    return (predictions - y).abs()


def branching(predictions, y):
    """What vmap cannot take."""
    return torch.tensor([0.0 if bool(hit) else 1.0 for hit in predictions.argmax(-1) == y])


@pytest.mark.parametrize("engine", ["vectorised", "loop"])
@pytest.mark.parametrize("metric", [wrong, branching])
def test_a_metric_is_the_mean_over_clients_of_what_each_has(metric, engine):
    run = fit(FAST, small.arrays(), metrics={"mistakes": metric}, engine=engine, evaluate_every=1)
    for row in run.history:
        assert row["metrics"]["test_mistakes"] == pytest.approx(1 - row["metrics"]["test_accuracy"])
    assert run.metrics["test_mistakes"] == pytest.approx(1 - run.metrics["test_accuracy"])


def test_a_metric_sees_predictions_in_the_units_of_the_data():
    data = as_dataset(small.prices(), seed=0)
    run = fit(corymb.FedAvg(rounds=2), data, metrics={"off_by": off_by})
    own = []
    for client in range(len(data)):
        rows = slice(int(data.test.offsets[client]), int(data.test.offsets[client + 1]))
        own.append(np.abs(run.predict(data.test.x[rows], client=client) - data.test.y[rows].numpy()).mean())
    assert run.metrics["test_off_by"] == pytest.approx(np.mean(own), rel=1e-4)


def test_metrics_change_no_bits_and_may_differ_when_a_run_is_resumed(tmp_path):
    want = fit(FAST, small.arrays())
    fit(FAST, small.arrays(), metrics={"a": wrong}, out=tmp_path / "run", max_seconds=0)
    got = fit(FAST, small.arrays(), resume=tmp_path / "run", metrics={"b": wrong})
    assert all(torch.equal(got.models[name], want.models[name]) for name in want.models)
    assert "test_b" in got.metrics
    assert "test_a" not in got.metrics


def test_a_client_without_a_finite_value_is_named_and_left_out_of_no_mean():
    def odd(predictions, y):
        return 1 / y  # no number for class 0

    data = as_dataset(small.arrays(), seed=0)
    y = torch.ones_like(data.test.y)
    y[int(data.test.offsets[2]) : int(data.test.offsets[3])] = 0
    run = fit(FAST, replace(data, test=data.test._replace(y=y)), metrics={"odd": odd})
    assert math.isnan(run.metrics["test_odd"])
    assert run.to_dict()["metrics"]["test_odd"] is None
    assert run.not_scored == (data.names[2],)


WRONG = {
    "a shape": (
        {"mean": lambda p, y: y.double().mean()},
        r"Metric 'mean' returned \[\]: wanted a tensor with one value",
    ),
    "no tensor": ({"many": lambda p, y: 3}, "Metric 'many' returned int: wanted"),
    "a name that is taken": ({"accuracy": wrong}, "There already is a metric 'accuracy'"),
    "no function": ({"a": 3}, "Metric 'a' is a int: wanted a function"),
    "no names": ([wrong], "metrics must map names to functions"),
    "no number": ({"nan": lambda p, y: y * float("nan")}, "no finite value at any client"),
}


@pytest.mark.parametrize(("metrics", "line"), WRONG.values(), ids=WRONG)
def test_an_invalid_metric_is_refused_in_a_line(metrics, line):
    with pytest.raises(InvalidInput, match=line) as error:
        fit(FAST, small.arrays(), metrics=metrics)
    assert "\n" not in str(error.value)
