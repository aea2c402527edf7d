"""README and docs as a reader runs them: every page from top to bottom, Python and shell, in a folder of its own.

In CI, pages run on small data: `digits` has 12 clients with 15 pictures each, runs have 2 rounds unless a page gives a
number, commands at most 4, and `check_algorithm` checks fewer laws, on all engines. `make blocks` runs pages unchanged.
A block that CI cannot run gives the reason in the line above, `<!-- not in CI: network -->`; the reasons, the targets
that run such blocks, and their number are below. Files that pages assume (`table.csv`, `runs/mine`) are created first.
A Python block that begins with `# name.py` is also written to that file.
"""

import os
import re
import runpy
import shlex
import shutil
import stat
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from corymb.cli.app import main
from corymb.cli.flower.folder import free_port
from corymb.data.built_in.digits import digits
from corymb.runs import defaults
from corymb.runs.defaults import with_defaults
from corymb.testing import suite
from corymb.testing.laws import algorithms
from tests.test_docs import PAGES, ROOT

REASONS = {"network": "blocks", "longer than 20 s": "blocks", "Flower": "flower", "Ray": "ray"}
"""Why a block is not in CI, and the make target that runs it."""
NOT_IN_CI = {"Flower": 10, "Ray": 1, "longer than 20 s": 4, "network": 6}
"""The number of such blocks by reason; update it when you add one."""
FENCE = re.compile(r"(?ms)^(?P<above>[^\n]*\n)?(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^ *```$")
SHELL = ("sh", "bash", "console")
SMALL, FEW, MOST = {"clients": 12, "train": 15, "test": 8}, 2, 4
"""The size of `digits`, the default rounds, and the most rounds of a command, for pages in CI."""
LAWS = (algorithms.check_snapshots, algorithms.check_same_run, algorithms.check_same_bytes, algorithms.check_resume)
"""The laws that pages in CI check; `tests/testing` and `tests/contracts` check all of them."""


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    text: str
    why: str | None
    """Why it is not in CI."""


def blocks(page):
    """A page's Python and shell blocks."""
    found = []
    for match in FENCE.finditer(page.read_text()):
        marked = re.fullmatch(r"\s*<!-- not in CI: (.+) -->\s*", match["above"] or "")
        if match["kind"] in (*SHELL, "python"):
            found.append(Block(match["kind"], match["text"], marked[1] if marked else None))
    return found


def lines(block):
    """The commands of a shell block, one per line, without comments."""
    rows = [row.strip() for row in block.text.replace("\\\n", " ").splitlines() if row.strip()]
    if block.kind == "console":  # what is not behind a prompt is output
        rows = [row[2:] for row in rows if row.startswith("$ ")]
    return [re.sub(r"\s+#\s.*$", "", row) for row in rows if not row.startswith("#")]


def pages_with(*reasons):
    """Pages with blocks that are not in CI for one of these reasons; None stands for those that are."""
    found = [page for page in PAGES if any(block.why in reasons for block in blocks(page))]
    return pytest.mark.parametrize("page", found, ids=[page.relative_to(ROOT).as_posix() for page in found])


# ---- what is not in CI


def test_blocks_that_are_not_in_ci_say_why_and_are_counted():
    left_out = [(page, block) for page in PAGES for block in blocks(page) if block.why is not None]
    for page, block in left_out:
        print(f"{page.relative_to(ROOT)}: {block.why}: {block.text.strip().splitlines()[0]}")
        assert block.why in REASONS, f"{page}: {block.why}"
    assert Counter(block.why for _, block in left_out) == NOT_IN_CI
    marks = sum(page.read_text().count("<!-- not in CI: ") for page in PAGES)
    assert marks == len(left_out)  # none stands where it marks nothing
    makefile = (ROOT / "Makefile").read_text()
    for target in REASONS.values():
        assert re.search(rf"(?m)^{target}:.*\n\t.*tests/test_docs_pages.py", makefile), target


