"""`corymb reproduce`: run a paper's experiments, draw its figures, and compare its claims with our measurements.

A recipe is a package of `corymb.recipes` with a module `recipe` (see `Recipe` below; `NEEDS`, `SEEDS` and `tables` are
optional) and the paper's claims and figures in `expected.toml`. Jobs are called cells. Each runs in its own process
with one thread, and its result is saved as soon as it ends (`corymb.recipes.cells`), so that repeating the command
continues an interrupted reproduction, and the work can be split over days and machines. Files written:

cells/                      the result of each job
numbers.json                every measure, with machine and versions
curves.json                 the results of all jobs, rounded to six digits
table.md                    the paper's claims, our measurements, and whether they agree
figures.png, figures.svg    the paper's figures
report.html                 table and figures as one page
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Protocol, cast

import torch
from cyclopts import Parameter

from corymb import __version__
from corymb.recipes.cells import CellsFailed, read_cell, rounded, run_cells
from corymb.recipes.page import page
from corymb.runs.folder.layout import check_free
from corymb.runs.history import counted
from corymb.settings import did_you_mean, expanded, require


class Recipe(Protocol):
    """How a paper's experiments are run. Results are plain numbers by job."""

    TABLES: Mapping[str, Sequence[str]]
    """The parts of the paper by name, with glob patterns of their jobs, including those of the quick version."""

    def jobs(self, seeds: int) -> list[str]:
        """The names of all jobs."""
        ...

    def quick_jobs(self) -> list[str]:
        """The names of the quick version's jobs."""
        ...

    def work(self, job: str) -> dict[str, Any]:
        """Run one job."""
        ...

    def measures(self, results: Mapping[str, Any]) -> dict[str, float]:
        """The measures that the claims refer to, by name."""
        ...

    def draw(self, results: Mapping[str, Any], path: Path) -> None:
        """Draw the paper's figures."""
        ...


RECIPES: Mapping[str, str] = MappingProxyType(
    {
        "ifca": "corymb.recipes.ifca",
        "moment-descent": "corymb.recipes.moment_descent",
        "sr-fca": "corymb.recipes.sr_fca",
        "uifca": "corymb.recipes.uifca",
    }
)


CELLS, NUMBERS = "cells", "numbers.json"
MADE = "data generated as in the paper"
SEEDS = 10


class Claim(NamedTuple):
    """A sentence of the paper, and the bound within which a measure supports it."""

    figure: str
    says: str
    what: str
    measure: str
    at_least: float | None = None
    at_most: float | None = None
    quick: bool = False
    """Whether it applies to the quick version."""

    def holds(self, value: float) -> bool:
        """Whether a measured value supports the claim."""
        low, high = self.at_least, self.at_most
        return (low is None or value >= low) and (high is None or value <= high)

    @property
    def wanted(self) -> str:
        """The bound as text."""
        return f"≥ {self.at_least:g}" if self.at_most is None else f"≤ {self.at_most:g}"


class Outcome(NamedTuple):
    """The outcome of a reproduction."""

    claims: list[tuple[Claim, float | None]]
    table: str
    folder: Path
    seconds: float
    left: int = 0
    """Cells that were not run."""
    failed: Mapping[str, str] = MappingProxyType({})
    """The reasons of failed cells, by name."""

    @property
    def summary(self) -> str:
        """A summary of how many of the paper's claims hold."""
        measured = [claim.holds(value) for claim, value in self.claims if value is not None]
        unknown = len(self.claims) - len(measured)
        return f"{sum(measured)} of {len(measured)} claims hold" + (
            f", {unknown} {'is' if unknown == 1 else 'are'} not measured yet" if unknown else ""
        )


def reproduce(
    paper: str,
    *,
    cells: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative_iterable=())] = (),
    quick: bool = False,
    left: bool = False,
    out: Path | None = None,
    seeds: int | None = None,
    workers: int | None = None,
    seconds: float | None = None,
) -> None:
    """Run a paper's experiments and compare its claims with our numbers.

    Parameters
    ----------
    paper
        The paper: ifca, moment-descent, sr-fca or uifca; or a table or figure of it, such as ifca/table-1.
    cells
        Run only the cells that match one of these names or glob patterns, such as 'rmnist-1200x200/*/0'.
    quick
        Run a small version that takes seconds, and state its data: a part of the original data if they are available,
        else the digits included in the package. Nothing is downloaded.
    left
        List the cells that have not been run, without running any.
    out
        The folder for numbers, table and figures: new, empty, or holding earlier results of this paper; by default
        runs/reproduce-PAPER.
    seeds
        Number of seeds for the main claims; by default that of the paper.
    workers
        Number of processes; by default one per core, or one if there is a GPU.
    seconds
        Stop after this time and discard unfinished cells. Repeat the command to continue.
    """
    name, part, table = paper.partition("/")
    require(bool(table) or not part, f"{paper!r} names no part of the paper after the slash: add one, or drop it.")
    folder = out or Path("runs") / f"reproduce-{name}{'-quick' if quick else ''}"
    chosen = Chosen(table, cells, quick, seeds)
    if left:
        jobs = jobs_of(name, chosen)
        kept = own_folder(folder, name, quick) / CELLS
        todo = [job for job in jobs if read_cell(kept, job) is None]
        print("\n".join(todo) if todo else "no cells left", file=sys.stdout if todo else sys.stderr)
        return
    outcome = run_recipe(name, folder, chosen, workers=workers, seconds=seconds)
    print(outcome.table)
    if outcome.left:
        print(f"{counted(outcome.left, 'cell')} left: repeat the command to continue.")
    print(f"{outcome.summary}; {outcome.seconds:.0f} s; {outcome.folder}")
    if outcome.failed:
        small = "" if quick else " --quick runs a small version that needs no data."
        raise CellsFailed(f"{_why_cells_failed(outcome.failed)}{small}")


