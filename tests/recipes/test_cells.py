"""Cells are run once, saved completely, and survive failures and interruptions."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from corymb.data import DataUnavailable
from corymb.recipes.cells import read_cell, run_cells, whole, write_cell
from corymb.settings import InvalidInput

HERE = "tests.recipes.test_cells"
RUNS = []


def square(name):
    RUNS.append(name)
    if name == "bad/x/0":
        raise ValueError("no such number\nand more")
    return {"square": int(name.rsplit("/", 1)[1]) ** 2, "third": 1 / 3}


def sleepy(name):
    time.sleep(0.01 if name.endswith("0") else 60)
    return {"slept": True}


def needy(name):
    """Needs data that are not there, and leaves a line for each time that it has looked for them."""
    with Path(os.environ["CORYMB_LOOKED"]).open("a") as file:
        file.write(f"{name}\n")
    if not name.startswith("made/"):
        raise DataUnavailable(f"{name.split('/')[0]} is not here")
    return {"made": True}


def test_cells_are_kept_and_not_run_again(tmp_path):
    RUNS.clear()
    first = run_cells(f"{HERE}:square", ["a/x/2"], tmp_path)
    both = run_cells(f"{HERE}:square", ["a/x/3", "a/x/2"], tmp_path)
    assert RUNS == ["a/x/2", "a/x/3"]
    assert first.results["a/x/2"]["square"] == 4
    assert list(both.results) == ["a/x/3", "a/x/2"]
    assert not both.failed
    assert not both.left
    kept = json.loads((tmp_path / "a" / "x" / "2.json").read_text())
    assert kept["cell"] == "a/x/2"
    assert kept["result"] == {"square": 4, "third": 0.333333}
    assert both.results["a/x/2"] == kept["result"]


def test_a_machine_is_listed_with_the_time_a_cell_took_there(tmp_path):
    write_cell(tmp_path, "a/x/1", {"cell": "a/x/1", "seconds": 2.5, "result": {"device": "CPU"}})
    write_cell(tmp_path, "a/x/2", {"cell": "a/x/2", "seconds": 2.5, "result": {"device": "CPU", "seconds": 1.0}})
    assert [read_cell(tmp_path, f"a/x/{seed}")["seconds"] for seed in (1, 2)] == [2.5, 1.0]


def test_a_failed_cell_is_reported_and_the_others_run(tmp_path):
    cells = run_cells(f"{HERE}:square", ["bad/x/0", "a/x/5"], tmp_path)
    assert cells.failed == {"bad/x/0": "no such number"}
    assert cells.results["a/x/5"]["square"] == 25
    assert read_cell(tmp_path, "bad/x/0") is None


@pytest.mark.parametrize("workers", [1, 2])
def test_missing_data_are_searched_for_once_per_command(tmp_path, workers, monkeypatch, caplog):
    monkeypatch.setenv("CORYMB_LOOKED", str(tmp_path / "looked"))
    names = [f"{data}/x/{seed}" for data in ("mnist", "femnist") for seed in range(5)]
    names.insert(2, "made/x/0")
    needs = {"mnist": "mnist", "femnist": "femnist", "made": ""}
    cells = run_cells(
        f"{HERE}:needy", names, tmp_path / "cells", workers=workers, needs=lambda name: needs[name.split("/")[0]]
    )
    looked = (tmp_path / "looked").read_text().split()
    assert sum(name.startswith("mnist") for name in looked) <= workers  # at the same time
    assert sum(name.startswith("femnist") for name in looked) <= workers
    assert list(cells.results) == ["made/x/0"]
    assert cells.failed == {name: f"{name.split('/')[0]} is not here" for name in names if name != "made/x/0"}
    assert cells.left == []
    messages = [one.message for one in caplog.records]
    assert messages[0].endswith("failed: mnist is not here The other 4 cells that need mnist are skipped.")
    assert len(messages) == 2


@pytest.mark.parametrize("text", ['{"cell": "a/x', "", "[]", '{"cell": "a/x/2"}'])
def test_a_broken_file_is_reported_and_its_cell_run_again(tmp_path, text, caplog):
    (tmp_path / "a" / "x").mkdir(parents=True)
    (tmp_path / "a" / "x" / "2.json").write_text(text)
    assert run_cells(f"{HERE}:square", ["a/x/2"], tmp_path).results["a/x/2"]["square"] == 4
    assert "2.json is corrupt; the cell counts as not run" in caplog.text
    assert read_cell(tmp_path, "a/x/2")["square"] == 4


def test_a_read_only_folder_is_reported_before_any_work(tmp_path, monkeypatch):
    RUNS.clear()
    monkeypatch.setattr("tempfile.TemporaryFile", Mock(side_effect=PermissionError("Permission denied")))
    with pytest.raises(PermissionError):
        run_cells(f"{HERE}:square", ["a/x/1"], tmp_path)
    assert RUNS == []


OTHER = """if 1:
    import os, sys, time
    from pathlib import Path
    from corymb.recipes import cells
    asking, child = os.getpid(), os.fork()
    if not child:  # as a process that runs cells for this one
        cells._begin(asking, 2)
        time.sleep(600)
    with cells._claimed(Path(sys.argv[1]), "a/x/1") as mine:
        print(mine, child, flush=True)
        sys.stdin.readline()
