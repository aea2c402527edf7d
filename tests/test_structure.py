"""The shape of the code base: small folders, tests that mirror the source, nothing written twice, few `Any`."""

import ast
import io
import itertools
import re
import tokenize
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "corymb", ROOT / "tests"
MOST_MODULES = 18
ONE_FILE_A_PAPER = {"algorithms"}
SHORTEST_BLOCK = 8
MOST_ANY = 20

APART = {"contracts", "golden", "browser", "federation"}
"""Folders of tests that belong to no one module."""
ABOUT_THE_PROJECT = {
    "test_benchmarks",
    "test_contributing",
    "test_docs",
    "test_docs_pages",
    "test_fuzz",
    "test_golden",
    "test_imports",
    "test_light_import",
    "test_package",
    "test_structure",
    "test_types",
}
"""Tests of the whole package."""
OF_SEVERAL_MODULES = {"algorithms/test_baselines", "engines/test_gpu"}
"""Tests that hold a few modules of one folder to the same."""


def modules(folder):
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def crowded(source):
    """Folders with more modules than a reader takes in at a glance."""
    folders = [source, *(path for path in source.rglob("*") if path.is_dir())]
    counts = {folder.relative_to(source).as_posix(): len(modules(folder)) for folder in folders}
    return {name: count for name, count in counts.items() if count > MOST_MODULES and name not in ONE_FILE_A_PAPER}


def test_folders_are_small():
    assert crowded(SOURCE) == {}


def orphans(tests, source):
    """Test files whose path matches no module or package of the source.

    `a/test_b.py` stands for `a/b.py`, for the package `a/b`, or for one aspect of either: `a/test_b_on_digits.py`;
    `a/test_a.py` for the package `a` itself.
    """
    found = []
    for path in sorted(tests.rglob("test_*.py")):
        place = path.relative_to(tests)
        listed = ABOUT_THE_PROJECT | OF_SEVERAL_MODULES
        if place.parts[0] in APART or place.as_posix().removesuffix(".py") in listed:
            continue
        words = place.stem.removeprefix("test_").split("_")
        names = ["_".join(words[:end]) for end in range(1, len(words) + 1)]
        home = source / place.parent
        own = home != source and home.name in names and (home / "__init__.py").exists()
        if not own and not any((home / f"{n}.py").exists() or (home / n / "__init__.py").exists() for n in names):
            found.append(place.as_posix())
    return found


def test_tests_mirror_the_source():
    assert orphans(TESTS, SOURCE) == []


def statements(path):
    """The lines that count, as (number, normalised text): no comments, docstrings, imports, exports, punctuation."""
    text = path.read_text(encoding="utf-8")
    skipped = set()
    for node in ast.walk(ast.parse(text)):
        named = isinstance(node, (ast.Import, ast.ImportFrom))
        documented = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        exported = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if named or documented or exported:
            skipped |= set(range(node.lineno, node.end_lineno + 1))
    comments = {
        token.start[0]: token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    for number, line in enumerate(text.splitlines(), 1):
        code = line.removesuffix(comments.get(number, ""))
        if number not in skipped and re.search(r"\w", code):
            yield number, " ".join(code.split())


def repeated(paths, least=SHORTEST_BLOCK):
    """Pairs of places, as (file, line), where a block of at least so many lines occurs, named by its first line."""
    seen, pairs, inside = defaultdict(list), [], set()
    for path in paths:
        lines = list(statements(path))
        for start in range(len(lines) - least + 1):
            block = tuple(text for _, text in lines[start : start + least])
            seen[block].append((path, start, lines[start][0]))
    for places in seen.values():
        for (path, start, line), (other, other_start, other_line) in itertools.pairwise(places):
            if (path, start - 1, other, other_start - 1) not in inside:  # not the rest of a longer block
                pairs.append((f"{path.name}:{line}", f"{other.name}:{other_line}"))
            inside.add((path, start, other, other_start))
    return pairs


def test_nothing_is_written_twice():
    found = repeated(sorted(SOURCE.rglob("*.py")))
    assert found == [], f"blocks of {SHORTEST_BLOCK} or more lines that occur twice: {found}"


def lines_with_any(folder):
    """Lines of code with the name `Any`, imports included."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        found += sorted({(path.name, token.start[0]) for token in tokens if token[:2] == (tokenize.NAME, "Any")})
    return found


def test_the_core_is_typed():
    found = lines_with_any(SOURCE / "core")
    assert len(found) <= MOST_ANY, f"Any on {len(found)} lines of core/: {found}"


def test_make_installs_flower_only_where_it_is_needed():
    extras = re.search(r"^EXTRAS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split(",")
    assert {"dev", "report", "tables", "tracking", "privacy"} == set(extras)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras, "flower"} <= set(known)


def write(folder, files):
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_crowded_folder_is_found(tmp_path):
    write(tmp_path, {f"{folder}/m{i}": "" for folder in ("runs", "algorithms") for i in range(MOST_MODULES + 1)})
    write(tmp_path, {"core/__init__": "", **{f"core/m{i}": "" for i in range(MOST_MODULES)}})
    assert crowded(tmp_path) == {"runs": MOST_MODULES + 1}


def test_a_test_without_a_module_is_found(tmp_path):
    sources = ("data/split", "data/readers/__init__", "algorithms/ifca")
    mirrored = (
        "data/test_split",
        "data/test_readers",
        "algorithms/test_ifca_options",
        "contracts/test_laws",
        "test_docs",
        "test_docs_pages",
    )
    write(tmp_path / "src", dict.fromkeys(sources, ""))
    write(tmp_path / "tests", dict.fromkeys((*mirrored, "data/test_merge", "test_split"), ""))
    assert orphans(tmp_path / "tests", tmp_path / "src") == ["data/test_merge.py", "test_split.py"]


BLOCK = [f"x{i} = f({i})" for i in range(SHORTEST_BLOCK)]


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        ("\n".join(BLOCK), 1),
        ("def f():\n" + "\n".join(f"    {line}  # why" for line in BLOCK), 1),
        ("\n\n".join([*BLOCK, "y = 0"]), 1),
        ("\n".join(["y = 0", *BLOCK, "z = 0", *BLOCK]), 2),
        ("\n".join(BLOCK[1:]), 0),
        ("\n".join(line.replace("f(4)", "f(5)") for line in BLOCK), 0),
        ('"""\n' + "\n".join(BLOCK) + '\n"""', 0),
    ],
)
def test_a_repeated_block_is_found(other, wanted, tmp_path):
    write(tmp_path, {"one": "\n".join([*BLOCK, "done()"]), "other": other})
    assert len(repeated([tmp_path / "one.py", tmp_path / "other.py"])) == wanted


def test_a_long_repeated_block_is_reported_once(tmp_path):
    text = "\n".join([*BLOCK, *(f"y{i} = g({i})" for i in range(9))])
    write(tmp_path, {"one": text, "other": f"first()\n{text}"})
    assert repeated([tmp_path / "one.py", tmp_path / "other.py"]) == [("one.py:1", "other.py:2")]


def test_any_is_counted_by_lines(tmp_path):
    write(tmp_path, {"one": "from typing import Any\nx: dict[Any, Any]\n\n\ndef f(y: Any) -> int: ...\n# Any\n"})
    assert lines_with_any(tmp_path) == [("one.py", 1), ("one.py", 2), ("one.py", 5)]
