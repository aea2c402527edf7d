import shlex
import sys

import pytest
import torch

import corymb
from corymb.cli.app import main
from corymb.core.objective import Examples
from corymb.data.validation_split import validation_split
from corymb.datasets import from_folder
from corymb.local import Descent
from corymb.local.held_out import hold_out
from corymb.runs.fit import as_dataset
from corymb.runs.tuning.study import tune
from corymb.settings import InvalidInput
from tests.runs import small

pytest.importorskip("optuna")
FEW = {"rounds": 2, "local": {"steps": 5}}
LR = {"local.lr": "log:0.0001:1"}


@pytest.fixture(scope="module")
def table():
    return as_dataset(small.arrays(), seed=0)


def test_what_judges_is_held_out_of_the_training_examples_and_nothing_else(table):
    apart = validation_split(table)
    assert apart.names == table.names
    for client in range(len(table)):
        x, y = table.train.of(client)
        parts = hold_out(Examples(x, y, torch.ones(len(y))))
        for split, part in ((apart.train, parts.kept), (apart.test, parts.held)):
            assert torch.equal(split.of(client)[0], x[part.weight > 0])
            assert torch.equal(split.of(client)[1], y[part.weight > 0])


def test_the_best_of_the_trials_is_found_and_its_command_runs(table, tmp_path, monkeypatch, capsys):
    place = small.folder(tmp_path / "clinic")
    data, named = (
        from_folder(place, label="outcome", seed=1),
        dict(data_name=str(place), data_options={"label": "outcome"}),
    )
    found = tune("fedavg", data, "linear", trials=3, params=LR, given=FEW, seed=1, engine="loop", **named)
    assert len(found.trials) == 3
    best = max(found.trials, key=lambda trial: trial.score)
    assert (found.settings, found.score, found.metric) == (best.settings, best.score, "accuracy")
    assert found.algorithm == corymb.configure(
        "fedavg", data, rounds=2, local={"steps": 5, "lr": found.settings["local.lr"]}
    )
    monkeypatch.chdir(tmp_path)
    words = shlex.split(found.command)
    assert words[:2] == ["corymb", "run"]
    assert main([*words[1:], "-q", "--out", "best"]) == 0
    run = corymb.Run.load("best")
    assert (run.config["local"]["lr"], run.config["seed"], run.config["model"]) == (
        found.settings["local.lr"],
        1,
        "linear",
    )


@pytest.mark.parametrize(("metric", "best"), [("log_loss", min), ("auc", max)])
def test_the_metric_that_was_asked_for_decides(table, metric, best):
    found = tune("fedavg", table, trials=3, params=LR, given=FEW, metric=metric)
    assert found.metric == metric
    assert found.score == best(trial.score for trial in found.trials)
    apart = validation_split(table)
    again = corymb.fit(found.algorithm, apart, evaluate_every=0)
    assert found.score == again.metrics[f"test_{metric}"]
    with pytest.raises(InvalidInput, match="does not fit what is learned"):
        tune("fedavg", table, trials=1, params=LR, metric="r2")


def test_a_study_continues_as_if_it_had_never_stopped(table, tmp_path):
    options = dict(params=LR | {"k": [1, 2]}, given=FEW, model="linear", engine="loop")
    whole = tune("ifca", table, trials=3, **options)

    def stop(number, trial, best):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune("ifca", table, trials=3, out=tmp_path / "study", progress=stop, **options)
    seen = []
    rest = tune("ifca", table, trials=3, out=tmp_path / "study", progress=lambda *row: seen.append(row), **options)
    assert [number for number, _, _ in seen] == [3]
    assert rest == whole
    assert tune("ifca", table, trials=2, out=tmp_path / "study", **options).trials == whole.trials
    with pytest.raises(InvalidInput, match="holds a different study"):
        tune("ifca", table, trials=3, out=tmp_path / "study", **{**options, "params": LR | {"k": [1, 3]}})


def test_a_custom_algorithm_keeps_its_settings():
    own = corymb.FedAvg(rounds=2, local=Descent(lr=0.1, steps=3))
    found = tune(own, small.prices(), trials=2, params={"local.lr": [1e-3, 0.05]}, engine="loop")
    assert found.metric == "squared_error"
    assert found.score == min(trial.score for trial in found.trials if trial.score is not None)
    assert (found.algorithm.rounds, found.algorithm.local.steps) == (2, 3)
    assert found.algorithm.local.lr == found.settings["local.lr"]


def test_where_no_ranges_are_given_the_defaults_are_tried_first():
    found = tune("fedavg", small.prices(), trials=2, given={"rounds": 2}, engine="loop")
    assert found.trials[0].settings == {}
    assert set(found.trials[1].settings) == {"local.lr", "local.steps"}
    assert found.score <= found.trials[0].score  # a squared error
    ifca = tune("ifca", small.prices(), trials=1, given={"rounds": 1}, engine="loop")
    assert ifca.settings == {"k": 2}  # of which there is no default


def test_trials_that_diverge_do_not_count_and_are_reported(table):
    options = dict(given={"rounds": 2, "local": {"steps": 5}}, trials=4, engine="loop")
    found = tune("fedavg", small.prices(), params={"local.lr": [0.05, 1e17]}, **options)
    assert found.settings == {"local.lr": 0.05}
    assert any(trial.score is None for trial in found.trials)
    with pytest.raises(InvalidInput, match="None of 4 trials had a finite squared_error"):
        tune("fedavg", small.prices(), params={"local.lr": [1e17, 2e17]}, **options)


WRONG = {
    "a setting": (dict(params={"local.rate": "log:0.1:1"}), r"Unknown setting 'local.rate'"),
    "a value": (dict(params={"local.lr": [-1]}), "lr must be positive"),
    "no k": (dict(algorithm="ifca", params=LR), "ifca needs k"),
    "trials": (dict(trials=0), "trials must be at least 1"),
    "an option": (dict(engin="loop"), "no option 'engin'"),
    "an algorithm": (dict(algorithm="fedagv"), "Did you mean 'fedavg'"),
}


@pytest.mark.parametrize(("wrong", "line"), WRONG.values(), ids=WRONG)
def test_impossible_requests_are_refused_in_a_line_before_any_trial(wrong, line, table, monkeypatch):
    monkeypatch.setattr("corymb.runs.tuning.study.fit", None)
    with pytest.raises(InvalidInput, match=line) as error:
        tune(**{"algorithm": "fedavg", "data": table, **wrong})
    assert "\n" not in str(error.value)


def test_a_folder_with_something_else_in_it_is_left_alone(table, tmp_path):
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(InvalidInput, match="holds no study"):
        tune("fedavg", table, out=tmp_path)


def test_without_optuna_there_is_a_line(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InvalidInput, match=r"pip install 'corymb\[tune\]'"):
        tune("fedavg", table)
