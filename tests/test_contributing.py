"""The recipes of CONTRIBUTING.md, followed to the letter in a temporary copy of the package's folders."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import corymb
from corymb import algorithms
from corymb.report.html import write_report
from corymb.report.sections import quality
from tests.report.reported import runs

ROOT = Path(__file__).parents[1]


def recipe(heading, fence="python"):
    """The block below a heading."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return re.search(rf"(?ms)^## {heading}$.*?^```{fence}\n(.*?)^```", text)[1]


class Copy:
    """A throw-away copy of the package, and its command line."""

    def __init__(self, folder):
        self.folder = folder
        self.package = shutil.copytree(ROOT / "src", folder / "src") / "corymb"

    def insert(self, path, mark, text, indent=""):
        """Put text before the first occurrence of a mark in a file."""
        file = self.package / path
        head, found, tail = file.read_text().partition(mark)
        assert found, mark
        file.write_text(head + textwrap.indent(text, indent) + found + tail)

    def corymb(self, *lines):
        """Give commands one after the other, in one process of their own; what they print."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "OMP_NUM_THREADS": "1"}
        code = "import sys; from corymb.cli.app import main\nfor line in {}: main(line) and sys.exit(1)"
        command = [sys.executable, "-c", code.format([shlex.split(line) for line in lines])]
        done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


def added(package, name, source, folder, monkeypatch):
    """A module that is added to a package's folder for this test only."""
    (folder / f"{name}.py").write_text(source)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    return importlib.import_module(f"{package.__name__}.{name}")


def test_a_report_section_is_one_file(tmp_path, monkeypatch):
    before = write_report(runs(), tmp_path / "before.md").read_text()
    added(quality, "rounds", recipe("Add a report section"), tmp_path, monkeypatch)
    page = write_report(runs(), tmp_path / "after.html").read_text()
    assert "Rounds of each run" not in before
    assert "<h3>Rounds of each run</h3>" in page
    assert page.index("<h2>Quality</h2>") < page.index("Rounds of each run") < page.index("<h2>Stability</h2>")


def test_a_run_option_is_one_field(tmp_path):
    copy = Copy(tmp_path)
    copy.insert("runs/settings.py", "    def __post_init__", recipe("Add a run option") + "\n", "    ")
    help_text = copy.corymb("run --help", "run digits-iid fedavg --rounds 1 --patience 5 --out first -q")
    assert "--patience" in help_text
    assert "Rounds without improvement" in help_text
    assert tomllib.loads((tmp_path / "first" / "config.toml").read_text())["patience"] == 5


def test_an_algorithm_is_one_file_and_one_line(tmp_path):
    copy = Copy(tmp_path)
    (copy.package / "algorithms" / "slow_average.py").write_text(recipe("Add an algorithm"))
    catalogue = "algorithms/catalogue.py"
    copy.insert(catalogue, '        "oracle": Entry(', recipe("Add an algorithm", fence="text"), "        ")
    printed = copy.corymb(
        "list algorithms",
        "run digits-iid slow-average --rounds 2 --step 0.9 --out first -q",
        "report first --format md",
    )
    assert re.search(r"slow-average\s", printed)
    assert (tmp_path / "first" / "report.md").read_text().startswith("# Slow average on digits-iid")


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_an_algorithm_is_one_file(engine, tmp_path, monkeypatch):
    module = added(algorithms, "slow_average", recipe("Add an algorithm"), tmp_path, monkeypatch)
    data = corymb.datasets.digits(clients=4, train=20, test=10)
    run = corymb.fit(module.SlowAverage(rounds=2), data, engine=engine)
    assert len(run.history) == 2
    assert set(run.labels.values()) == {0}
