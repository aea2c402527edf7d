"""Is the advice right? Four data sets for which the right advice is known, with ten seeds each.

    python benchmarks/advise.py [--out FILE.jsonl] [--cases digits own-lines] [--seeds 0-9]

Prints a table of verdicts, with `✓` for a right one. With --out, cells that the file already has are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from corymb import advise
from corymb.cli.run import seeds_in
from corymb.recipes.advice_cases import CASES


def cell(name: str, seed: int) -> dict[str, object]:
    began = time.process_time()
    advice = advise(CASES[name].make(seed), seed=seed, threads=1)
    right = (advice.verdict, advice.clusters) == (CASES[name].verdict, CASES[name].clusters)
    values = {name: round(candidate.value, 4) for name, candidate in advice.candidates.items()}
    return {
        "case": name,
        "seed": seed,
        "verdict": advice.verdict,
        "clusters": advice.clusters,
        "right": right,
        "losses": values,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", default="0-9")
    args = parser.parse_args()
    known = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out and args.out.exists() else []
    cells = {(one["case"], one["seed"]): one for one in known}
    seeds = seeds_in(args.seeds)
    for name in args.cases:
        for seed in seeds:
            if (name, seed) not in cells:
                cells[name, seed] = cell(name, seed)
                print(json.dumps(cells[name, seed]), flush=True)
                if args.out:
                    with args.out.open("a") as file:
                        file.write(json.dumps(cells[name, seed]) + "\n")
    print(f"\n| data | right advice | {' | '.join(map(str, seeds))} | right | seconds |")
    print("|---" * (len(seeds) + 4) + "|")
    for name in args.cases:
        row = [cells[name, seed] for seed in seeds]
        cells_of_row = ["✓" if one["right"] else f"{one['verdict']} ({one['clusters']})" for one in row]
        wanted = f"{CASES[name].verdict}{f' ({CASES[name].clusters})' if CASES[name].clusters > 1 else ''}"
        right = f"{sum(one['right'] for one in row)} of {len(row)}"
        seconds = sum(one["cpu_seconds"] for one in row) / len(row)
        print(f"| {name} | {wanted} | {' | '.join(cells_of_row)} | {right} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