"""


def test_a_cell_claimed_by_another_process_is_left_to_it(tmp_path, caplog):
    RUNS.clear()
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        mine, child = other.stdout.readline().split()
        assert mine == "True"
        cells = run_cells(f"{HERE}:square", ["a/x/1", "a/x/2"], tmp_path)
        assert RUNS == ["a/x/2"]
        assert cells.left == ["a/x/1"]
        assert "a/x/1 is skipped: another process" in caplog.text
        assert Path(f"/proc/{child}").exists()
    finally:
        other.kill()  # without a word, as by kill -9
        other.wait()
        other.stdin.close()
        other.stdout.close()
    assert _until(lambda: not Path(f"/proc/{child}").exists())  # nobody is left waiting for cells
    assert run_cells(f"{HERE}:square", ["a/x/1", "a/x/2"], tmp_path).left == []
    assert RUNS == ["a/x/2", "a/x/1"]
    assert list(tmp_path.rglob("*.claim")) == []


def _until(found, seconds=60):
    """What `found` gives when it gives something."""
    end = time.monotonic() + seconds
    while not (value := found()) and time.monotonic() < end:
        time.sleep(0.05)
    return value


def test_without_time_nothing_is_begun(tmp_path):
    cells = run_cells(f"{HERE}:square", ["a/x/1"], tmp_path, seconds=-1)
    assert cells.left == ["a/x/1"]
    assert not cells.results


def test_processes_are_given_up_when_time_is_up(tmp_path, monkeypatch):
    """Time is up as soon as the first cell is kept, however long processes take to begin."""
    clock = SimpleNamespace(monotonic=lambda: 1000.0 if (tmp_path / "a" / "0.json").exists() else 0.0)
    monkeypatch.setattr("corymb.recipes.cells.time", clock)
    began = time.monotonic()
    cells = run_cells(f"{HERE}:sleepy", ["a/0", "a/1"], tmp_path, workers=2, seconds=50)
    assert list(cells.results) == ["a/0"]
    assert cells.left == ["a/1"]
    assert time.monotonic() - began < 40
    assert list(tmp_path.rglob("*.part")) == []


def test_one_process_is_given_up_too(tmp_path):
    began = time.monotonic()
    assert run_cells(f"{HERE}:sleepy", ["a/1"], tmp_path, workers=1, seconds=1).left == ["a/1"]
    assert time.monotonic() - began < 40


def test_an_interrupted_run_is_not_a_result():
    run = SimpleNamespace(stopped="converged")
    assert whole(run) is run
    with pytest.raises(KeyboardInterrupt):
        whole(SimpleNamespace(stopped="interrupted"))


@pytest.mark.parametrize("name", ["../a", "a//b", "", "a/."])
def test_a_name_outside_the_folder_is_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match="separated by slashes"):
        write_cell(tmp_path, name, {})
