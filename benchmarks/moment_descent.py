"""Moment descent under stress, and on tables in raw units: every case with several seeds, compared with the oracle.

    python benchmarks/moment_descent.py                     # cells not in papers/moment-descent/results/stress.jsonl
    python benchmarks/moment_descent.py --seeds 1000:1005 --out calibration.jsonl
    python benchmarks/moment_descent.py --tables            # tables of scikit-learn's, by the command line

A cell is one case with one seed: `MomentDescent(k)` with no other setting, on features as they are, and `FedX` from the
true parameters with as many rounds (the oracle). It records the two errors (the largest distance of a model from its
true one, after matching), the log messages, and the verdict's numbers. Cells that the results already hold are not run
again. A cell is right if the error is at most 1.1 times the oracle's; a wrong one must have logged a warning.

A table has real features (scikit-learn's diabetes, wine, breast cancer) in their own units, drawn with replacement for
60 clients of 40 rows. Two or three groups of clients have their own coefficients and intercept; noise is 0.3 of the
targets' spread. The error is the root mean square of prediction − true mean over the test examples; the oracle's is
that of least squares on the training examples of each true group. A table is right if its error is at most 1.05 times
the oracle's.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

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

RESULTS = Path(__file__).parents[1] / "papers" / "moment-descent" / "results"
RIGHT = 1.1
SMALL = 1e-4
"""Errors below this fraction of the separation count as equal: without noise, all of them are rounding errors."""


@dataclass(frozen=True)
class Case:
    """How the data are generated, and the requested k (`asked`)."""

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


class LogCollector(logging.Handler):
    """Collects log messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def cell(name: str, seed: int) -> dict[str, Any]:
    """Run one case with one seed."""
    torch.set_num_threads(1)
    case, data = CASES[name], data_of(CASES[name], seed)
    truth = data.true_parameters
    assert truth is not None
    inputs, double = data.train.x.shape[1], Placement(dtype=torch.float64)
    objective = LinearRegression(inputs, features=case.features, dtype=torch.float64)
    fed = Federation(VectorisedEngine(objective, data, double))
    collector, logger = LogCollector(), logging.getLogger("corymb")
    logger.addHandler(collector)
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
        logger.removeHandler(collector)
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
        "said": collector.lines,
    }


TABLES = {"diabetes": 3, "wine": 3, "breast_cancer": 2}
WITHIN = 1.05


def write_table(name: str, seed: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write a table with planted groups; returns coefficients with intercepts (k d+1), and each client's group."""
    from sklearn import datasets

    k, n, m = TABLES[name], 60, 40
    bunch = datasets.load_diabetes(scaled=False) if name == "diabetes" else getattr(datasets, f"load_{name}")()
    rng = np.random.default_rng([seed, len(name)])
    x = bunch.data[rng.integers(len(bunch.data), size=n * m)]
    truth = rng.permutation(np.arange(n) % k)
    while True:  # until all groups are farther apart than the spread of their targets: 30 rows must suffice to choose
        theta = np.column_stack([rng.normal(size=(k, x.shape[1])) / bunch.data.std(0), rng.normal(size=k)])
        theta[:, -1] += 100 - theta[:, :-1] @ bunch.data.mean(0)
        means = x @ theta[:, :-1].T + theta[:, -1]
        spread = float(means.std(0).mean())
        if min(np.sqrt(np.square(means[:, i] - means[:, j]).mean()) for i in range(k) for j in range(i)) >= spread / 2:
            break
    mean = np.take_along_axis(means, truth.repeat(m)[:, None], 1)[:, 0]
    y = mean + 0.3 * spread * rng.normal(size=len(x))
    head = ["client", *(column.replace(" ", "_") for column in bunch.feature_names), "y"]
    rows = [[f"c{i // m:02d}", *map(repr, map(float, row)), repr(float(y[i]))] for i, row in enumerate(x)]
    path.write_text("\n".join(",".join(row) for row in [head, *rows]) + "\n", encoding="utf-8")
    return theta, truth


def table_cell(name: str, seed: int) -> dict[str, Any]:
    """Run the command line on one table."""
    import corymb

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        theta, truth = write_table(name, seed, place / "table.csv")
        how = ["--client", "client", "--label", "y", "--k", str(TABLES[name]), "--seed", str(seed)]
        command = [sys.executable, "-m", "corymb", "run", str(place / "table.csv"), "moment-descent", *how]
        done = subprocess.run([*command, "--out", str(place / "run")], capture_output=True, text=True, check=False)
        row: dict[str, Any] = {"case": name, "seed": seed}
        if done.returncode:
            return {**row, "said": [done.stderr.strip().splitlines()[-1]], "ratio": None, "error": None, "oracle": None}
        run = corymb.Run.load(place / "run")
        data = corymb.datasets.load(place / "table.csv", seed, client="client", label="y")
        warnings = [line for line in done.stderr.splitlines() if "cannot be told" in line or "not one" in line]
        warnings += [line for line in done.stderr.splitlines() if "two halves" in line]
        errors: dict[str, float] = {"ours": 0.0, "oracle": 0.0}
        for j in range(TABLES[name]):
            members = [c for c in range(len(data)) if truth[int(data.names[c][1:])] == j]
            x, y = _rows(data.train, members)
            design = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(len(x))])
            fit = np.linalg.lstsq(design, y, rcond=None)[0]
            for c in members:
                new, _ = _rows(data.test, [c])
                mean = new @ theta[j, :-1] + theta[j, -1]
                best = np.column_stack([(new - x.mean(0)) / x.std(0), np.ones(len(new))]) @ fit
                errors["oracle"] += float(np.square(best - mean).sum())
                ours = np.asarray(run.predict(new, client=data.names[c]))
                errors["ours"] += float(np.square(ours - mean).sum())
        ratio = (errors["ours"] / errors["oracle"]) ** 0.5
        tests = int(data.test.offsets[-1])
        found = {what: (value / tests) ** 0.5 for what, value in errors.items()}
        return {**row, "error": found["ours"], "oracle": found["oracle"], "ratio": ratio, "said": warnings}


