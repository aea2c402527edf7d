"""`corymb new algorithm`, and what one does with the result: run it, resume it, report on it, compare it.

That the files pass at once is in docs/tutorials/own-algorithm.md, which `tests/test_docs_pages.py` runs.
"""

import json
import subprocess
import sys

import pytest

from corymb.cli.app import main

MINE = "corymb_own_mean:CorymbOwnMean"
RUN = ["run", "digits", MINE, "--k", "2", "-q"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a new algorithm from the scaffold."""
    place = tmp_path_factory.mktemp("own")
    assert main(["new", "algorithm", "corymb-own-mean", "--folder", str(place)]) == 0
    return place


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")
    yield folder
    sys.modules.pop("corymb_own_mean", None)


def test_the_files_are_written_as_the_library_is(here):
    assert {path.name for path in here.glob("*.py")} == {"corymb_own_mean.py", "test_corymb_own_mean.py"}
    own = ["check", "--ignore", "RUF009"]  # a default that is made by a call: Descent is frozen
    for command in (own, ["format", "--check", "--line-length", "120"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, "--isolated", "."], capture_output=True)
        assert done.returncode == 0, done.stdout.decode()


def test_nothing_is_overwritten_and_odd_names_are_refused(here, capsys):
    before = (here / "corymb_own_mean.py").read_bytes()
    for name, expected in (
        ("CorymbOwnMean", "already exists"),
        ("torch", "the name of another module"),
        ("../evil", "is not a valid name for an algorithm"),
        ("7", "is not a valid name"),
    ):
        assert main(["new", "algorithm", name]) == 2
        printed = capsys.readouterr().err
        assert expected in printed
        assert len(printed.splitlines()) == 1
    assert (here / "corymb_own_mean.py").read_bytes() == before


def test_it_runs_resumes_is_reported_on_and_compared(here, capsys):
    assert main([*RUN, "--rounds", "3", "--local.lr", "0.3", "--out", "whole"]) == 0
    assert main([*RUN, "--rounds", "3", "--local.lr", "0.3", "--out", "parts", "--max_seconds", "0"]) == 0
    assert f"corymb resume parts --algorithm {MINE}" in capsys.readouterr().err
    assert main(["resume", "parts", "-q"]) == 2
    assert "a run folder is data and never decides which code runs" in capsys.readouterr().err
    assert main(["resume", "parts", "--algorithm", "other:Thing", "-q"]) == 2
    assert main(["resume", "parts", "--algorithm", MINE, "-q", "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    whole = json.loads((here / "whole" / "result.json").read_text())
    assert resumed["config"]["algorithm"] == MINE
    assert (resumed["labels"], resumed["metrics"]) == (whole["labels"], whole["metrics"])
    assert main(["resume", "whole", "--algorithm", MINE, "--rounds", "4", "-q"]) == 0
    assert main(["report", "whole", "parts"]) == 0
    assert "CorymbOwnMean" in (here / "whole" / "report.html").read_text()
    assert main(["compare", "whole", "parts"]) == 0
    assert main(["list", "algorithms"]) == 0


def test_the_config_of_a_run_names_no_code_to_run(here, capsys):
    assert main([*RUN, "--rounds", "1", "--out", "once"]) == 0
    assert f"corymb run digits {MINE} --config once/config.toml" in capsys.readouterr().out
    sys.modules.pop("corymb_own_mean")
    assert main(["run", "--config", "once/config.toml", "-q"]) == 2
    assert "corymb_own_mean" not in sys.modules
    assert f"corymb run digits {MINE} --config once/config.toml" in capsys.readouterr().err
    assert main(["run", "digits", MINE, "--config", "once/config.toml", "-q", "--out", "twice"]) == 0
    (here / "mine.toml").write_text(f'data = "digits"\nalgorithm = "{MINE}"\nk = 2\nrounds = 1\n')
    assert main(["run", "--config", "mine.toml", "-q"]) == 0  # a file of settings that the user wrote


def test_its_settings_are_options_with_their_text(here, capsys):
    assert main(["run", "digits", MINE, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Settings of CorymbOwnMean" in shown
    assert "--local.lr" in shown
    for wrong, expected in (
        ("--kk 3", "Unknown option"),
        ("--k x", "wanted a whole number (got 'x')"),
        ("--k 0", "k must be at least 1"),
    ):
        assert main(["run", "digits", MINE, *wrong.split(), "-q"]) == 2
        printed = capsys.readouterr().err
        assert expected in printed
        assert len(printed.splitlines()) == 1
