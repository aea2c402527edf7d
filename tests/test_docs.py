import ast
import importlib.util
import re
from pathlib import Path

import pytest

import corymb
from corymb.algorithms.catalogue import CATALOGUE
from corymb.cli import Exit
from corymb.cli.app import COMMANDS, GROUPS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "corymb"
PAGES = [*sorted(ROOT.glob("*.md")), *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in p.parts)]


def test_the_readme_lists_the_algorithms():
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert listed == set(CATALOGUE)


def test_the_figures_are_those_that_the_script_draws():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for path, text in script.figures().items():
        assert path.read_text() == text, f"{path.name}: run python docs/figures.py"


def test_every_algorithm_has_a_page_with_all_that_a_page_has():
    index = (ROOT / "docs" / "algorithms" / "index.md").read_text()
    for page in sorted((ROOT / "docs" / "algorithms").glob("*.md")):
        if page.name == "index.md":
            continue
        assert f"({page.name})" in index
        text = page.read_text()
        assert f"figures/{page.stem}.svg" in text
        said = [line.lower() for line in text.splitlines() if line.startswith(("#", "**"))]
        for wanted in ("settings", "messages", "learns", "departures", "results"):
            assert any(wanted in line for line in said), f"{page.name} does not say: {wanted}"


def test_the_reference_has_every_public_name():
    text = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    documented = {name.rpartition(".")[2] for name in re.findall(r"^\.\. auto\w+:: (\S+)", text, re.MULTILINE)}
    assert set(corymb.__all__) - {*corymb._MODULES, "__version__"} <= documented


def test_the_gallery_shows_every_example():
    shown = (ROOT / "docs" / "gallery" / "index.md").read_text()
    scripts = sorted((ROOT / "examples").glob("*.py"))
    pictures = sorted((ROOT / "docs" / "gallery" / "pictures").iterdir())
    assert len(scripts) == 8
    assert [path.stem for path in pictures] == [path.stem for path in scripts]
    assert sum(path.stat().st_size for path in pictures) < 300_000
    for script in scripts:
        assert f"pictures/{script.stem}.png" in shown
        assert f"examples/{script.name}" in shown
        assert ast.get_docstring(ast.parse(script.read_text()))


def test_every_command_is_documented():
    text = (ROOT / "docs" / "command-line.md").read_text()
    assert set(re.findall(r"^\| `corymb (\w+)", text, re.MULTILINE)) == {*COMMANDS, *GROUPS}


def test_every_exit_code_is_documented():
    documented = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "command-line.md").read_text(), re.MULTILINE)
    assert [int(code) for code in documented] == sorted(Exit)


def look_up(name):
    """The module, or the value in one, that a dotted name stands for."""
    value, place = corymb, "corymb"
    for part in name.split(".")[1:]:
        place = f"{place}.{part}"
        value = getattr(value, part) if hasattr(value, part) else importlib.import_module(place)
    return value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_pages_name_is_there(page):
    text = page.read_text()
    for name in re.findall(r"`(corymb(?:\.\w+)+)`", text):
        look_up(name)
    for path in re.findall(r"`([\w/-]+/[\w.-]+\.(?:py|md|toml))`", text):
        assert (ROOT / path).exists() or any(SOURCE.rglob(path)), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_existing_targets(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_public_name_exists():
    for home, names in corymb._HOMES.items():
        for name in names:  # a module of the package that is called like one of its values would hide it
            assert getattr(corymb, name) is getattr(importlib.import_module(home), name)
    promised = {*corymb._MODULES, "__version__"}.union(*corymb._HOMES.values())
    assert promised == set(corymb.__all__)
    assert set(dir(corymb)) == set(corymb.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        corymb.fitt  # noqa: B018
