import shlex
from dataclasses import replace

import pytest

from corymb.algorithms import IFCA
from corymb.cli.app import main
from corymb.data import FederatedDataset
from corymb.data.built_in.digits import digits
from corymb.report.sections.details.commands import SAVED, commands
from corymb.runs.fit import fit
from corymb.runs.run import Run
from tests.report.reported import STEP
from tests.runs import small


@pytest.mark.parametrize("saved", [False, True], ids=["unsaved", "saved"])
def test_the_commands_reproduce_a_run_on_data_from_python(saved, tmp_path, monkeypatch):
    data = FederatedDataset.from_arrays(*small.arrays())
    run = fit(IFCA(k=2, rounds=3, local=STEP), data, seed=3, evaluate_every=0)
    if saved:
        run.save(tmp_path / "run")
        run = Run.load(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    comment, again, *_ = commands([run])
    assert comment.startswith("# The data (arrays) came from Python.")
    data.save(SAVED)
    assert main([*shlex.split(again)[1:], "-q", "--out", "again"]) == 0
    repeated = Run.load("again")
    assert (repeated.labels, repeated.metrics) == (run.labels, run.metrics)


def test_the_command_of_a_built_in_data_set_says_how_they_are_dealt():
    run = fit(IFCA(k=2, rounds=1), digits(clients=8, train=10, test=5))
    comment, line = commands([run])
    assert comment.startswith("# This is for digits as dealt by default. Dealt otherwise in Python (clients=8, ...)")
    assert line.startswith("corymb run digits ifca --model mlp --seed 0 ")
    assert commands([replace(run, environment={"command": "corymb run digits ifca --k 2"})]) == [line]
    composed = replace(run, config={**run.config, "algorithm": "corymb.algorithms.parts.restarts:Restarts"})
    assert commands([composed]) == ["# Restarts was put together in Python: run the same script again, with seed=0."]