def _why_cells_failed(failed: Mapping[str, str]) -> str:
    """The number of failed cells and the reason of the first; other reasons were printed when the cells failed."""
    first, why = next(iter(failed.items()))
    others = sum(reason != why for reason in failed.values())
    rest = f" {others} of them failed for other reasons: see above." if others else ""
    return f"{counted(len(failed), 'cell')} failed ({first}: {why}).{rest}"


class Chosen(NamedTuple):
    """A selection of a recipe's jobs."""

    table: str = ""
    cells: tuple[str, ...] = ()
    quick: bool = False
    seeds: int | None = None


EVERYTHING = Chosen()


def jobs_of(paper: str, chosen: Chosen) -> list[str]:
    """The selected jobs of a recipe."""
    recipe = recipe_for(paper)
    seeds = getattr(recipe, "SEEDS", SEEDS) if chosen.seeds is None else chosen.seeds
    require(seeds >= 1, f"seeds must be at least 1, got {seeds}.")
    jobs = recipe.quick_jobs() if chosen.quick else recipe.jobs(seeds)
    if chosen.table:
        known = did_you_mean(chosen.table, recipe.TABLES)
        require(chosen.table in recipe.TABLES, f"{paper} has no part {chosen.table!r}. {known}")
        parts = {part: _matching(jobs, patterns) for part, patterns in recipe.TABLES.items()}
        jobs = parts[chosen.table]
        others = ", ".join(part for part, matched in parts.items() if matched)
        require(
            len(jobs) > 0, f"{paper}/{chosen.table} has no quick version: leave out --quick, or choose from {others}."
        )
    if chosen.cells:
        unknown = [pattern for pattern in chosen.cells if not _matching(jobs, [pattern])]
        whole = f"{paper}/{chosen.table}" if chosen.table else paper
        require(not unknown, f"No cell of {whole} matches {', '.join(unknown)}: --left lists their names.")
        jobs = _matching(jobs, chosen.cells)
    return jobs


def _matching(jobs: Sequence[str], patterns: Sequence[str]) -> list[str]:
    return [job for job in jobs if any(fnmatch(job, pattern) for pattern in patterns)]


def data_needed(recipe: Recipe) -> Callable[[str], str]:
    """A function from a cell to the name of the data set it needs; empty for generated data."""
    needs: Mapping[str, str] = getattr(recipe, "NEEDS", {})
    return lambda job: next((data for pattern, data in needs.items() if fnmatch(job, pattern)), "")


