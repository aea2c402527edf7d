import math
from dataclasses import replace

import numpy as np
import pytest

from corymb.algorithms import FedAvg
from corymb.data import FederatedDataset
from corymb.local import Descent
from corymb.report.html import key_numbers
from corymb.report.scores import Score, cautions, other_metrics, score_of, score_rows, scores_in, served_worse
from corymb.report.words import cluster_rows, verdict, warnings_of
from corymb.runs.fit import fit
from tests.report.reported import people, runs
from tests.runs import small


def rare(clients=6, rows=100):
    """A class that one example in five is of, which has nothing to do with the features; two clients never have it."""
    x, _, client = small.arrays(clients, rows)
    y = ((np.arange(len(x)) % 5 == 0) & (client >= 2)).astype(int)
    return FederatedDataset.from_arrays(x, y, client, standardise=True)


def beside(run, **metrics):
    """The run with other metrics."""
    return replace(run, metrics={**run.metrics, **metrics})


def test_where_less_is_better_a_smaller_error_is_a_gain():
    error = Score("squared_error", True)
    assert error.gain(1.0, 2.0) == "50.0% better than"
    assert error.gain(2.0, 1.0) == "100.0% worse than"
    assert Score("accuracy", False).gain(0.9, 0.9) == "the same as"


@pytest.mark.parametrize(("name", "worst", "lower"), [("rank", 0.9, True), ("rank", 0.1, False)])
def test_a_score_without_its_objective_is_read_from_the_worst_tenth(name, worst, lower):
    run = replace(runs()[0], objective=None, metrics={f"test_{name}": 0.5, f"worst_decile_{name}": worst})
    assert score_of(run) == Score(name, lower)


def test_a_run_that_does_not_beat_the_trivial_prediction_says_so():
    run = fit(FedAvg(rounds=2, local=Descent(lr=0.01, steps=1)), rare())
    said, skewed = cautions(run)
    assert run.metrics["test_accuracy"] <= run.metrics["trivial_accuracy"]
    assert said.startswith("The run is no better than always answering the most frequent class: test accuracy ")
    assert skewed.startswith("Always answering the most frequent class is right in 8")
    assert "--metric balanced_accuracy or auc" in skewed
    assert warnings_of(run)[-2:] == [said, skewed]
    assert not list(cautions(runs()[0]))


@pytest.mark.parametrize(("name", "worse", "better"), [("accuracy", 0.5, 0.51), ("log_loss", 0.5, 0.49)])
def test_as_good_as_the_trivial_prediction_is_no_better(name, worse, better):
    run = replace(runs()[0], config={**runs()[0].config, "metric": name})
    (line,) = cautions(beside(run, **{f"test_{name}": worse, f"trivial_{name}": 0.5}))
    assert "no better than" in line
    assert list(cautions(beside(run, **{f"test_{name}": better, f"trivial_{name}": 0.5}))) == []
    assert list(cautions(beside(run, **{f"test_{name}": math.inf, f"trivial_{name}": math.nan}))) == []


def test_clients_for_which_a_metric_is_not_defined_are_counted():
    run = fit(FedAvg(rounds=2), rare(), metric="auc")
    assert run.metric == "auc"
    assert run.metrics["undefined_auc"] == 2
    (line,) = [line for line in cautions(run) if "over" in line]
    assert line == "AUC is averaged over 4 of 6 clients: each of the others has test examples of one class only."
    assert {row["test score"]: row["clients"] for row in score_rows(run)}["AUC"] == "4 of 6"
    assert run.by_client["auc"].served.isnan().sum() == 2
    none = fit(FedAvg(rounds=1), one_class(), metric="auc")
    assert score_of(none) is None
    assert "test_auc" not in none.metrics
    why = "(each has test examples of one class only)"
    assert verdict([none])[2] == f"Test auc is undefined for every client {why}, so quality on new data is unknown."
    assert not [line for line in cautions(none) if "averaged over" in line]


def one_class():
    """Every client has only one class, which no other client has."""
    x, _, client = small.arrays()
    return FederatedDataset.from_arrays(x, client % 2, client, standardise=True)


def test_the_metric_that_was_chosen_leads():
    run = fit(FedAvg(rounds=3, local=Descent(lr=0.5, steps=5)), people(), metric="log_loss", evaluate_every=0)
    assert [score.name for score in scores_in(run)] == ["log_loss", "accuracy", "balanced_accuracy", "macro_f1", "auc"]
    assert score_of(run) == Score("log_loss", lower_is_better=True)
    numbers = {key.name: key.value for key in key_numbers(run)}
    assert {"test log loss", "trivial baseline", "worst tenth"} <= set(numbers)
    assert "Mean test log loss over clients is " in verdict([run])[2]
    assert "(always giving every class its share of all examples: " in verdict([run])[2]
    assert {"test log loss", "trivial"} <= set(cluster_rows(run)[0])
    assert set(other_metrics(run)) >= {"train_loss", "ari", "test_calibration_error_examples"}
    assert not [name for name in other_metrics(run) if name.startswith(("trivial_", "worst_"))]
    served, trivial = run.by_client["log_loss"]
    assert served_worse(run, score_of(run)) == int((served >= trivial).sum())
    assert "test_log_loss" in repr(run)
    assert "test_auc" not in repr(run)


def test_scores_without_bounds_are_compared_by_ratio_and_others_by_difference():
    assert Score("auc", False).gain(0.8, 0.75) == "0.05 better than"
    assert Score("r2", False).gain(-0.1, 0.1) == "0.2 worse than"
    assert Score("auc", False).gain(0.8, 0.8001) == "the same as"
    assert Score("rmse", True).gain(1.0, 2.0) == "50.0% better than"
