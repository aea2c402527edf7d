"""Every invalid input gives exit code 2 and one line that explains it, without a traceback."""

import os
import sys

import pytest

from corymb.cli.app import main
from tests.cli.malformed.files import FILES, FOLDERS, ROWS
from tests.cli.malformed.lines import LINES


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """The folder of a run that has ended."""
    place = tmp_path_factory.mktemp("good")
    (place / "data.csv").write_text(ROWS)
    out = place / "run"
    assert main(["run", str(place / "data.csv"), "ifca", "--k", "2", "--rounds", "2", "-q", "--out", str(out)]) == 0
    return out


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder that modules are imported from."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path / "work"
    sys.modules.pop("made", None)


def refused(arguments, capsys):
    """The error message of an invalid command line."""
    capsys.readouterr()
    code = main(arguments)
    err = capsys.readouterr().err
    lines = [text for text in err.splitlines() if text.strip()]
    assert code == 2, f"exit {code}: {err[-300:]}"
    assert len(lines) == 1, err[:500]
    assert lines[0].startswith("corymb: ")
    assert "Traceback" not in err
    assert len(lines[0]) < 1000
    assert lines[0].isprintable()
    return lines[0]


def some(names):
    """Every eighth of them in every run of the tests, all of them when asked (`-m soak`)."""
    return [pytest.param(name, marks=pytest.mark.soak if place % 8 else ()) for place, name in enumerate(names)]


@pytest.mark.parametrize("name", some([*FILES, *FOLDERS]))
def test_a_file_that_cannot_be_read(name, here, capsys):
    place = {**FILES, **FOLDERS}[name](here)
    refused(["run", str(place), "fedavg", "--rounds", "1", "-q"], capsys)


@pytest.mark.parametrize("name", some(LINES))
def test_a_line_that_cannot_be_used(name, here, run_folder, capsys):
    refused(LINES[name](here, run_folder), capsys)


def test_there_are_enough_of_them():
    assert len(FILES) + len(FOLDERS) + len(LINES) >= 300


def test_nothing_is_left_in_the_environment():
    assert "made" not in sys.modules
    assert os.environ.get("CORYMB_DEBUG") is None