def run_recipe(
    paper: str, out: Path, chosen: Chosen = EVERYTHING, *, workers: int | None = None, seconds: float | None = None
) -> Outcome:
    """Run the selected jobs that `out` does not have yet, then write numbers, table and figures of all its results."""
    recipe, claims = recipe_for(paper), [claim for claim in expected(paper) if claim.quick == chosen.quick]
    jobs = jobs_of(paper, chosen)
    require(workers is None or workers >= 1, f"workers must be at least 1, got {workers}.")
    require(seconds is None or seconds >= 0, f"seconds must be 0 or more, got {seconds}.")
    folder = own_folder(out, paper, chosen.quick)
    _name_folder(folder, paper, chosen.quick)
    began = time.monotonic()
    work = f"{RECIPES[paper]}.recipe:work"
    at_once = workers or (1 if torch.cuda.is_available() else os.cpu_count() or 1)
    try:
        done = run_cells(work, jobs, folder / CELLS, workers=at_once, seconds=seconds, needs=data_needed(recipe))
    except KeyboardInterrupt:
        ended = sum(read_cell(folder / CELLS, job) is not None for job in jobs)
        progress = f"{ended} of {counted(len(jobs), 'cell')} are saved in {folder / CELLS}"
        raise KeyboardInterrupt(f"Stopped: {progress}; repeat the command to continue.") from None
    taken = time.monotonic() - began
    others = [] if chosen.quick else [job for job in jobs_of(paper, Chosen(seeds=chosen.seeds)) if job not in jobs]
    kept = {job: value for job in others if (value := read_cell(folder / CELLS, job)) is not None}
    results = {**done.results, **kept}
    measures = recipe.measures(results)
    judged = [(claim, measures.get(claim.measure)) for claim in claims]
    table = table_of(judged)
    if hasattr(recipe, "tables") and not chosen.quick:
        table += "\n" + recipe.tables(results)
    if chosen.quick:
        table += "\n" + _what_was_small(results)
    about = {"paper": paper, "quick": chosen.quick, "seconds": round(taken, 1), "jobs": len(results), **_machine()}
    about |= {"seeds": chosen.seeds} if chosen.seeds else {}
    _write_numbers(folder, about, rounded(measures))
    (folder / "curves.json").write_text(json.dumps(rounded(results)) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(table, encoding="utf-8")
    drawings = []
    if not chosen.quick:
        recipe.draw(results, folder / "figures.png")
        recipe.draw(results, folder / "figures.svg")
        drawings.append((folder / "figures.svg").read_text(encoding="utf-8"))
    title = f"{paper}: the paper's figures and ours{' (quick version)' if chosen.quick else ''}"
    versions = f"Corymb {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    made = f"{counted(len(results), 'cell')}; page generated by {versions}."
    (folder / "report.html").write_text(page(title, table, drawings, made), encoding="utf-8")
    return Outcome(judged, table, folder, taken, len(done.left), done.failed)


# ---- ownership of a folder


def own_folder(out: Path, paper: str, quick: bool) -> Path:
    """Check that a folder is new or empty, or holds cells of this paper and version; returns its path."""
    place = expanded(out)
    if not (place / CELLS).is_dir():
        return check_free(place)
    about = _about(place)
    if "quick" in about:
        own = (about["paper"], about["quick"]) == (paper, quick)
        has = _version(about["paper"], about["quick"])
    else:  # only cells, as under papers/, or numbers written by an earlier version
        own = about.get("paper", paper) == paper and _has_cells_of(place / CELLS, paper, quick)
        other = _has_cells_of(place / CELLS, paper, not quick)
        has = _version(paper, not quick) if other else about.get("paper", "another paper")
    wanted = _version(paper, quick)
    require(own, f"{place} holds the results of {has}, not of {wanted}: give a new or empty folder with --out.")
    return place


def _version(paper: str, quick: bool) -> str:
    return f"{paper} --quick" if quick else f"{paper} (in full)"


def _has_cells_of(kept: Path, paper: str, quick: bool) -> bool:
    """Whether the cells in a folder belong to a paper, judged by their names without seeds; True if there are none.

    Two papers may share a few names, so a majority must match. For the quick version all must match, since it would
    overwrite the outputs of the others.
    """
    found = {path.relative_to(kept).parent.as_posix() for path in kept.rglob("*.json")}
    known = {job.rpartition("/")[0] for job in jobs_of(paper, Chosen(quick=quick))}
    small = known | {name for name in found if name.startswith("quick-")}  # on other data, or under earlier names
    return not found or (found <= small if quick else 2 * len(found & known) > len(found))


def _about(place: Path) -> dict[str, Any]:
    """The `about` entry of a folder's numbers; empty if there is none."""
    try:
        found = json.loads((place / NUMBERS).read_text(encoding="utf-8"))["about"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) and "paper" in found else {}


def _name_folder(place: Path, paper: str, quick: bool) -> None:
    """Record which paper a folder belongs to before the first cell: an interrupted run leaves cells but no numbers."""
    if not _about(place):
        place.mkdir(parents=True, exist_ok=True)
        _write_numbers(place, {"paper": paper, "quick": quick}, {})


def _write_numbers(place: Path, about: Mapping[str, Any], measures: Mapping[str, Any]) -> None:
    text = json.dumps({"about": about, "measures": measures}, indent=1)
    (place / NUMBERS).write_text(text + "\n", encoding="utf-8")


# ---- output


def _what_was_small(results: Mapping[str, Any]) -> str:
    data = sorted({str(value["data"]) for value in results.values() if "data" in value})
    cells = counted(len(results), "small cell")
    return f"Quick version: {cells}, on {'; '.join(data) or MADE}. Leave out --quick for the full reproduction.\n"


def recipe_for(paper: str) -> Recipe:
    """The recipe of a paper, by its name."""
    require(paper in RECIPES, f"There is no recipe for {paper!r}. {did_you_mean(paper, RECIPES)}")
    return cast(Recipe, importlib.import_module(f"{RECIPES[paper]}.recipe"))


def expected(paper: str) -> list[Claim]:
    """The claims of a paper."""
    require(paper in RECIPES, f"There is no recipe for {paper!r}. {did_you_mean(paper, RECIPES)}")
    text = files(RECIPES[paper]).joinpath("expected.toml").read_text(encoding="utf-8")
    return [Claim(**claim) for claim in tomllib.loads(text)["claim"]]


def table_of(judged: Sequence[tuple[Claim, float | None]]) -> str:
    """The claims and our measurements as a Markdown table."""
    head = "| Figure | The paper says | Measured | Ours | Wanted | Holds |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {claim.figure} | {claim.says} | {claim.what} | {'not run' if value is None else format(value, '.3g')} "
        f"| {claim.wanted} | {'–' if value is None else 'yes' if claim.holds(value) else '**no**'} |\n"
        for claim, value in judged
    )


def _machine() -> dict[str, str | int]:
    versions = {"corymb": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {**versions, "cores": os.cpu_count() or 1}
