"""The package: one version, a changelog by version, a citation that programs can read, and a wheel that installs."""

import os
import re
import resource
import shlex
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import corymb
from tests.test_docs_pages import SHELL, blocks, lines

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# ---- plain


def test_the_version_is_written_in_one_place_and_repeated_right():
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == corymb.__version__


def test_the_changelog_is_by_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1].startswith(f"{corymb.__version__} (")
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading) for heading in headings[1:])
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


CFF = {
    "required": {"cff-version", "message", "title", "authors"},
    "known": {
        *("abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords"),
        *("license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact"),
        *("repository-code", "title", "type", "url", "version"),
    },
}
"""Keys of the Citation File Format 1.2.0."""
REFERENCE = {
    *("type", "title", "authors", "notes", "collection-title", "journal", "volume", "issue", "start", "end", "year"),
    *("doi", "url", "institution", "number", "publisher", "conference"),
}
"""Those of its keys for a reference that we use."""


def people_are_named(authors):
    return authors and all(("name" in one) != ({"family-names", "given-names"} <= set(one)) for one in authors)


def test_the_citation_is_valid():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert CFF["required"] <= set(citation) <= CFF["known"]
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in ("software", "dataset")
    assert citation["license"] == PROJECT["license"]
    assert people_are_named(citation["authors"])
    for reference in citation["references"]:
        assert {"type", "title", "authors"} <= set(reference) <= REFERENCE
        assert reference["type"] in ("article", "conference-paper", "report", "thesis")
        assert people_are_named(reference["authors"])
        assert isinstance(reference["year"], int)
        assert re.fullmatch(r"10\.\d{4,9}/\S+", reference.get("doi", "10.1000/1"))


def test_what_the_docs_say_to_install_can_be_installed():
    extras = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        extras |= {part for found in re.findall(r"corymb\[([\w,]+)\]", page.read_text()) for part in found.split(",")}
    assert {"report", "flower"} <= extras <= set(PROJECT["optional-dependencies"])


# ---- the wheel in a fresh environment: make wheel


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The wheel and the source distribution."""
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return place


class Fresh:
    """An environment with the wheel alone, used in a folder without a checkout; times what it runs."""

    def __init__(self, place, wheel):
        self.place, self.bin, self.took = place, place / "venv" / "bin", []
        subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
        install = f"pip install -q -c {ROOT / 'constraints.txt'} '{wheel}[report]'"
        self.shell(install, {**os.environ, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"})

    def shell(self, line, environment=None):
        clean = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.place), "OMP_NUM_THREADS": "1"}
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = ["bash", "-e", "-c", line]
        done = subprocess.run(command, cwd=self.place, env=environment or clean, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
        computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.took.append((line, computed, wall))
        return done.stdout

    def corymb(self, *words):
        return self.shell(shlex.join(["corymb", *words]))


@pytest.fixture(scope="module")
def fresh(dist, tmp_path_factory):
    (wheel,) = dist.glob("*.whl")
    return Fresh(tmp_path_factory.mktemp("fresh"), wheel)


CLAIMS = """
from corymb.cli.reproduce import RECIPES, expected
assert all(expected(paper) for paper in RECIPES)  # what papers claim is in the wheel
"""


@pytest.mark.wheel
@pytest.mark.timeout(1800)
def test_the_wheel_runs_where_there_is_no_checkout(fresh):
    assert corymb.__version__ in fresh.corymb("--version")
    assert "ari" in fresh.corymb("run", "digits", "ifca", "--k", "4", "--out", "first", "-q")
    fresh.corymb("doctor")
    (fresh.place / "claims.py").write_text(CLAIMS)
    fresh.shell("python claims.py")
    quick = ["--quick", "--cells", "quick-*/ifca/0", "--workers", "1"]
    assert "claims hold" in fresh.corymb("reproduce", "ifca", *quick)


@pytest.mark.wheel
@pytest.mark.timeout(1800)
def test_the_path_of_a_new_user(fresh, capsys):
    """The tutorials on data, model and algorithm, block by block; docs/tutorials/index.md has what this prints."""
    for page in ("own-data-and-model", "own-algorithm"):
        for number, block in enumerate(blocks(ROOT / "docs" / "tutorials" / f"{page}.md")):
            if block.kind in SHELL:
                for line in lines(block):
                    fresh.shell(line)
                continue
            name = re.match(r"# (\w+\.py)\n", block.text)
            file = name[1] if name else f"block-{number}.py"
            (fresh.place / file).write_text(block.text)
            fresh.shell(f"python {file}")
    with capsys.disabled():
        print("\n| step | CPU seconds | wall |\n|---|--:|--:|")
        print("\n".join(f"| `{line}` | {computed:.0f} | {wall:.0f} |" for line, computed, wall in fresh.took))


@pytest.mark.wheel
def test_the_distributions_hold_what_they_should(dist):
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    files = [
        path for path in (ROOT / "src" / "corymb").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    wanted = {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert {name for name in names if name.startswith("corymb/")} == wanted
    assert (dist / f"corymb-{corymb.__version__}.tar.gz").exists()
