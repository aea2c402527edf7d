"""Shell blocks of README and docs, run from top to bottom with the Python blocks of their page, in a folder of its own.

Blocks are skipped only if they say why: `<!-- not run: network -->` in the line above (or GPU, Flower, Ray, time).
`python slow` blocks run here too. What a page supposes to be there (`table.csv`, `runs/mine`) is made beforehand. A
Python block that begins with `# name.py` is also written to that file.
"""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from corymb.cli.app import main
from tests.test_docs import PAGES, ROOT, WHOLE

REASONS = {"network", "GPU", "Flower", "Ray", "time"}
FENCE = re.compile(r"(?ms)^(?P<above>[^\n]*\n)?(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^ *```$")
SHELL = ("sh", "bash", "console")
OF_ITSELF = {"corymb flower": "Flower", "flwr ": "Flower", "ray ": "Ray", "pip install": "network", "make ": "time"}
"""Commands that say themselves why they are not run here; `make` targets have runs of their own."""
MOST_NOT_RUN = 20
"""Shell blocks that are not run."""


def blocks(page):
    """(kind, text, reason not to run it or None) of a page's Python and shell blocks."""
    found = []
    for match in FENCE.finditer(page.read_text()):
        why = re.fullmatch(r"\s*<!-- not run: (.+) -->\s*", match["above"] or "")
        reason = why[1] if why else None
        if match["kind"] in SHELL:
            reason = reason or next((why for word, why in OF_ITSELF.items() if word in match["text"]), None)
        if match["kind"] in (*SHELL, "python", "python slow"):
            found.append((match["kind"], match["text"], reason))
    return found


def lines(kind, text):
    """The commands of a shell block, comments off, one a line."""
    rows = [row.strip() for row in text.splitlines() if row.strip()]
    if kind == "console":  # what is not behind a prompt is output
        rows = [row[2:] for row in rows if row.startswith("$ ")]
    return [re.sub(r"\s+#\s.*$", "", row) for row in rows if not row.startswith("#")]


def is_run(page):
    """Whether a page has anything to run here."""
    todo = [kind for kind, _, why in blocks(page) if why is None]
    return any(kind in SHELL or kind == "python slow" for kind in todo) or page.parent.name == WHOLE


def test_blocks_that_are_not_run_say_why_and_are_counted():
    skipped = {}
    for page in PAGES:
        for kind, _, why in blocks(page):
            if kind in SHELL and why is not None:
                assert why in REASONS, f"{page}: {why}"
                skipped.setdefault(page.relative_to(ROOT).as_posix(), []).append(why)
    print(*(f"{page}: {', '.join(why)}" for page, why in skipped.items()), sep="\n")
    assert sum(map(len, skipped.values())) <= MOST_NOT_RUN


def test_no_shell_hides_behind_another_fence():
    for page in PAGES:
        for match in FENCE.finditer(page.read_text()):
            first = match["text"].lstrip().partition("\n")[0]
            hidden = match["kind"] in ("", "text") and re.match(r"\$ |corymb (run|resume|report|compare) ", first)
            assert not hidden, f"{page.name}: {first}"


def test_the_commands_of_a_block_are_found():
    text = "$ corymb run digits ifca --k 4   # a comment\nsome output\n\n$ ls '#x'\n"
    assert lines("console", text) == ["corymb run digits ifca --k 4", "ls '#x'"]
    assert lines("sh", "# a comment\ncorymb doctor\n") == ["corymb doctor"]


@pytest.fixture(scope="module")
def supposed(tmp_path_factory):
    """What pages suppose to be there: data of one's own, and runs."""
    folder = tmp_path_factory.mktemp("supposed")
    rows = ["hospital,age,dose,outcome"]
    for i in range(480):
        well = (i % 8 % 2 == 0) == ((i * 37) % 70 > 35)
        rows.append(f"hospital-{i % 8},{20 + (i * 37) % 70},{(i * 91) % 500},{'well' if well else 'ill'}")
    (folder / "table.csv").write_text("\n".join(rows))
    (folder / "patients.csv").write_text("\n".join(["age,dose", "71,300", "30,120"]))
    (folder / "mydata").mkdir()
    for client in range(8):
        mine = [row.partition(",")[2] for row in rows[1:] if row.startswith(f"hospital-{client},")]
        (folder / "mydata" / f"hospital-{client}.csv").write_text("\n".join(["age,dose,label", *mine]))
    table = [str(folder / "table.csv"), "--client", "hospital", "--label", "outcome", "--rounds", "3", "-q"]
    for words in (
        ["run", table[0], "ifca", "--k", "2", *table[1:], "--out", str(folder / "runs" / "mine")],
        ["run", "digits", "ifca", "--k", "4", "--rounds", "3", "-q", "--out", str(folder / "runs" / "ifca")],
        ["run", "digits", "fedavg", "--rounds", "3", "-q", "--out", str(folder / "runs" / "fedavg")],
        ["run", "digits", "ifca", "--k", "4", "--max_seconds", "1", "-q", "--out", str(folder / "runs/digits-ifca-1")],
    ):
        assert main(words) == 0
    return folder


@pytest.fixture
def here(supposed, tmp_path, monkeypatch):
    """A working folder, and programs that the shell finds."""
    folder = tmp_path / "page"
    shutil.copytree(supposed, folder)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in (("corymb", "-m corymb"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (programs / name).chmod(0o755 | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{folder}")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


def free(folder, text):
    """Take away the run that a line or a block is about to write, where it was supposed to be there."""
    for place in re.findall(r"""(?:--out |out=")(runs/[\w-]+)""", text):
        shutil.rmtree(folder / place, ignore_errors=True)


def run_line(line, folder):
    free(folder, line)
    words = shlex.split(line)
    if words[0] == "corymb" and not set("|><&;") & set(line):
        assert main(words[1:]) == 0, line  # in this process: importing torch anew takes longer than most commands
        return
    done = subprocess.run(["bash", "-e", "-c", line], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}: {done.stderr[-800:]}"


@pytest.mark.docs_slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if is_run(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs_from_top_to_bottom(page, here, capsys):
    for kind, text, why in blocks(page):
        if why is not None:
            continue
        if kind in SHELL:
            for line in lines(kind, text):
                run_line(line, here)
            continue
        if name := re.match(r"# (\w+\.py)\n", text):
            (here / name[1]).write_text(text)
        free(here, text)
        exec(compile(text, str(page), "exec"), {"__name__": f"block_of_{page.stem}"})  # noqa: S102


@pytest.mark.docs_slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_draws_its_picture(script, tmp_path):
    picture = tmp_path / "picture.png"
    done = subprocess.run([sys.executable, str(script), str(picture)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes()[:4] == b"\x89PNG"
