"""The fault matrix: every kind of fault in every algorithm on every engine, printed as a table.

`python -m benchmarks.faults --workers 16 --seconds 500` runs the cells missing from `benchmarks/results/faults.json`.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter

from benchmarks.kept import arguments, run_kept

from corymb.faults import KINDS
from corymb.testing.fault_matrix import Cell, cells, run_cell


def work(name: str) -> dict[str, object]:
    """One cell."""
    logging.disable(logging.WARNING)
    outcome = run_cell(Cell(*name.split("/")))
    return {"problem": outcome.problem, "named": outcome.named}


def main() -> int:
    """Run cells and print the table; returns 1 if any went wrong."""
    parser = arguments(__doc__, "benchmarks/results/faults.json")
    parser.add_argument("--some", type=int, default=1, help="run only every N-th cell")
    parser.add_argument("--faults", nargs="*", default=list(KINDS), help="only these kinds")
    args = parser.parse_args()
    chosen = [cell for cell in cells() if cell.fault in args.faults][:: args.some]
    found = run_kept("benchmarks.faults:work", ["/".join(cell) for cell in chosen], args)
    wide = max(map(len, KINDS))
    print(f"{'fault':{wide}}  runs  well  named")
    for fault in KINDS:
        of_fault = [result for name, result in found.items() if name.startswith(f"{fault}/")]
        if of_fault:
            well, named = sum(not result["problem"] for result in of_fault), sum(r["named"] for r in of_fault)
            print(f"{fault:{wide}}  {len(of_fault):4}  {well:4}  {named:5}")
    bad = {name: result["problem"] for name, result in found.items() if result["problem"]}
    for name, problem in bad.items():
        print(f"WRONG  {name}: {problem}")
    engines = Counter(name.rpartition("/")[2] for name in found)
    print(f"{len(found)} runs ({dict(engines)}), {len(bad)} went wrong")
    return int(bool(bad) or len(found) < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
