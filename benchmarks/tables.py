"""Default settings on real tables, compared with tuned scikit-learn models of the same kind.

    python benchmarks/table_sources.py FOLDER             # once: the tables as csv files
    python benchmarks/tables.py FOLDER --workers 2        # cells that have been run are not run again
    python benchmarks/tables.py FOLDER --set tuning --splits 2 --only fedavg,alone
    python benchmarks/tables.py FOLDER --set judged --workers 16 --seconds 500 --out cells.json
    python benchmarks/tables.py FOLDER --show             # the table as Markdown

A cell is a table, a split of every client's rows into training and test rows (a seed), and a method: every algorithm
with its default settings (k = 2 if it needs k), and scikit-learn trained on the pooled rows or on each client's rows
alone, with its regularisation chosen by cross-validation. The error is 1 - accuracy or the squared error, averaged over
clients. Results are kept in benchmarks/results/tables.json, or in the file named by `--out`; what is missing there is
read from the former, so that a file from another machine holds all known results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from benchmarks.table_sources import FRESH, JUDGE, STRANGERS, TABLES, TUNING

RESULTS = Path(__file__).parent / "results" / "tables.json"
POOLED, PER_CLIENT = "scikit-learn pooled", "scikit-learn per client"
ALPHAS = np.logspace(-3, 5, 25)
FOLDS = 5
NOT_FOR_TABLES = ("moment-descent", "kfed", "uifca", "clustergan")
"""Algorithms for other models: linear regression by moments, and densities."""
Rows = list[tuple[np.ndarray, np.ndarray]]


def methods() -> list[str]:
    """Every algorithm that runs on a table without known true clusters, and the two references."""
    from corymb.algorithms.catalogue import CATALOGUE

    ours = [name for name, entry in CATALOGUE.items() if entry.role != "oracle" and name not in NOT_FOR_TABLES]
    return [POOLED, PER_CLIENT, *ours]


def load(folder: Path, name: str, split: int) -> Any:
    """A table as a data set, split into training and test rows by a seed."""
    import corymb

    return corymb.datasets.load(
        folder / f"{name}.csv", client="client", label="label", task=TABLES[name].task, seed=split
    )


def cell(folder: Path, name: str, split: int, method: str) -> dict[str, Any]:
    """The error of a method on a table, and its duration."""
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    data, began = load(folder, name, split), time.perf_counter()
    found = _reference(data, method) if method in (POOLED, PER_CLIENT) else _ours(data, method, split)
    return {**found, "seconds": round(time.perf_counter() - began, 1)}


def _ours(data: Any, method: str, split: int) -> dict[str, Any]:
    import corymb
    from corymb.algorithms.catalogue import CATALOGUE

    needed = {"k": 2} if "k" in {field.name for field in fields(CATALOGUE[method].algorithm)} else {}
    run = corymb.fit(corymb.configure(method, data, **needed), data, seed=split, until="converged", threads=1)
    accuracy, squared = run.metrics.get("test_accuracy"), run.metrics.get("test_squared_error")
    error = 1 - accuracy if accuracy is not None else squared
    return {
        "error": error if error is not None and math.isfinite(error) else None,
        "stopped": run.stopped,
        "rounds": len(run.history),
        "model": run.config["model"],
        "clusters": run.clusters,
    }


# ---- scikit-learn


def _reference(data: Any, method: str) -> dict[str, Any]:
    from corymb.data.schema import schema_of
    from corymb.runs.learners import default_model

    classes, kind = data.task == "classification", default_model(schema_of(data), len(data.train.y))
    train, test = _standardised(*(_by_client(part) for part in (data.train, data.test)))
    fit = _ridge if not classes else _logistic if kind == "linear" else _perceptron
    if method == POOLED:
        everybody = fit(*(np.concatenate(parts) for parts in zip(*train, strict=True)))
        models = [everybody] * len(train)
    else:
        models = [fit(x, y) for x, y in train]
    scored = [(model.predict(x), y) for model, (x, y) in zip(models, test, strict=True) if len(y)]
    errors = [np.mean(guess != y) if classes else np.mean((guess - y) ** 2) for guess, y in scored]
    return {"error": float(np.mean(errors)), "model": fit.__name__.strip("_")}


def _by_client(part: Any) -> Rows:
    ends = part.offsets.tolist()
    x, y = part.x.double().numpy(), part.y.numpy()
    return [(x[a:b], y[a:b]) for a, b in pairwise(ends)]


def _standardised(train: Rows, test: Rows) -> tuple[Rows, Rows]:
    pooled = np.concatenate([x for x, _ in train])
    mean, scale = pooled.mean(0), pooled.std(0)
    scale[scale < 1e-9] = 1
    return tuple([((x - mean) / scale, y) for x, y in rows] for rows in (train, test))  # type: ignore[return-value]


def _ridge(x: np.ndarray, y: np.ndarray) -> Any:
    from sklearn.dummy import DummyRegressor
    from sklearn.linear_model import RidgeCV

    return DummyRegressor().fit(x, y) if len(y) < 3 else RidgeCV(alphas=ALPHAS).fit(x, y)


def _logistic(x: np.ndarray, y: np.ndarray) -> Any:
    from sklearn.linear_model import LogisticRegression

    return _tuned(lambda c: LogisticRegression(C=c, max_iter=300), [1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0], x, y)


def _perceptron(x: np.ndarray, y: np.ndarray) -> Any:
    from sklearn.neural_network import MLPClassifier

    def make(alpha: float) -> Any:
        return MLPClassifier((32,), alpha=alpha, max_iter=100, early_stopping=len(y) > 1000, random_state=0)

    return _tuned(make, [1e-4, 1e-2, 1.0], x, y)


def _tuned(make: Callable[[float], Any], values: list[float], x: np.ndarray, y: np.ndarray) -> Any:
    """The model with the value that cross-validation prefers; with too few rows for that, the strongest but one."""
    from sklearn.dummy import DummyClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    _, counts = np.unique(y, return_counts=True)
    if len(counts) == 1:
        return DummyClassifier().fit(x, y)
    folds = int(min(FOLDS, counts.min()))
    if folds < 2:
        return make(values[1]).fit(x, y)
    parts = StratifiedKFold(folds, shuffle=True, random_state=0)
    return make(max(values, key=lambda value: cross_val_score(make(value), x, y, cv=parts).mean())).fit(x, y)


# ---- all cells


def read(*places: Path) -> dict[str, dict[str, Any]]:
    """The known results, by `table/split/method`; if several files have one, the last counts."""
    known: dict[str, dict[str, Any]] = {}
    for place in places:
        known |= json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    return known


def run(folder: Path, wanted: list[str], workers: int, out: Path, seconds: float) -> None:
    """Run the cells that are not known yet, until `seconds` have passed; each is written as soon as it is done."""
    known = read(RESULTS, out)
    todo = [one for one in wanted if one not in known]
    out.parent.mkdir(parents=True, exist_ok=True)
    end, done = time.monotonic() + seconds, 0
    with ProcessPoolExecutor(workers) as pool:
        jobs = {pool.submit(_timely, folder, one, end): one for one in todo}
        for job in as_completed(jobs):
            if (found := job.result()) is None:
                continue
            known[jobs[job]], done = found, done + 1
            beside = out.with_suffix(".part")
            beside.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n", encoding="utf-8")
            os.replace(beside, out)
            print(f"{done}/{len(todo)} {jobs[job]}: {found}", flush=True)
    print(f"{done} cells are new in {out}, {len(todo) - done} are left")


def _timely(folder: Path, one: str, end: float) -> dict[str, Any] | None:
    """Run a cell if there is time to start it."""
    if time.monotonic() > end:
        return None
    name, split, method = one.split("/")
    return cell(folder, name, int(split), method)


def shown(folder: Path, names: list[str], splits: int, known: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The lines of the table."""
    left, right = ["table", "task"], ["clients", "rows", "features"]
    right += ["scikit-learn, pooled", "FedAvg", "scikit-learn, per client", "alone"]
    yield "| " + " | ".join([*left, *right, "worst other", "runs of others", "verdict"]) + " |"
    yield "|" + "---|" * len(left) + "---:|" * len(right) + "---|---:|---|"
    for name in names:
        errors = {method: _errors(known, name, method, splits) for method in methods()}
        if not any(np.isnan(errors[method]).any() for method in (POOLED, PER_CLIENT, "fedavg", "alone")):
            yield "| " + " | ".join(_row(name, load(folder, name, 0), errors)) + " |"


