"""Moment descent under stress: every case with several seeds, beside the oracle; a failure must be said.

    python benchmarks/moment_descent.py                      # what is missing in docs/algorithms/moment-descent/stress.jsonl
    python benchmarks/moment_descent.py --seeds 1000:1005 --out calibration.jsonl

A cell is one case with one seed: `MomentDescent(k)` with no other setting, on features as they come, and `FedX` from the
true parameters with as many rounds (the oracle). Kept are the two errors (the largest distance of a model from its true
one, after matching), what was said in the log, and the verdict's numbers. Cells that the results already hold are not run
again. A cell is right if the error is at most 1.1 times the oracle's; wrong cells must have said something.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from corymb.algorithms.fedx import FedX
from corymb.algorithms.moment_descent import MomentDescent
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.data.dataset import FederatedDataset
from corymb.data.ragged import Ragged, offsets_of
from corymb.engines import Placement, VectorisedEngine
from corymb.evaluate import parameter_metrics
from corymb.objectives import LinearRegression
from corymb.objectives.features import Polynomial, RandomFourier
from corymb.settings import InvalidInput

RESULTS = Path(__file__).parents[1] / "docs" / "algorithms" / "moment-descent-stress.jsonl"
RIGHT = 1.1
SMALL = 1e-4
"""Of the separation: errors below it count as equal, as without noise all of them are rounding."""


@dataclass(frozen=True)
class Case:
    """How the data are made, and what is asked for."""

    n: int = 120
    m: int = 30
    d: int = 20
    k: int = 3
    asked: int | None = None
    noise: float = 0.2
    condition: float = 1.0
    scale: float = 1.0
    mean: float = 0.0
    smallest: float | None = None
    separation: float | None = None
    centre: float = 0.0
    start: float | None = None
    features: Any = None
    inputs: int = 4


CASES: Mapping[str, Case] = {
    "as in the paper": Case(n=200, m=50, d=100),
    **{f"condition {c}": Case(condition=c) for c in (1, 10, 100)},
    **{f"scale {s}": Case(scale=s) for s in (0.2, 2, 3)},
    **{f"mean {m}": Case(mean=m) for m in (3, 10)},
    "condition 100, scale 3, mean 10": Case(condition=100, scale=3, mean=10),
    **{f"start of norm {r}": Case(start=r) for r in (1, 10, 100, 1000)},
    **{f"true parameters centred at {r}": Case(centre=r) for r in (3, 30)},
    **{f"smallest cluster {p}": Case(n=200, smallest=p) for p in (0.03, 0.05, 0.1, 0.2)},
    "3 clusters, 2 asked": Case(asked=2),
    "3 clusters, 4 asked": Case(asked=4, m=40),
    "3 clusters, 6 asked": Case(asked=6, m=50),
    "5 clusters, 4 asked": Case(k=5, asked=4, m=50, n=200),
    "1 cluster, 2 asked": Case(k=1, asked=2),
    "1 cluster, 3 asked": Case(k=1, asked=3),
    **{f"noise {s}": Case(noise=s) for s in (0, 0.5, 1, 2)},
    "monomials of degree 2": Case(features=Polynomial(degree=2)),
    "Hermite polynomials of degree 2": Case(features=Polynomial(degree=2, basis="hermite")),
    "monomials of degree 3": Case(features=Polynomial(degree=3), inputs=3, m=50),
    "random Fourier features": Case(features=RandomFourier(width=30, scale=1.0), m=40),
    **{f"separation {s}": Case(separation=s) for s in (0.42, 0.28, 0.14, 0.07)},
    "300 features": Case(n=200, m=50, d=300),
    "60 clients": Case(n=60, m=50),
    "clients of 24": Case(n=400, m=24),
    "8 clusters": Case(k=8, n=400, m=64),
}
FAST = ("condition 100, scale 3, mean 10", "start of norm 1000", "3 clusters, 2 asked", "1 cluster, 2 asked", "noise 2")


def data_of(case: Case, seed: int) -> FederatedDataset:
    """Examples of every client, with its cluster's parameters."""
    rng = np.random.default_rng([seed, 19])
    inputs = case.d if case.features is None else case.inputs
    root = np.diag(np.geomspace(1, case.condition, inputs) ** -0.5) @ np.linalg.qr(rng.normal(size=(inputs, inputs)))[0]
    x = case.mean + case.scale * rng.normal(size=(case.n * case.m, inputs)) @ root
    phi = x if case.features is None else case.features(torch.tensor(x)).numpy()
    weight = rng.normal(size=(case.k, phi.shape[1])) / np.sqrt(phi.shape[1])
    if case.separation is not None:
        gaps = [np.linalg.norm(a - b) for i, a in enumerate(weight) for b in weight[:i]]
        weight = weight.mean(0) + (weight - weight.mean(0)) * case.separation / min(gaps)
    direction = rng.normal(size=phi.shape[1])
    weight = weight + case.centre * direction / np.linalg.norm(direction)
    if case.smallest is None:
        shares = np.full(case.k, 1 / case.k)
    else:
        shares = np.array([case.smallest, *[(1 - case.smallest) / (case.k - 1)] * (case.k - 1)])
    truth = rng.permutation(np.repeat(np.arange(case.k), _counts(shares, case.n)))
    y = (phi * weight[truth].repeat(case.m, 0)).sum(1) + case.noise * rng.normal(size=len(x))
    rows = Ragged(torch.tensor(x), torch.tensor(y), offsets_of(torch.full((case.n,), case.m)))
    names = [f"client {number:04d}" for number in range(case.n)]
    return FederatedDataset(
        name="stress",
        names=names,
        train=rows,
        test=rows,
        task="regression",
        truth=torch.tensor(truth),
        true_parameters={"weight": torch.tensor(weight)},
    )


