"""A few cells of the stress table and one table in raw units (`make stress` runs all): right, or with a warning."""

import importlib.util
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import corymb
from corymb.algorithms import FedX, MomentDescent
from corymb.runs.defaults import configure

PLACE = Path(__file__).parents[2] / "benchmarks" / "moment_descent.py"


@pytest.fixture(scope="module")
def stress():
    spec = importlib.util.spec_from_file_location("moment_descent_stress", PLACE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look there for the names in annotations
        spec.loader.exec_module(module)
        yield module


@pytest.fixture
def smaller(stress, monkeypatch):
    """The cases with fewer clients and features."""
    for name, case in stress.CASES.items():
        monkeypatch.setitem(stress.CASES, name, replace(case, n=min(case.n, 60), d=min(case.d, 8)))
    return stress


@pytest.mark.parametrize("case", ["condition 100"])
def test_what_whitening_and_patience_cure(smaller, case):
    row = smaller.cell(case, 0)
    assert row["ratio"] <= smaller.RIGHT
    assert row["said"] == []


@pytest.mark.parametrize(
    ("case", "said"), [("3 clusters, 2 asked", "do not share one model"), ("separation 0.07", "cannot be told apart")]
)
def test_results_that_cannot_be_right_are_reported(smaller, monkeypatch, case, said):
    shorter = partial(MomentDescent, iterations=10, then=FedX(refinement="whitened", rounds=60))
    monkeypatch.setattr(smaller, "MomentDescent", shorter)
    assert any(said in line for line in smaller.cell(case, 0)["said"])


def test_a_table_in_raw_units_from_the_command_line(stress):
    row = stress.table_cell("diabetes", 0)
    assert row["said"] == []
    assert row["ratio"] <= stress.WITHIN


@pytest.mark.parametrize("model", [None, "linear-regression"])
def test_models_come_back_in_the_units_of_the_table(stress, tmp_path, model):
    theta, truth = stress.write_table("diabetes", 1, tmp_path / "table.csv")
    data = corymb.datasets.load(tmp_path / "table.csv", client="client", label="y")
    how = {"k": 3, "iterations": 6, "then": {"rounds": 40}}
    run = corymb.fit(configure("moment-descent", data, **how), data, model)
    found = run.coefficients.numpy()
    of = {run.labels[name]: truth[int(name[1:])] for name in run.names}
    assert sorted(of.values()) == [0, 1, 2]
    x = data.test.x[:50].numpy()
    for cluster, group in of.items():
        ours, true = (x @ row[:-1] + row[-1] for row in (found[cluster], theta[group]))
        assert np.abs(ours - true).mean() < 0.1 * true.std()
        assert np.abs(ours - run.predict(x, cluster=cluster)).max() < 1e-3 * true.std()


def test_kept_cells_are_not_run_again(stress, tmp_path, capsys):
    kept = [{"case": name, "seed": 0, "ratio": 1.0, "said": []} for name in ("condition 1", "condition 10")]
    path = tmp_path / "cells.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    stress.run(["condition 1", "condition 10"], range(1), path, 1)
    assert stress.read(path) == kept
    assert "condition 10 | 1 | 1 of 1" in "\n".join(stress.table(kept, stress.RIGHT))


@pytest.mark.parametrize("kind", ["stress", "tables"])
def test_no_kept_failure_is_silent(stress, kind):
    rows = stress.read(stress.RESULTS / f"{kind}.jsonl")
    below = stress.WITHIN if kind == "tables" else stress.RIGHT
    assert rows
    wrong = [row for row in rows if row["ratio"] is None or row["ratio"] > below]
    assert [(row["case"], row["seed"]) for row in wrong if not row["said"]] == []
