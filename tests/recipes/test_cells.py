"""Cells are run once, kept whole, and survive both failures and being stopped."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from corymb.recipes.cells import read_cell, run_cells, write_cell
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


def test_beside_a_machine_stands_how_long_a_cell_took_there(tmp_path):
    write_cell(tmp_path, "a/x/1", {"cell": "a/x/1", "seconds": 2.5, "result": {"device": "CPU"}})
    write_cell(tmp_path, "a/x/2", {"cell": "a/x/2", "seconds": 2.5, "result": {"device": "CPU", "seconds": 1.0}})
    assert [read_cell(tmp_path, f"a/x/{seed}")["seconds"] for seed in (1, 2)] == [2.5, 1.0]


def test_a_cell_that_fails_is_told_and_the_others_go_on(tmp_path):
    cells = run_cells(f"{HERE}:square", ["bad/x/0", "a/x/5"], tmp_path)
    assert cells.failed == {"bad/x/0": "no such number"}
    assert cells.results["a/x/5"]["square"] == 25
    assert read_cell(tmp_path, "bad/x/0") is None


@pytest.mark.parametrize("text", ['{"cell": "a/x', "", "[]", '{"cell": "a/x/2"}'])
def test_a_broken_file_is_told_and_its_cell_run_again(tmp_path, text, caplog):
    (tmp_path / "a" / "x").mkdir(parents=True)
    (tmp_path / "a" / "x" / "2.json").write_text(text)
    assert run_cells(f"{HERE}:square", ["a/x/2"], tmp_path).results["a/x/2"]["square"] == 4
    assert "2.json is broken and counts as not run" in caplog.text
    assert read_cell(tmp_path, "a/x/2")["square"] == 4


def test_a_folder_that_cannot_be_written_to_is_told_before_any_work(tmp_path, monkeypatch):
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
        cells._begin(asking)
        time.sleep(600)
    with cells._claimed(Path(sys.argv[1]), "a/x/1") as mine:
        print(mine, child, flush=True)
        sys.stdin.readline()
"""


def test_what_another_process_is_at_is_left_to_it_until_it_ends(tmp_path, caplog):
    RUNS.clear()
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        mine, child = other.stdout.readline().split()
        assert mine == "True"
        cells = run_cells(f"{HERE}:square", ["a/x/1", "a/x/2"], tmp_path)
        assert RUNS == ["a/x/2"]
        assert cells.left == ["a/x/1"]
        assert "a/x/1 is left to another process" in caplog.text
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


@pytest.mark.parametrize("name", ["../a", "a//b", "", "a/."])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match="between slashes"):
        write_cell(tmp_path, name, {})