def _counts(shares: np.ndarray, n: int) -> np.ndarray:
    counts = np.round(shares * n).astype(int)
    counts[-1] += n - counts.sum()
    return counts


class Heard(logging.Handler):
    """What was said in the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def cell(name: str, seed: int) -> dict[str, Any]:
    """Run one case with one seed."""
    torch.set_num_threads(1)
    case, data = CASES[name], data_of(CASES[name], seed)
    truth = data.true_parameters
    assert truth is not None
    inputs, double = data.train.x.shape[1], Placement(dtype=torch.float64)
    objective = LinearRegression(inputs, features=case.features, dtype=torch.float64)
    fed = Federation(VectorisedEngine(objective, data, double))
    heard, logger = Heard(), logging.getLogger("corymb")
    logger.addHandler(heard)
    logger.propagate = False
    d = truth["weight"].shape[1]
    start = None
    if case.start is not None:
        direction = np.random.default_rng([seed, 20]).normal(size=d)
        far = torch.tensor(case.start * direction / np.linalg.norm(direction))
        start = Snapshot(models={"weight": far[None]}, labels=torch.full((case.n,), -1), seed=seed)
    algorithm = MomentDescent(k=case.asked or case.k)
    row: dict[str, Any] = {"case": name, "seed": seed}
    try:
        snapshots = list(drive(algorithm, fed, start, seed=seed))
    except InvalidInput as error:
        return {**row, "said": [f"refused: {error}"], "error": None, "oracle": None, "ratio": None}
    finally:
        logger.removeHandler(heard)
    assert algorithm.then is not None
    begin = Snapshot(models=truth, labels=torch.full((case.n,), -1), seed=seed)
    oracle = list(drive(algorithm.then, fed, begin, seed=seed))[-1]
    moves = [at for at in snapshots if "iteration" in at.notes]
    same = (case.asked or case.k) == case.k
    error = parameter_metrics(snapshots[-1].models, truth)["parameter_error"] if same else None
    best = parameter_metrics(oracle.models, truth)["parameter_error"]
    gaps = torch.pdist(truth["weight"])
    small = SMALL * float(gaps.min()) if len(gaps) else SMALL
    ratio = None if error is None else max(error, small) / max(best, small)
    last = snapshots[-1].notes
    return {
        **row,
        "error": error,
        "oracle": best,
        "ratio": ratio,
        "iterations": len(moves),
        "groups": moves[-1].notes["groups"],
        "spread": last["spread"],
        "nearest": last["nearest"],
        "unsure": last["unsure"],
        "said": heard.said,
    }


def rounded(value: Any) -> Any:
    """Numbers to four digits."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def read(path: Path) -> list[dict[str, Any]]:
    """The cells that results hold."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def run(names: list[str], seeds: range, out: Path, workers: int, work: Callable[[str, int], Any] = cell) -> None:
    """Run what is missing, and write each cell as it is done."""
    done = {(row["case"], row["seed"]) for row in read(out)}
    missing = [(name, seed) for name in names for seed in seeds if (name, seed) not in done]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool, out.open("a", encoding="utf-8") as file:
        running = {pool.submit(work, *job): job for job in missing}
        for number, future in enumerate(as_completed(running), 1):
            file.write(json.dumps(rounded(future.result())) + "\n")
            file.flush()
            print(f"{number}/{len(missing)}  {running[future]}", file=sys.stderr, flush=True)
    order = {name: place for place, name in enumerate(names)}
    rows = sorted(read(out), key=lambda row: (order.get(row["case"], len(order)), row["seed"]))
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each case: final/oracle of each seed, how many are right, said and silent."""
    yield "| case | error / oracle's, by seed | right | said | silent failures | said although right |"
    yield "|---|---|---|---|---|---|"
    for name in dict.fromkeys(row["case"] for row in rows):
        cells = [row for row in rows if row["case"] == name]
        right = [row["ratio"] is not None and row["ratio"] <= RIGHT for row in cells]
        said = [bool(row["said"]) for row in cells]
        ratios = ", ".join("–" if row["ratio"] is None else f"{row['ratio']:.3g}" for row in cells)
        silent = sum(not r and not s for r, s in zip(right, said, strict=True))
        alarm = sum(r and s for r, s in zip(right, said, strict=True))
        yield f"| {name} | {ratios} | {sum(right)} of {len(cells)} | {sum(said)} | {silent} | {alarm} |"


def main() -> None:
    """Run the table."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--seeds", default="0:5")
    ask.add_argument("--out", type=Path, default=RESULTS)
    ask.add_argument("--cases", default="")
    ask.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = ask.parse_args()
    first, last = (int(part) for part in given.seeds.split(":"))
    names = [name for name in CASES if given.cases in name]
    run(names, range(first, last), given.out, given.workers)
    print("\n".join(table(read(given.out))))


if __name__ == "__main__":
    main()
