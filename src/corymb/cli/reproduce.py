"""`corymb reproduce`: run a paper's experiments, draw its figures, and compare its claims with our measurements.

A recipe is a module of `corymb.recipes` with `jobs`, `work`, `measures` and `draw`; the paper's claims are in
`papers/<paper>/expected.toml`. Jobs run in processes of their own, one thread each. Files written:

numbers.json   every measure, with machine and versions
curves.json    the results of every job, to six digits
table.md       the paper's claims, our measurements, and whether they agree
figures.png    the paper's figures
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import platform
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

import torch

from corymb import __version__
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


RECIPES: Mapping[str, str] = MappingProxyType({"moment-descent": "corymb.recipes.moment_descent"})


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

    claims: list[tuple[Claim, float]]
    table: str
    folder: Path
    seconds: float

    @property
    def hold(self) -> int:
        """How many of the paper's claims hold."""
        return sum(claim.holds(value) for claim, value in self.claims)


def reproduce(paper: str, *, out: Path | None = None, seeds: int = 10, workers: int | None = None) -> None:
    """Run a paper's experiments and compare its claims with our numbers.

    Parameters
    ----------
    paper
        The paper: moment-descent.
    out
        A new or empty folder for numbers, table and figures; runs/reproduce-PAPER if not given.
    seeds
        Number of seeds for the main claim.
    workers
        Number of processes; one per core if not given.
    """
    outcome = run_recipe(paper, out or Path("runs") / f"reproduce-{paper}", seeds=seeds, workers=workers)
    print(outcome.table)
    print(f"{outcome.hold} of {len(outcome.claims)} claims hold; {outcome.seconds:.0f} s; {outcome.folder}")


def run_recipe(paper: str, out: Path, *, seeds: int = 10, workers: int | None = None) -> Outcome:
    """Run all jobs of a paper's recipe and write numbers, table and figures into `out`."""
    require(seeds >= 1, f"seeds must be at least 1, got {seeds}.")
    recipe, claims, folder = recipe_for(paper), expected(paper), check_free(out)
    began = time.monotonic()
    results = _run_all(paper, recipe.jobs(seeds), workers or os.cpu_count() or 1)
    seconds = time.monotonic() - began
    measures = recipe.measures(results)
    judged = [(claim, measures[claim.measure]) for claim in claims]
    table = table_of(judged)
    folder.mkdir(parents=True, exist_ok=True)
    about = {"paper": paper, "seeds": seeds, "seconds": round(seconds, 1), **_machine()}
    numbers = json.dumps({"about": about, "measures": _rounded(measures)}, indent=1)
    (folder / "numbers.json").write_text(numbers + "\n", encoding="utf-8")
    (folder / "curves.json").write_text(json.dumps(_rounded(results)) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(table, encoding="utf-8")
    recipe.draw(results, folder / "figures.png")
    return Outcome(judged, table, folder, seconds)


def recipe_for(paper: str) -> Recipe:
    """The recipe of a paper, by its name."""
    require(paper in RECIPES, f"There is no recipe for {paper!r}. {did_you_mean(paper, RECIPES)}")
    return cast(Recipe, importlib.import_module(RECIPES[paper]))


def expected(paper: str) -> list[Claim]:
    """What the paper claims."""
    place = Path(__file__).parents[3] / "papers" / paper / "expected.toml"
    if not place.is_file():
        raise InvalidInput(f"There is no papers/{paper}/expected.toml: run `corymb reproduce` from a checkout.")
    with place.open("rb") as file:
        return [Claim(**claim) for claim in tomllib.load(file)["claim"]]


def table_of(judged: Sequence[tuple[Claim, float]]) -> str:
    """The claims and our measurements as a Markdown table."""
    head = "| Figure | The paper says | Measured | Ours | Wanted | Holds |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {claim.figure} | {claim.says} | {claim.what} | {value:.3g} | {claim.wanted} "
        f"| {'yes' if claim.holds(value) else '**no**'} |\n"
        for claim, value in judged
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _machine() -> dict[str, str | int]:
    versions = {"corymb": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {**versions, "cores": os.cpu_count() or 1}


def _run_all(paper: str, jobs: Sequence[str], workers: int) -> dict[str, Any]:
    """The results of all jobs in their order, whichever finishes first."""
    found: dict[str, Any] = {}
    if workers == 1:
        for job in jobs:
            found[job] = _work(paper, job)
            _tell(len(found), len(jobs), job)
        return found
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        running = {pool.submit(_work, paper, job): job for job in jobs}
        try:
            for done in as_completed(running):
                found[running[done]] = done.result()
                _tell(len(found), len(jobs), running[done])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {job: found[job] for job in jobs}


def _work(paper: str, job: str) -> dict[str, Any]:
    return recipe_for(paper).work(job)


def _tell(done: int, total: int, job: str) -> None:
    print(f"{done}/{total}  {job}", file=sys.stderr, flush=True)