def _rows(part: Any, clients: list[int]) -> tuple[np.ndarray, np.ndarray]:
    cuts = part.offsets.tolist()
    places = [place for c in clients for place in range(cuts[c], cuts[c + 1])]
    return part.x[places].double().numpy(), part.y[places].double().numpy()


def rounded(value: Any) -> Any:
    """Round all numbers to four digits."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def read(path: Path) -> list[dict[str, Any]]:
    """The cells in a file of results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def run(names: list[str], seeds: range, out: Path, workers: int, work: Callable[[str, int], Any] = cell) -> None:
    """Run the missing cells, and write each as soon as it is done."""
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


def table(rows: list[dict[str, Any]], right_below: float) -> Iterator[str]:
    """A line for each case: error / oracle's by seed, and how many cells are right, warned, or silently wrong."""
    yield "| case | error / oracle's, by seed | right | warned | silent failures | warned although right |"
    yield "|---|---|---|---|---|---|"
    for name in dict.fromkeys(row["case"] for row in rows):
        cells = sorted((row for row in rows if row["case"] == name), key=lambda row: row["seed"])
        right = [row["ratio"] is not None and row["ratio"] <= right_below for row in cells]
        warnings = [bool(row["said"]) for row in cells]
        ratios = ", ".join("–" if row["ratio"] is None else f"{row['ratio']:.3g}" for row in cells)
        silent_failures = sum(not r and not s for r, s in zip(right, warnings, strict=True))
        alarm = sum(r and s for r, s in zip(right, warnings, strict=True))
        yield f"| {name} | {ratios} | {sum(right)} of {len(cells)} | {sum(warnings)} | {silent_failures} | {alarm} |"


def main() -> None:
    """Run the table."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--tables", action="store_true", help="tables by the command line, ten seeds")
    ask.add_argument("--seeds", help="first:last, without the last; 10:15, or 0:10 with --tables")
    ask.add_argument(
        "--out", type=Path, help="results, a line for each cell; in papers/moment-descent/results if not given"
    )
    ask.add_argument("--cases", default="", help="only cases with this in their names")
    ask.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = ask.parse_args()
    kind, cases = ("tables", list(TABLES)) if given.tables else ("stress", list(CASES))
    seeds = given.seeds or ("0:10" if given.tables else "10:15")
    first, last = (int(part) for part in seeds.split(":"))
    out = given.out or RESULTS / f"{kind}.jsonl"
    names = [name for name in cases if given.cases in name]
    run(names, range(first, last), out, given.workers, table_cell if given.tables else cell)
    text = "\n".join(table(read(out), WITHIN if given.tables else RIGHT)) + "\n"
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