def _errors(known: dict[str, dict[str, Any]], name: str, method: str, splits: int) -> np.ndarray:
    """The error in each split: NaN if it was not run, infinite if it could not be scored."""
    cells = [known.get(f"{name}/{split}/{method}") for split in range(splits)]
    return np.array([np.nan if one is None else np.inf if one["error"] is None else one["error"] for one in cells])


def allowed(reference: np.ndarray) -> float:
    """How much worse than a reference is acceptable: 5 %, or one standard error over the splits."""
    return max(0.05 * float(reference.mean()), float(reference.std(ddof=1)) / len(reference) ** 0.5)


def _row(name: str, data: Any, errors: dict[str, np.ndarray]) -> list[str]:
    mean = {method: float(errors[method].mean()) for method in (POOLED, PER_CLIENT, "fedavg", "alone")}
    most = {"fedavg": POOLED, "alone": PER_CLIENT}
    failed = [method for method, like in most.items() if mean[method] > mean[like] + allowed(errors[like])]
    worse = max(most, key=lambda method: mean[method])
    others = {method: ~np.isnan(values) for method, values in errors.items() if method not in mean}
    # The difference from the worse of the two in the same splits, since splits differ more than methods do.
    gap = {m: float((errors[m][ran] - errors[worse][ran]).mean()) for m, ran in others.items() if ran.any()}
    failed += [method for method, value in gap.items() if value > allowed(errors[worse])]
    worst = max(gap, key=lambda method: gap[method], default="")
    done, wanted = int(sum(ran.sum() for ran in others.values())), sum(map(len, others.values()))
    so_far = "" if done == wanted else " so far"
    return [
        f"{name}: {TABLES[name].what}",
        data.task,
        str(len(data)),
        f"{len(data.train.y) + len(data.test.y):,}",
        str(len(data.feature_names)),
        *(_text(errors[method]) for method in (POOLED, "fedavg", PER_CLIENT, "alone")),
        f"{worst} {100 * gap[worst] / mean[worse]:+.0f} %" if worst else "",
        f"{done} of {wanted}",
        f"not met: {', '.join(failed)}" if failed else f"met{so_far}",
    ]


def _text(values: np.ndarray) -> str:
    return f"{values.mean():.4g} ± {values.std(ddof=1) / len(values) ** 0.5:.2g}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", choices=["tuning", "judge", "fresh", "judged", "strangers"], default="judge")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", default="", help="methods, with commas between them")
    parser.add_argument("--tables", default="", help="tables, with commas between them")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no cell after this time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file for results")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    sets = {"tuning": TUNING, "judge": JUDGE, "fresh": FRESH, "judged": JUDGE | FRESH, "strangers": STRANGERS}
    names = [name for name in given.tables.split(",") if name] or list(sets[given.set])
    if missing := [name for name in names if not (given.folder / f"{name}.csv").exists()]:
        print(f"left out, not in {given.folder}: {', '.join(missing)}")
        names = [name for name in names if name not in missing]
    if given.show:
        print("\n".join(shown(given.folder, names, given.splits, read(RESULTS, given.out))))
        return
    only = [name for name in given.only.split(",") if name] or methods()
    # The slowest first, so that no worker has to run them at the end.
    cells = [f"{name}/{split}/{method}" for method in reversed(only) for name in names for split in range(given.splits)]
    run(given.folder, cells, given.workers, given.out, given.seconds)


if __name__ == "__main__":
    main()