def test_no_code_hides_behind_another_fence():
    for page in PAGES:
        for match in FENCE.finditer(page.read_text()):
            known = match["kind"] in ("", "text", "toml", "json", "python", *SHELL) or match["kind"].startswith("{")
            assert known, f"{page}: {match['kind']}"
            hidden = match["kind"] in ("", "text") and re.search(
                r"(?m)^(\$ |corymb \w+ |.*corymb\.fit\()", match["text"]
            )
            assert not hidden, f"{page}: {match['text']}"


def test_the_commands_of_a_block_are_found():
    text = "$ corymb run digits ifca --k 4   # a comment\nsome output\n\n$ ls '#x'\n"
    assert lines(Block("console", text, None)) == ["corymb run digits ifca --k 4", "ls '#x'"]
    assert lines(Block("sh", "# a comment\ncorymb \\\n  doctor\n", None)) == ["corymb    doctor"]


# ---- a folder to run a page in


def make_inputs(folder):
    """Create the files that pages assume: the user's data, and runs."""
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
    table, runs = str(folder / "table.csv"), folder / "runs"
    for name, words in {
        "mine": [table, "ifca", "--k", "2", "--client", "hospital", "--label", "outcome", "--rounds", "3"],
        "ifca": ["digits", "ifca", "--k", "4", "--rounds", "3"],
        "fedavg": ["digits", "fedavg", "--rounds", "3"],
        "digits-ifca-1": ["digits", "ifca", "--k", "4", "--max_seconds", "0"],
    }.items():
        assert main(["run", *words, "-q", "--out", str(runs / name)]) == 0
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("supposed"))


def make_small(patch):
    """Make `digits` small, runs short unless a page gives their rounds, and laws few."""

    def few_rounds(algorithm, given, suited):
        settings = with_defaults(algorithm, given, suited)
        rounds = {field.name for field in fields(algorithm)} & {"rounds"} - given.keys()
        return settings | dict.fromkeys(rounds, FEW)

    patch.setattr(suite, "EACH_ENGINE", LAWS)
    patch.setattr(digits, "__kwdefaults__", SMALL)
    patch.setattr(defaults, "with_defaults", few_rounds)


