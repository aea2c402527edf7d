import json
import os
import shlex
import signal
import time
from dataclasses import replace

import pytest

import corymb
from corymb.algorithms import FedAvg
from corymb.cli import Exit
from corymb.cli.app import main
from corymb.cli.summary import advice, print_result
from corymb.local import Descent
from corymb.report.words import warnings_of
from corymb.runs.fit import fit
from corymb.runs.session import Session
from tests.runs import small


def test_clients_that_were_not_scored_are_in_the_summary(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    run = fit(FedAvg(rounds=2), small.out_of_range())
    assert print_result(run, as_json=False) == 0
    assert "1 of 6 clients not scored: client-3" in capsys.readouterr().out
    assert print_result(fit(FedAvg(rounds=2), small.prices()), as_json=False) == 0
    assert "not scored" not in capsys.readouterr().out


def test_the_summary_never_names_another_number_of_clusters_than_its_table(capsys, monkeypatch):
    """SR-FCA's evidence is of the clusters it found first; refinement may dissolve some of them."""
    monkeypatch.setenv("COLUMNS", "120")
    run = fit(FedAvg(rounds=2), small.prices())
    found = {"k": 3, "evidence": "3 clusters: held-out loss 0.1."}
    print_result(replace(run, history=[*run.history[:-1], {**run.history[-1], "notes": found}]), as_json=False)
    assert "\n1 cluster at the end; when tested on held-out examples: 3 clusters:" in capsys.readouterr().out


def test_a_run_that_diverges_has_a_code_and_names_the_setting(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "120")
    algorithm = FedAvg(rounds=9, local=Descent(lr=1.0, steps=5))
    run = fit(algorithm, small.prices(), evaluate_every=1, out=tmp_path / "run")
    assert print_result(run, as_json=True) == Exit.DIVERGED == 5
    printed = capsys.readouterr()
    assert json.loads(printed.out)["stopped"] == "diverged"
    assert "stopped (diverged) after 3 rounds: training loss grew from 0.926 to" in printed.err
    assert "lower --local.lr (now 1). --keep-going continues" in printed.err
    assert "corymb resume" not in printed.err
    assert print_result(corymb.Run.load(tmp_path / "run"), as_json=False) == Exit.DIVERGED
    assert "The run diverged: training loss grew from 0.926 to" in capsys.readouterr().out


def test_keep_going_is_an_option(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small.folder(tmp_path / "clinic")
    line = "run clinic fedavg --label outcome --rounds 2 --keep-going --json -q"
    assert main(line.split()) == 0
    assert json.loads(capsys.readouterr().out)["config"]["keep_going"] is True
    assert main([*line.replace("--keep-going", "--max_seconds 0").split(), "--out", "cut"]) == 0
    capsys.readouterr()
    assert main(["resume", "cut", "--keep-going", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["keep_going"] is True


def test_one_round_is_a_round(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small.folder(tmp_path / "clinic")
    line = "run clinic fedavg --label outcome --rounds 2 --max_seconds 0 -q --out here"
    assert main(line.split()) == 0
    printed = capsys.readouterr()
    assert "corymb: stopped (max_seconds) after 1 round; to continue" in printed.err
    run = corymb.Run.load("here")
    assert "The run was stopped early (max_seconds) after 1 round." in warnings_of(run)


def test_scores_are_shown_with_the_trivial_one(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    small.folder(tmp_path / "clinic")
    line = "run clinic fedavg --label outcome --rounds 1 --local.lr 0.0001 --metric auc -q"
    assert main(line.split()) == 0
    printed = capsys.readouterr().out
    head = next(row for row in printed.splitlines() if "trivial" in row)
    assert " ".join(head.replace("┃", "").split()).startswith("test score mean trivial worst tenth by example")
    assert printed.index("AUC") < printed.index("accuracy")
    assert main([*line.split(), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    metrics = result["metrics"]
    assert metrics["trivial_auc"] == metrics["trivial_auc_examples"] == 0.5
    assert {"test_accuracy", "test_accuracy_examples", "worst_decile_accuracy", "test_log_loss"} <= set(metrics)
    run = corymb.Run.load(result["folder"])
    print_result(replace(run, metrics={**run.metrics, "test_auc": 0.5}), as_json=False)
    line = "The run is no better than giving every example the same chance: test AUC 0.5, against 0.5."
    assert line in " ".join(capsys.readouterr().out.split())
    assert main(["run", "clinic", "fedavg", "--label", "outcome", "--metric", "mae"]) == 2
    assert "choose accuracy, balanced_accuracy, macro_f1, auc or log_loss." in capsys.readouterr().err


def test_the_comparison_that_is_suggested_repeats_what_was_asked_for(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")  # a command is not cut into lines: it is there to be copied
    small.folder(tmp_path / "my clinic")

    def suggested(line):
        assert main(shlex.split(line)) == 0
        printed = next(row for row in capsys.readouterr().out.splitlines() if row.startswith("Compare with"))
        return printed.partition(": ")[2]

    own = "--label outcome --seed 3 --no-guard --metric auc"
    line = suggested(f"run 'my clinic' ifca --k 2 --rounds 2 --local.steps 1 --threads 1 {own} -q")
    assert (
        line
        == "corymb run 'my clinic' fedavg --rounds 2 --label outcome --model linear --seed 3 --no-guard --metric auc"
    )
    assert main([*shlex.split(line)[1:], "-q", "--json"]) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["rounds"], config["seed"], config["guard"], config["metric"]) == (2, 3, False, "auc")
    whole = suggested("run 'my clinic' ifca --k 2 --label outcome --max_seconds 0 -q")  # no rounds were asked for
    assert whole == "corymb run 'my clinic' fedavg --label outcome --model linear"
    of_examples = suggested("run 'my clinic' uifca --k 2 --label outcome --rounds 1 -q")
    assert of_examples == "corymb run 'my clinic' kfed --k 2 --label outcome --task density"
    assert main([*shlex.split(of_examples)[1:], "-q", "--json"]) == 0
    capsys.readouterr()
    assert suggested("run 'my clinic' kfed --k 2 --label outcome -q").endswith(
        "uifca --k 2 --label outcome --task density"
    )


@pytest.mark.parametrize("checkpoints", [True, False])
def test_ctrl_c_in_the_final_evaluation_suggests_how_to_resume(checkpoints, capsys, monkeypatch, tmp_path):
    def interrupted(session):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may be output to ignore it
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Session, "result", interrupted)
    if not checkpoints:
        monkeypatch.setattr(Session, "run", lambda *args, **options: None)
    line = "run mixed-regression-ifca ifca --k 2 --rounds 2 --local.steps 1 -q --out here"
    assert main(line.split()) == Exit.INTERRUPTED
    output = capsys.readouterr().err
    assert ("To continue: corymb resume here" in output) is checkpoints
    assert ("Stopped before the first round was complete" in output) is not checkpoints
    if checkpoints:
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        assert main(["resume", "here", "-q", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ledger"]["rounds"] == 2


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_finite_step_that_diverges_ends_as_diverged_however_short_the_run(rounds, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    step = ["--local.optimiser", "adam", "--local.lr", "1e9", "--local.steps", "2"]
    assert main(["run", "digits", "fedavg", "--rounds", str(rounds), *step, "--json", "-q"]) == Exit.DIVERGED
    printed = capsys.readouterr()
    assert json.loads(printed.out)["stopped"] == "diverged"
    assert "lower --local.lr (now 1e+09)" in printed.err


def test_data_that_were_given_in_python_are_compared_there(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    data = small.arrays()
    fit(corymb.IFCA(k=2, rounds=2), data, out="here", seed=3, until="rounds")
    assert main(["resume", "here"]) == 0
    shown = capsys.readouterr().out
    assert "corymb run" not in shown
    line = next(row for row in shown.splitlines() if row.startswith("Compare with one global model")).partition(": ")[2]
    assert line == "corymb.fit(corymb.configure('fedavg', data, rounds=2), data, model='linear', seed=3)"
    other = corymb.fit(corymb.configure("fedavg", data, rounds=2), data, model="linear", seed=3)
    assert (other.config["rounds"], other.seed) == (2, 3)


@pytest.mark.parametrize(
    ("algorithm", "suggested"),
    [
        (corymb.IFCA(k=2, rounds=2, participants=4), ", participants=4"),
        (corymb.IFCA(k=2, rounds=2, participants=0.5), ", participants=0.5"),
        (corymb.SRFCA(rounds=1, threshold=1.0, participants=2), ""),  # in each cluster
    ],
)
def test_a_comparison_asks_as_many_clients(algorithm, suggested):
    data = small.arrays()
    run = fit(algorithm, data, seed=3, until="rounds")
    line = next(row for row in advice(run, None) if row.startswith("Compare with one global model")).partition(": ")[2]
    rounds = algorithm.rounds
    assert line.startswith(f"corymb.fit(corymb.configure('fedavg', data, rounds={rounds}{suggested}), data, model=")
