import sys

import pytest

import corymb
from corymb.algorithms.parts.restarts import Restarts
from corymb.algorithms.parts.then import Then
from corymb.cli.app import main
from corymb.core.snapshot import planned_rounds
from tests.cli.malformed.files import ROWS
from tests.runs import small

MODEL = "import torch\n\n\ndef make():\n    return torch.nn.Linear(2, 2)\n"
EVIL = "from pathlib import Path\nPath('was-here').touch()\n\n\ndef make():\n    return None\n"


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A run with a custom model that was stopped after its first round."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(ROWS)
    (tmp_path / "mine.py").write_text(MODEL)
    out = tmp_path / "run"
    line = ["run", "data.csv", "fedavg", "--rounds", "3", "--max_seconds", "0", "--model", "mine:make", "-q"]
    main([*line, "--out", str(out)])
    yield out
    for name in ("mine", "evil"):
        sys.modules.pop(name, None)


def test_a_run_folder_starts_no_code(stopped, tmp_path, capsys):
    """The folder names a module in the folder where the run was started, which must not be run unasked."""
    (tmp_path / "evil.py").write_text(EVIL)
    config = stopped / "config.toml"
    config.write_text(config.read_text().replace("mine:make", "evil:make"))
    capsys.readouterr()
    again = ["--config", str(config), "-q", "--out", "again"]
    for line in (["resume", str(stopped), "-q"], ["run", *again], ["run", *again, "--seeds", "0-1"]):
        assert main(line) == 2
        assert "a run folder is data" in capsys.readouterr().err
    assert not (tmp_path / "was-here").exists()
    for command in (["report"], ["predict"], ["assign"], ["export"]):
        extra = {"predict": ["data.csv", "--cluster", "0"], "assign": ["data.csv"], "export": ["--cluster", "0"]}
        main([*command, str(stopped), *extra.get(command[0], [])])
        assert not (tmp_path / "was-here").exists()


def test_a_run_continues_if_the_model_is_named_again(stopped):
    again = ["run", "--config", str(stopped / "config.toml"), "--rounds", "1", "-q", "--out", "again"]
    assert main([*again, "--model", "mine:make"]) == 0
    assert main(["resume", str(stopped), "--model", "mine:make", "-q"]) == 0
    assert main(["resume", str(stopped), "--model", "other:make", "--rounds", "5", "-q"]) == 2


def test_a_converged_run_continues_with_the_suggested_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{'ab'[i % 2]},{i % 7},{2 * (i % 7) + (i % 3) / 2}\n" for i in range(40))
    (tmp_path / "table.csv").write_text("client,x,label\n" + rows)
    assert main(["run", "table.csv", "fedavg", "-q", "--json", "--out", "run"]) == 0
    output = capsys.readouterr().err
    assert "converged after" in output
    command = output.split("; corymb ")[1].split(" continues to round 80")[0]
    assert main(["resume", "run", "--rounds", "40"]) == 2  # planned for more, and decayed accordingly
    assert "already has 80 planned; give at least 80" in capsys.readouterr().err
    assert main([*command.split(), "-q", "--json"]) == 0
    assert main(["run", "table.csv", "fedavg", "--rounds", "80", "-q", "--json", "--out", "whole"]) == 0
    one, other = corymb.Run.load("run"), corymb.Run.load("whole")
    assert len(one.history) == 80
    assert one.metrics == other.metrics


@pytest.mark.parametrize("algorithm", [["ifca"], ["ifca", "--restarts", "2"], ["sr-fca", "--threshold", "9"]])
def test_the_rounds_of_a_resumed_run_are_counted_from_where_it_was(algorithm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(ROWS)
    rounds = ["--rounds", "3", *(["--k", "2"] if algorithm[0] == "ifca" else [])]
    assert main(["run", "data.csv", *algorithm, *rounds, "--max_seconds", "0", "--out", "run"]) == 0
    planned = capsys.readouterr().err.partition("round 1/")[2].split()[0]
    assert main(["resume", "run"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round ")]
    assert [int(line.split()[1].partition("/")[0]) for line in lines] == list(range(2, len(lines) + 2))
    assert {line.split()[1].partition("/")[2] for line in lines} == {planned}


def test_the_rounds_that_extend_a_run_are_counted_from_its_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(ROWS)
    assert main(["run", "data.csv", "fedavg", "--rounds", "3", "-q", "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["resume", "run", "--rounds", "5"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in lines] == ["4/5", "5/5"]


@pytest.mark.parametrize("wrapper", ["Restarts", "Then"])
def test_a_run_put_together_in_python_is_resumed_there(wrapper, tmp_path, capsys):
    inner = corymb.IFCA(k=2, rounds=3)
    algorithm = Restarts(inner=inner, times=2) if wrapper == "Restarts" else Then(first=inner, second=inner)
    run = tmp_path / "run"
    corymb.fit(algorithm, small.arrays(), max_seconds=0, out=run)
    assert main(["resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert f"{run} was run with {wrapper}, which was put together in Python: resume it there" in error
    assert main(["run", "--config", str(run / "config.toml")]) == 2
    assert f"by a run of {wrapper}, which was put together in Python: run it there" in capsys.readouterr().err
    assert len(corymb.fit(algorithm, small.arrays(), resume=run).history) == planned_rounds(algorithm)
