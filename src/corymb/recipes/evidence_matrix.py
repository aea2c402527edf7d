"""The stress matrix by cell: does a rule find the clusters, and is its result as good as the better baseline?

A cell is `case/method/seed`. A cell is right if it finds the true number of clusters with an adjusted Rand index of at
least 0.95, or one model where the oracle is less than a point above FedAvg (for regression: FedAvg's error is within
10 % of the oracle's). It is near if its score is within a point (its error within 10 %) of the better of FedAvg and the
oracle.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from corymb.recipes.cells import run_cells
from corymb.recipes.evidence_cases import CASES, WITHOUT
from corymb.runs.defaults import configure
from corymb.runs.fit import fit

METHODS = {"ifca": {"k": "auto"}, "sr-fca": {"threshold": "auto"}}
BASELINES = ("fedavg", "oracle")
POINT, TENTH = 0.01, 0.1
WORK = "corymb.recipes.evidence_matrix:work"


def work(name: str) -> dict[str, Any]:
    """Run one cell: a case, a method and a seed."""
    case, method, seed = name.split("/")
    data = CASES[plain(case)].make(int(seed))
    run = fit(configure(method, data, **METHODS.get(method, {})), data, seed=int(seed), evaluate_every=0)
    found = [row["notes"] for row in run.history if "gain_by_cluster" in row["notes"]]
    score = next(run.metrics[key] for key in ("test_accuracy", "test_squared_error") if key in run.metrics)
    return {
        "k": run.snapshot.k,
        "ari": run.metrics["ari"],
        "score": score,
        "accuracy": "test_accuracy" in run.metrics,
        "rounds": run.ledger.rounds,
        "bytes_down": run.ledger.bytes_down,
        "bytes_up": run.ledger.bytes_up,
        "clients": len(run.names),
        "search": sum("clusters" in row["notes"] and not row["stage"].startswith("refine") for row in run.history),
        "evidence": found[-1]["evidence"] if found else "",
    }


def named(case: str) -> str:
    """The name of a case as used in the name of a cell."""
    return case.replace("/", ":")


def plain(case: str) -> str:
    """The reverse of `named`."""
    return case.replace(":", "/")


def cells(methods: Sequence[str], seeds: Sequence[int], cases: Sequence[str] = tuple(CASES)) -> list[str]:
    """The names of the cells of some methods, and of the baselines they are judged by."""
    return [f"{named(case)}/{method}/{seed}" for seed in seeds for case in cases for method in (*BASELINES, *methods)]


class Judged(NamedTuple):
    """The verdict on one cell."""

    right: bool
    near: bool
    invented: bool


def judged(case: str, found: Mapping[str, Any], fedavg: float, oracle: float) -> Judged:
    """Judge a result: whether it is right, near the better baseline, and whether clusters were invented."""
    clusters, score = CASES[case].clusters, found["score"]
    exact = found["k"] == clusters and found["ari"] >= 0.95
    if found["accuracy"]:
        nothing_to_gain, near = oracle - fedavg < POINT, score >= max(oracle, fedavg) - POINT
    else:
        nothing_to_gain, near = fedavg <= oracle * (1 + TENTH), score <= min(oracle, fedavg) * (1 + TENTH)
    return Judged(exact or (found["k"] == 1 and nothing_to_gain), near, clusters == 1 and found["k"] > 1)


def summary(results: Mapping[str, Any], method: str) -> dict[str, list[tuple[int, Mapping[str, Any], Judged]]]:
    """For each case, the seed, the result and the verdict of every cell of a method."""
    rows: dict[str, list[tuple[int, Mapping[str, Any], Judged]]] = {}
    for name, found in results.items():
        case, which, seed = name.split("/")
        base = [f"{case}/{baseline}/{seed}" for baseline in BASELINES]
        if which != method or not all(other in results for other in base):
            continue
        verdict = judged(plain(case), found, *(results[other]["score"] for other in base))
        rows.setdefault(plain(case), []).append((int(seed), found, verdict))
    return rows


def table(results: Mapping[str, Any], methods: Sequence[str] = tuple(METHODS)) -> str:
    """A Markdown table with a row for each case, and the number of cells of each method that are right and near."""
    by_method = {method: summary(results, method) for method in methods}
    head = "| case | clusters | FedAvg | oracle |" + "".join(f" {m}: k | ARI | score | right |" for m in methods)
    lines = [head, "|---|---|---|---|" + "---|---|---|---|" * len(methods)]
    for case in CASES:
        scores = {
            base: [v["score"] for n, v in results.items() if n.startswith(f"{named(case)}/{base}/")]
            for base in BASELINES
        }
        if not scores["fedavg"]:
            continue
        means = " | ".join(_mean(scores[base]) for base in BASELINES)
        line = f"| {CASES[case].about} | {CASES[case].clusters} | {means} |"
        for rows in by_method.values():
            line += _columns(rows.get(case, []))
        lines.append(line)
    for method, rows in by_method.items():
        flat = [verdict for found in rows.values() for _, _, verdict in found]
        if flat:
            right, near, invented = (sum(getattr(v, field) for v in flat) for field in Judged._fields)
            none = sum(1 for case, found in rows.items() if case in WITHOUT for _ in found)
            lines += ["", f"{method}: right in {right} of {len(flat)} cells, near in {near}; clusters invented in "
                      f"{invented} of {none} cells without clusters."]  # fmt: skip
    return "\n".join(lines) + "\n"


def _columns(found: Sequence[tuple[int, Mapping[str, Any], Judged]]) -> str:
    if not found:
        return " | | | |"
    ks = ", ".join(str(result["k"]) for _, result, _ in found)
    ari = ", ".join(f"{result['ari']:.2f}" for _, result, _ in found)
    right = sum(verdict.right for _, _, verdict in found)
    return f" {ks} | {ari} | {_mean([result['score'] for _, result, _ in found])} | {right} of {len(found)} |"


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f}"


def main() -> None:
    """Run the cells that are missing, and print the table."""
    parser = argparse.ArgumentParser(description="The stress matrix of rules that find clusters.")
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"), help="folder of the cells")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--more_seeds", type=int, nargs="*", default=[], help="for the cases without clusters")
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=None)
    args = parser.parse_args()
    names = cells(args.methods, args.seeds, args.cases)
    names += cells(args.methods, args.more_seeds, [case for case in WITHOUT if case in args.cases])
    names.sort(key=lambda name: not CASES[plain(name.split("/")[0])].needs_files)  # the longest first
    done = run_cells(WORK, names, args.out, workers=args.workers, seconds=args.seconds)
    print(table(done.results, args.methods))
    if done.left or done.failed:
        print(f"{len(done.left)} cells left, {len(done.failed)} failed: {json.dumps(done.failed)}", file=sys.stderr)


if __name__ == "__main__":
    main()
