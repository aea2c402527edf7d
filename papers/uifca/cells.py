"""Run cells of the report on UIFCA without the command line, on a machine that has little installed.

    python papers/uifca/cells.py OUT --seconds 540 --workers 12 [--seeds 10] [--only '*/realnvp/*'] [--device cpu]

The most valuable come first. Cells that are in OUT or among the results kept here are not run again; `corymb reproduce
uifca --out OUT` makes tables of them. `--device cpu` runs those that no GPU makes faster, `cuda` the others: the two
can run side by side. `--list` says what is left and runs nothing. Without a GPU, CORYMB_WHOLE=1 takes all pictures.
"""

import argparse
import os
import time
from fnmatch import fnmatch
from pathlib import Path

from corymb.recipes import uifca
from corymb.recipes.cells import read_cell, run_cells

KEPT = Path(__file__).parent / "results" / "cells"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=None, help="begin no other cell after this time")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN", help="names, with * for anything")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cells that are suited to it; all, if not given")
    parser.add_argument("--list", action="store_true", help="say what is left and stop")
    given = parser.parse_args()
    folder = given.out / "cells"
    names = [
        name
        for name in uifca.jobs(given.seeds)
        if any(fnmatch(name, pattern) for pattern in given.only)
        and given.device in (None, uifca.suited(name))
        and (folder == KEPT or read_cell(KEPT, name) is None)
    ]
    if given.list:
        print("\n".join(name for name in names if read_cell(folder, name) is None))
        raise SystemExit
    began = time.monotonic()
    done = run_cells("corymb.recipes.uifca:work", names, folder, workers=given.workers, seconds=given.seconds)
    print(f"{len(done.results)} of {len(names)} cells, {len(done.failed)} failed, {time.monotonic() - began:.0f} s")
    for name, error in done.failed.items():
        print(f"  {name}: {error}")
