import json
from dataclasses import replace

import numpy as np
import pytest

import corymb
from corymb import FedAvg, Privacy, Run, fit
from corymb.algorithms.parts.then import Then
from corymb.cli.app import main
from corymb.runs.fit import resume_run
from corymb.runs.own.callbacks import StopRun
from corymb.settings import InvalidInput

PRIVACY = Privacy(noise=4.0, clip=1.0, epsilon=4.0, secret=1)
PRIVATE = FedAvg(rounds=40, privacy=PRIVACY)


@pytest.fixture(scope="module")
def data():
    return corymb.datasets.digits(clients=12, train=20, test=5)


def test_a_budget_ends_the_run_and_resuming_does_not_refill_it(data, tmp_path):
    whole = fit(PRIVATE, data, out=tmp_path / "whole", evaluate_every=0)
    assert whole.stopped == "privacy budget"
    assert whole.metrics["epsilon"] == whole.ledger.epsilon <= 4.0
    rounds = len(whole.history)
    assert 2 < rounds < 40

    def stop(row):
        if row["clock"] == 2:
            raise StopRun

    fit(PRIVATE, data, out=tmp_path / "part", evaluate_every=0, callbacks=[stop])
    rest = resume_run(tmp_path / "part", PRIVATE, data)
    assert (rest.stopped, len(rest.history)) == ("privacy budget", rounds)
    assert rest.metrics["epsilon"] == whole.metrics["epsilon"]
    assert all(bool((rest.snapshot.models[name] == whole.snapshot.models[name]).all()) for name in rest.snapshot.models)
    assert Run.load(tmp_path / "part").metrics["epsilon"] == whole.metrics["epsilon"]


def test_the_command_line_reports_the_privacy_spent(tmp_path, capsys):
    line = "run digits fedavg --rounds 30 --local.steps 1 --privacy.noise 6 --privacy.clip 1 --json"
    assert main([*line.split(), "--privacy.epsilon", "1.5", "--out", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    assert "privacy budget exhausted after" in err
    assert json.loads(out)["metrics"]["epsilon"] <= 1.5


def test_what_would_leave_clients_unaccounted_for_is_refused(data):
    x, y, client = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2, np.arange(60) // 5
    raw = corymb.FederatedDataset.from_arrays(x, y, client, standardise=True)
    with pytest.raises(InvalidInput, match="means and scales of raw features"):
        fit(PRIVATE, raw)
    with pytest.raises(InvalidInput, match="counts of classes"):
        fit(PRIVATE, data, class_weight="balanced")
    with pytest.raises(InvalidInput, match="losses stop falling"):
        fit(PRIVATE, data, until="converged")


def test_a_run_without_noise_says_that_nothing_is_private(data):
    run = fit(replace(PRIVATE, rounds=1, privacy=Privacy(noise=0.0)), data, evaluate_every=0)
    assert run.metrics["epsilon"] == float("inf")
    assert json.loads(json.dumps(run.to_dict(), allow_nan=False))["metrics"]["epsilon"] is None


def test_a_refreshed_run_continues_the_account(data, tmp_path):
    free = replace(PRIVATE, rounds=3, privacy=replace(PRIVACY, epsilon=None))
    whole = fit(replace(free, rounds=5), data, evaluate_every=0)
    first = fit(free, data, out=tmp_path / "run", evaluate_every=0)
    for run in (first, Run.load(tmp_path / "run")):
        later = run.refresh(data, rounds=2)
        assert later.metrics["epsilon"] == later.ledger.epsilon == whole.metrics["epsilon"]
        assert later.schema.notes == first.schema.notes
    spent = fit(PRIVATE, data, evaluate_every=0)
    with pytest.raises(InvalidInput, match=r": 3.* are spent on the models .*, one round makes it 4.*; raise epsilon"):
        spent.refresh(data)


def test_models_trained_without_privacy_are_noted(data, caplog):
    plain = fit(FedAvg(rounds=1), data, evaluate_every=0)
    private = replace(PRIVATE, rounds=1)
    runs = [fit(private, data, start=plain.snapshot.handover()), plain.refresh(data, algorithm=private)]
    assert all(any("without privacy" in line for line in run.schema.notes) for run in runs)
    assert not any("without privacy" in line for line in fit(private, data).schema.notes)


def test_a_private_algorithm_inside_another_is_checked_too():
    x, y, client = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2, np.arange(60) // 5
    raw = corymb.FederatedDataset.from_arrays(x, y, client, standardise=True)
    with pytest.raises(InvalidInput, match="means and scales of raw features"):
        fit(Then(first=PRIVATE, second=PRIVATE), raw)
