"""The package: one version, a changelog by version, a citation that programs can read, and a wheel that installs."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import corymb

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
    said = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        said |= {part for found in re.findall(r"corymb\[([\w,]+)\]", page.read_text()) for part in found.split(",")}
    assert {"report", "flower"} <= said <= set(PROJECT["optional-dependencies"])


# ---- the wheel in a fresh environment: make wheel


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The wheel and the source distribution."""
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return place


@pytest.fixture(scope="module")
def corymb_at(dist, tmp_path_factory):
    """A function that runs the command of the installed wheel, in a folder without a checkout."""
    place = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
    (wheel,) = dist.glob("*.whl")
    python = place / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", f"{wheel}[report]"]
    subprocess.run(install, check=True)

    def run(*words):
        program = [python, *words[1:]] if words[0] == "python" else [place / "venv" / "bin" / "corymb", *words]
        clean = {"PATH": "/usr/bin:/bin", "HOME": str(place), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(program, cwd=place, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


ONE_CELL = """
from corymb.cli.reproduce import RECIPES, expected
from corymb.recipes.uifca.recipe import work
assert all(expected(paper) for paper in RECIPES)  # what papers claim is in the wheel
print(work("gaussians-0/kfed/0"))
"""


@pytest.mark.wheel
@pytest.mark.timeout(1800)
def test_the_wheel_runs_where_there_is_no_checkout(corymb_at):
    assert corymb.__version__ in corymb_at("--version")
    assert "ari" in corymb_at("run", "digits", "ifca", "--k", "4", "--out", "first", "-q")
    corymb_at("doctor")
    corymb_at("report", "first")
    assert "purity" in corymb_at("python", "-c", ONE_CELL)
    corymb_at("new", "algorithm", "my-average")
    assert "passes" in corymb_at("python", "test_my_average.py")
    corymb_at("run", "digits", "my_average:MyAverage", "--k", "4", "-q", "--out", "second")
    assert "B: second" in corymb_at("compare", "first", "second")


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