@pytest.fixture(scope="module")
def small_inputs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return make_inputs(tmp_path_factory.mktemp("small"))


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """A working folder, and programs that the shell finds."""
    folder, programs = tmp_path / "page", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    for name, words in (("corymb", "-m corymb"), ("python", ""), ("pip", "-m pip")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (programs / name).chmod(0o755 | stat.S_IEXEC)
    path = f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name, value in {"PATH": path, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder}", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name, tracker in TRACKERS.items():
        monkeypatch.setitem(sys.modules, name, tracker)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


def _log(values, step=None):
    assert all(isinstance(value, float | int) for value in values.values())
    assert isinstance(step, int)


def _params(values):
    assert values


TRACKERS = {
    "mlflow": SimpleNamespace(start_run=nullcontext, log_metrics=_log, log_params=_params),
    "wandb": SimpleNamespace(
        init=lambda project: nullcontext(SimpleNamespace(log=_log, config=SimpleNamespace(update=_params)))
    ),
}
"""Stand-ins for trackers that are not installed; they check their arguments."""


def remove_outputs(folder, text):
    """Remove the runs that a line or a block is about to write."""
    for place in re.findall(r"""(?:--out |out=")(runs/[\w-]+)""", text):
        shutil.rmtree(folder / place, ignore_errors=True)


def run_line(line, folder):
    """Run a command, in this process where that is the same: importing torch again takes longer than most commands."""
    remove_outputs(folder, line)
    words = shlex.split(line)
    if words[0] == "corymb" and not set("|><&;") & set(line):
        assert main(words[1:]) == 0, line
    elif words[0] == "python" and len(words) == 2:
        runpy.run_path(words[1], run_name="__main__")
    else:
        if words[:2] == ["pip", "install"]:  # this version, and leave this environment alone
            line = re.sub(r"corymb\[", f"{ROOT}[", line).replace("install", "install --dry-run -q", 1)
        bash(line, folder)


def bash(text, folder):
    done = subprocess.run(["bash", "-e", "-c", text], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{text}: {done.stdout[-800:]} {done.stderr[-2000:]}"


def with_few_rounds(line):
    """The line with at most `MOST` rounds."""
    return re.sub(r"--rounds (\d+)", lambda asked: f"--rounds {min(int(asked[1]), MOST)}", line)


def run_page(page, folder, *reasons, edit=str):
    """Run those blocks of a page that are not in CI for one of these reasons; None stands for those that are."""
    for block in blocks(page):
        if block.why not in reasons:
            continue
        if block.kind in SHELL:
            for line in lines(block):
                run_line(edit(line), folder)
            continue
        if name := re.match(r"# (\w+\.py)\n", block.text):
            (folder / name[1]).write_text(block.text)
        remove_outputs(folder, block.text)
        try:
            exec(compile(block.text, str(page), "exec"), {"__name__": f"block_of_{page.stem}"})  # noqa: S102
        except ModuleNotFoundError as missing:
            if block.why != "network":
                raise
            pytest.skip(f"{missing}: no extra of ours has it")


# ---- the pages


@pages_with(None)
def test_a_page_runs_from_top_to_bottom_on_small_data(page, small_inputs, here, monkeypatch):
    make_small(monkeypatch)
    shutil.copytree(small_inputs, here, dirs_exist_ok=True)
    run_page(page, here, None, edit=with_few_rounds)


@pytest.mark.docs_slow
@pytest.mark.timeout(1800)
@pages_with(None, "longer than 20 s", "network")
def test_every_block_of_a_page_runs(page, inputs, here):
    shutil.copytree(inputs, here, dirs_exist_ok=True)
    run_page(page, here, None, "longer than 20 s", "network")


@pytest.mark.ray
@pytest.mark.timeout(600)
@pages_with("Ray")
def test_a_page_runs_on_ray(page, here, monkeypatch):
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    make_small(monkeypatch)
    run_page(page, here, "Ray")


ON_THIS_MACHINE = {
    "203.0.113.5": "127.0.0.1",
    "/var/lib/corymb/": "state-",
    "--ca ca.pem": "--ca .federation/tls/ca.pem",
}
"""Names of other machines and of their folders, and their replacements on this one."""


@pytest.mark.flower_all
@pytest.mark.timeout(1800)
@pages_with("Flower")
def test_a_page_runs_on_flower(page, here):
    """All its commands in one shell, at a free port; a node that is started by hand runs in the background."""
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    port = str(free_port())
    script = ["set -e", "export OMP_NUM_THREADS=1", "trap 'set +e; kill $(jobs -p); corymb flower down' EXIT"]
    for block in blocks(page):
        if block.why != "Flower":
            continue
        if block.kind == "python":
            (here / "block.py").write_text(block.text.replace("8000", port))
        for line in lines(block) if block.kind in SHELL else [f"python {here / 'block.py'}"]:
            for there, on_this_machine in {**ON_THIS_MACHINE, "8000": port}.items():
                line = line.replace(there, on_this_machine)
            if "flower up" in line:  # a page may start again with other options
                script.append("corymb flower down")
                script.append(f"sed -i 's/^nodes = .*/nodes = {1 if '--nodes 0' in line else 3}/' federation.toml")
            if "flower node" in line:
                script += [f"({line}) > node.log 2>&1 &", "corymb flower run"]
                continue
            script.append(re.sub(r"^pip install .*", "true", line))
            if "flower new" in line:
                script.append(f"sed -i 's/:8000/:{port}/' federation.toml")
    bash("\n".join(script), here)


@pytest.mark.docs_slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_draws_its_picture(script, here):
    bash(f"python {script} picture.png", here)
    assert (here / "picture.png").read_bytes()[:4] == b"\x89PNG"
