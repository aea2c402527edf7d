"""Run folders of an earlier version: those in `old_run` were written by the command line of format 1."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import corymb
from corymb.cli.app import main
from corymb.runs.folder.layout import FORMAT
from corymb.runs.folder.reader import is_finished, read_environment, read_run
from corymb.settings import InvalidInput

OLD = Path(__file__).parent / "old_run"
X = np.array([[30.0, 1000.0], [80.0, 4000.0]])


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the old runs, in their working folder."""
    monkeypatch.chdir(shutil.copytree(OLD, tmp_path / "old"))
    return tmp_path / "old"


def test_a_finished_run_of_format_1_is_read(old):
    run = corymb.Run.load(old / "finished")
    said = json.loads((old / "finished.json").read_text())
    assert run.labels == said["labels"]
    assert run.metrics == pytest.approx(said["metrics"])
    assert run.ledger.bytes_up == said["ledger"]["bytes_up"]
    assert run.schema.classes == ("ill", "well")
    assert run.served == "assigned"
    assert len(run.history) == 2
    assert set(run.predict(X, client="hospital-1")) <= {"ill", "well"}
    assert run.assign(X, ["ill", "well"]).threshold is not None


def test_a_run_of_format_1_is_saved_in_the_format_of_today(old):
    run = corymb.Run.load(old / "finished")
    again = corymb.Run.load(run.save(old / "again"))
    assert again.to_dict() == run.to_dict()
    assert read_environment(old / "again")["format"] == FORMAT


def test_models_of_clients_own_were_not_saved_in_format_1_either(old):
    run = corymb.Run.load(old / "alone")
    assert run.served == "own"
    with pytest.raises(InvalidInput, match="stayed with it and is not in"):
        run.predict(X, client=0)
    with pytest.raises(InvalidInput, match="its own model"):
        run.assign(X, ["ill", "well"])


def test_a_finished_run_of_format_1_prints_its_result_again(old, capsys):
    said = json.loads((old / "finished.json").read_text())
    assert main(["resume", "finished", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    said["config"]["record"]["served"] = "assigned"
    assert printed == {**said, "not_scored": []}  # which it did not say yet


def test_an_unfinished_run_of_format_1_can_be_loaded_but_not_resumed(old, capsys):
    assert not is_finished(old / "stopped")
    assert read_run(old / "stopped")["stopped"] == "killed"
    before = sorted(path for path in (old / "stopped").rglob("*"))
    assert main(["resume", "stopped", "-q"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"format 1, this version resumes {FORMAT}" in line
    assert "corymb run --config" in line
    assert sorted(path for path in (old / "stopped").rglob("*")) == before


def test_a_config_of_format_1_can_be_run_again(old, capsys):
    assert main(["run", "--config", "stopped/config.toml", "--out", "again", "--json", "-q"]) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["k"], config["rounds"], config["label"]) == (2, 4, "outcome")
