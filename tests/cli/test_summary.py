import json

import corymb
from corymb.algorithms import FedAvg
from corymb.cli import Exit
from corymb.cli.app import main
from corymb.cli.summary import print_result
from corymb.local import Descent
from corymb.runs.fit import fit
from tests.runs import small


def test_who_was_not_scored_is_in_the_summary(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    run = fit(FedAvg(rounds=2), small.out_of_range())
    assert print_result(run, as_json=False) == 0
    assert "1 of 6 clients not scored: client-3" in capsys.readouterr().out
    assert print_result(fit(FedAvg(rounds=2), small.prices()), as_json=False) == 0
    assert "not scored" not in capsys.readouterr().out


def test_a_run_that_diverges_has_a_code_and_names_the_setting(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "120")
    algorithm = FedAvg(rounds=9, local=Descent(lr=1.0, steps=5))
    run = fit(algorithm, small.prices(), evaluate_every=1, out=tmp_path / "run")
    assert print_result(run, as_json=True) == Exit.DIVERGED == 5
    printed = capsys.readouterr()
    assert json.loads(printed.out)["stopped"] == "diverged"
    assert "stopped (diverged) after 4 rounds: training loss grew from 1.13 to" in printed.err
    assert "lower --local.lr (now 1). --keep-going goes on" in printed.err
    assert "corymb resume" not in printed.err
    assert print_result(corymb.Run.load(tmp_path / "run"), as_json=False) == Exit.DIVERGED
    assert "Diverging: training loss grew from 1.13 to" in capsys.readouterr().out


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
