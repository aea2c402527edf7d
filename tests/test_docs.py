import importlib
import re
from pathlib import Path

import pytest

import corymb
from corymb.cli.exits import Exit
from corymb.runs.catalogue import ALGORITHMS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_python_in_the_docs_runs(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs", "exec"), {})  # noqa: S102


def test_the_readme_lists_the_algorithms():
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert listed == set(ALGORITHMS)


def test_every_exit_code_is_documented():
    documented = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "command-line.md").read_text(), re.MULTILINE)
    assert [int(code) for code in documented] == sorted(Exit)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_what_is_promised_at_the_top_is_there():
    for home, names in corymb._HOMES.items():
        for name in names:  # a module of the package that is called like one of its values would hide it
            assert getattr(corymb, name) is getattr(importlib.import_module(home), name)
    promised = {*corymb._MODULES, "__version__"}.union(*corymb._HOMES.values())
    assert promised == set(corymb.__all__)
    assert set(dir(corymb)) == set(corymb.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        corymb.fitt  # noqa: B018
