"""Runs that end when nothing changes any more."""

import json

import pytest

import corymb
from corymb.cli.app import main
from corymb.local import Descent
from corymb.report.words import warnings_of
from corymb.runs.fit import as_dataset
from tests.runs import crashing, small

QUICK = Descent(lr=0.2, steps=5)
"""Converges in a few rounds on the prices."""


@pytest.fixture(scope="module")
def data():
    return as_dataset(small.prices(), seed=0)


@pytest.fixture(scope="module")
def ended(data, tmp_path_factory):
    return corymb.fit(fedavg(60), data, until="converged", out=tmp_path_factory.mktemp("runs") / "run")


def fedavg(rounds):
    return corymb.FedAvg(rounds=rounds, local=QUICK)


def test_a_run_ends_when_it_has_converged(ended, data):
    assert ended.stopped == "converged"
    assert 20 <= len(ended.history) < 60
    whole = corymb.fit(fedavg(60), data)
    assert (whole.stopped, len(whole.history)) == ("", 60)  # whoever asks for rounds gets them
    assert ended.metrics["test_squared_error"] == pytest.approx(whole.metrics["test_squared_error"], rel=0.01)


def test_a_converged_run_has_ended(ended, data):
    again = corymb.fit(fedavg(60), data, resume=ended.folder)
    assert (again.stopped, len(again.history)) == ("converged", len(ended.history))
    assert any("stopped falling" in line for line in warnings_of(again))


def test_one_that_is_interrupted_converges_in_the_same_round(ended, data, tmp_path):
    corymb.fit(fedavg(60), data, until="converged", out=tmp_path / "run", max_seconds=0)
    crashing.assert_same(corymb.fit(fedavg(60), data, resume=tmp_path / "run"), ended)


def test_a_converged_run_continues_where_rounds_are_asked_for(data, tmp_path):
    first = corymb.fit(fedavg(60), data, until="converged", out=tmp_path / "run")
    longer = corymb.fit(fedavg(65), data, resume=first.folder)
    assert (longer.stopped, len(longer.history)) == ("", 65)
    crashing.assert_same(longer, corymb.fit(fedavg(65), data))


def test_stages_that_others_follow_come_to_their_end(data):
    restarts = corymb.IFCA(k=1, rounds=30, local=QUICK, restarts=2)
    assert len(corymb.fit(restarts, data, until="converged").history) == 62
    srfca = corymb.SRFCA(threshold=1e9, rounds=30, refinements=1, local=QUICK, alone=QUICK)
    assert len(corymb.fit(srfca, data, until="converged").history) == 33


def test_the_last_stage_may_be_cut(data):
    then = corymb.OneShot(k=2, alone=QUICK, inner=fedavg(60))
    run = corymb.fit(then, data, until="converged")
    assert run.stopped == "converged"
    assert run.history[-1]["stage"] == "train"


def test_the_command_line_waits_for_convergence_unless_rounds_are_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small.folder(tmp_path / "clinics", clients=3, rows=12)
    line = ["run", "clinics", "fedavg", "--label", "outcome", "-q", "--json"]
    main([*line, "--out", "free"])
    captured = capsys.readouterr()
    free = json.loads(captured.out)
    assert free["config"]["until"] == "converged"
    if "stopped" in free:
        assert "converged after" in captured.err
    main([*line, "--rounds", "2", "--out", "given"])
    given = json.loads(capsys.readouterr().out)
    assert (given["config"]["until"], given["config"]["rounds"]) == ("rounds", 2)
