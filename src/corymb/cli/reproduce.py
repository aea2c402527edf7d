"""`corymb reproduce`: run a paper's experiments, draw its figures, and compare its claims with our measurements.

A recipe is a module of `corymb.recipes` with `jobs`, `work`, `measures` and `draw`; the paper's claims are in
`papers/<paper>/expected.toml`. Jobs run in processes of their own, one thread each, and are kept as they end
(`corymb.recipes.cells`): the same command goes on where it was stopped. Files written:

cells/         the results of each job
numbers.json   every measure, with machine and versions
curves.json    the results of every job, to six digits
table.md       the paper's claims, our measurements, and whether they agree
figures.png    the paper's figures
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

import torch

from corymb import __version__
from corymb.recipes.cells import rounded, run_cells
from corymb.runs.folder.layout import check_free
from corymb.settings import InvalidInput, did_you_mean, require


class Recipe(Protocol):
    """How a paper's experiments are run. Results are plain numbers by job."""

    def jobs(self, seeds: int) -> list[str]:
        """The names of all jobs."""
        ...

    def work(self, job: str) -> dict[str, Any]:
        """Run one job."""
        ...

    def measures(self, results: Mapping[str, Any]) -> dict[str, float]:
        """The numbers that the claims are about."""
        ...

    def draw(self, results: Mapping[str, Any], path: Path) -> None:
        """Draw the paper's figures."""
        ...


RECIPES: Mapping[str, str] = MappingProxyType(
    {"moment-descent": "corymb.recipes.moment_descent", "uifca": "corymb.recipes.uifca"}
)


CELLS = "cells"


class Claim(NamedTuple):
    """A sentence of the paper, and the bound within which a measure agrees with it."""

    figure: str
    says: str
    what: str
    measure: str
    at_least: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a measured value agrees."""
        low, high = self.at_least, self.at_most
        return (low is None or value >= low) and (high is None or value <= high)

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"≥ {self.at_least:g}" if self.at_most is None else f"≤ {self.at_most:g}"


class Outcome(NamedTuple):
    """The outcome of a reproduction."""

    claims: list[tuple[Claim, float | None]]
    table: str
    folder: Path
    seconds: float
    left: int = 0
    """Jobs that were not run, or failed."""

    @property
    def hold(self) -> int:
        """How many of the paper's claims hold."""
        return sum(value is not None and claim.holds(value) for claim, value in self.claims)


def reproduce(
    paper: str,
    *,
    out: Path | None = None,
    seeds: int = 10,
    workers: int | None = None,
    seconds: float | None = None,
) -> None:
    """Run a paper's experiments and compare its claims with our numbers.

    Parameters
    ----------
    paper
        The paper: moment-descent or uifca.
    out
        A folder for numbers, table and figures: new, empty or this command's own; runs/reproduce-PAPER if not given.
    seeds
        Number of seeds for the main claim.
    workers
        Number of processes; one per core if not given.
    seconds
        Stop after this time; the same command goes on later.
    """
    folder = out or Path("runs") / f"reproduce-{paper}"
    outcome = run_recipe(paper, folder, seeds=seeds, workers=workers, seconds=seconds)
    print(outcome.table)
    if outcome.left:
        print(f"{outcome.left} jobs are left: the same command runs them.")
    print(f"{outcome.hold} of {len(outcome.claims)} claims hold; {outcome.seconds:.0f} s; {outcome.folder}")


def run_recipe(
    paper: str, out: Path, *, seeds: int = 10, workers: int | None = None, seconds: float | None = None
) -> Outcome:
    """Run all jobs of a paper's recipe that `out` does not have yet, and write numbers, table and figures into it."""
    require(seeds >= 1, f"seeds must be at least 1, got {seeds}.")
    recipe, claims = recipe_for(paper), expected(paper)
    folder = out if (out / CELLS).is_dir() else check_free(out)
    began = time.monotonic()
    jobs = recipe.jobs(seeds)
    work = f"{RECIPES[paper]}:work"
    cells = run_cells(work, jobs, folder / CELLS, workers=workers or os.cpu_count() or 1, seconds=seconds)
    taken = time.monotonic() - began
    missing = [*cells.failed, *cells.left]
    if missing and not getattr(recipe, "PARTIAL", False):
        why = next(iter(cells.failed.values()), "there was no time")
        raise InvalidInput(
            f"{len(missing)} of {len(jobs)} jobs did not end ({missing[0]}: {why}): run the command again."
        )
    results = cells.results
    measures = recipe.measures(results)
    judged = [(claim, measures.get(claim.measure)) for claim in claims]
    table = table_of(judged)
    if hasattr(recipe, "tables"):
        table += "\n" + recipe.tables(results)
    about = {"paper": paper, "seeds": seeds, "seconds": round(taken, 1), "jobs": len(results), **_machine()}
    numbers = json.dumps({"about": about, "measures": rounded(measures)}, indent=1)
    (folder / "numbers.json").write_text(numbers + "\n", encoding="utf-8")
    (folder / "curves.json").write_text(json.dumps(rounded(results)) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(table, encoding="utf-8")
    recipe.draw(results, folder / "figures.png")
    return Outcome(judged, table, folder, taken, len(missing))


def recipe_for(paper: str) -> Recipe:
    """The recipe of a paper, by its name."""
    require(paper in RECIPES, f"There is no recipe for {paper!r}. {did_you_mean(paper, RECIPES)}")
    return cast(Recipe, importlib.import_module(RECIPES[paper]))


def expected(paper: str) -> list[Claim]:
    """What the paper claims."""
    package = Path(__file__).parents[1]
    places = package / "recipes" / "expected" / f"{paper}.toml", package.parents[1] / "papers" / paper / "expected.toml"
    place = next((path for path in places if path.exists()), places[-1])  # in a wheel, in a checkout
    if not place.is_file():
        raise InvalidInput(f"There is no papers/{paper}/expected.toml: run `corymb reproduce` from a checkout.")
    with place.open("rb") as file:
        return [Claim(**claim) for claim in tomllib.load(file)["claim"]]


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
