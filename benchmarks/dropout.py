"""Clients that do not answer, drawn again in every call: 10, 30 and 50 per cent, every algorithm, five seeds.

`python -m benchmarks.dropout` runs the cells missing from `benchmarks/results/dropout.json`: small runs of every
algorithm with 28 clients, which must run to their end, and IFCA on rotated digits, which must find the true clusters.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

import torch
from benchmarks.attacks import ROUNDS, K, honest_result, setting
from benchmarks.kept import arguments, run_kept

import corymb
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.engines import VectorisedEngine
from corymb.faults import Fault, inject
from corymb.testing.cases import CASES, SIZES, TRUTH
from corymb.testing.engines import DOUBLE
from corymb.testing.fault_matrix import ALGORITHMS
from corymb.testing.small_data import classification, regression
from corymb.trees import leaves

SHARES, SEEDS = (0.1, 0.3, 0.5), 5
TIMES = 4
"""The seven clients of the contract suite are repeated this many times."""
DIGITS = "IFCA on digits"


def work(name: str) -> dict[str, object]:
    """`ALGORITHM/SHARE/SEED`."""
    logging.disable(logging.WARNING)
    algorithm, share, seed = name.split("/")
    fault = [Fault("dropout", share=float(share), always=False)]
    if algorithm == DIGITS:
        engine, truth = setting(int(seed))
        nobody = torch.empty(0, dtype=torch.int64)
        ifca = corymb.IFCA(k=K, rounds=ROUNDS, init="one-shot")
        return {"problem": "", **honest_result(ifca, inject(engine, fault, int(seed)), truth, nobody, int(seed))}
    return {"problem": problem(algorithm, fault, int(seed))}


def problem(algorithm: str, faults: list[Fault], seed: int) -> str:
    """What is wrong with a small run of an algorithm; empty if nothing is."""
    case = CASES[ALGORITHMS[algorithm]]
    made, truth = case.algorithm, TIMES * TRUTH
    data = (regression if case.learns == "line" else classification)(TIMES * SIZES, truth)
    made = replace(made, groups=truth) if isinstance(made, corymb.Oracle) else made
    fed = Federation(inject(VectorisedEngine(case.objective(), data, DOUBLE), faults, seed))
    try:
        *_, last = drive(made, fed, seed=seed)
    except Exception as error:  # any error that ends a run is a finding
        return f"ended: {type(error).__name__}: {str(error)[:100]}"
    if not all(bool(torch.isfinite(value).all()) for value in leaves(last.models)):
        return "a model is not finite"
    return ""


def main() -> int:
    """Run the missing cells, and print what went wrong and how well clusters were found."""
    args = arguments(__doc__, "benchmarks/results/dropout.json").parse_args()
    names = [f"{one}/{share}/{seed}" for one in (*ALGORITHMS, DIGITS) for share in SHARES for seed in range(SEEDS)]
    found = run_kept("benchmarks.dropout:work", names, args)
    wrong = {name: result["problem"] for name, result in found.items() if result["problem"]}
    for name, why in wrong.items():
        print(f"WRONG  {name}: {why}")
    for share in SHARES:
        own = [result for name, result in found.items() if name.startswith(f"{DIGITS}/{share}/")]
        if own:
            mean = sum(result["accuracy"] for result in own) / len(own)
            least = min(result["ari"] for result in own)
            print(f"{share:.0%} lost: ARI at least {least:.3f}, accuracy {mean:.1%}, seeds {len(own)}")
    print(f"{len(found)} runs, {len(wrong)} went wrong")
    return int(bool(wrong) or len(found) < len(names))


if __name__ == "__main__":
    sys.exit(main())
