"""A few cells of the stress table and one table in raw units (`make stress` runs them all): right, or said."""

import importlib.util
import json
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[2] / "benchmarks" / "moment_descent.py"


@pytest.fixture(scope="module")
def stress():
    spec = importlib.util.spec_from_file_location("moment_descent_stress", PLACE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", ["condition 100", "start of norm 100"])
def test_what_whitening_and_patience_cure(stress, case):
    row = stress.cell(case, 0)
    assert row["ratio"] <= stress.RIGHT
    assert row["said"] == []


@pytest.mark.parametrize("case", ["3 clusters, 2 asked", "1 cluster, 2 asked", "separation 0.07"])
def test_what_cannot_be_right_is_said(stress, case):
    row = stress.cell(case, 0)
    assert row["said"]


def test_a_table_in_raw_units_from_the_command_line(stress):
    row = stress.table_cell("diabetes", 0)
    assert row["said"] == []
    assert row["ratio"] <= stress.WITHIN


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
    assert [row for row in rows if not row["said"] and (row["ratio"] is None or row["ratio"] > below)] == []
