"""Run cells of the report on UIFCA without the command line, on a machine that has little installed.

    python papers/uifca/cells.py OUT --seconds 540 --workers 12 [--seeds 10] [--only digits rotated]

Cells that are in OUT are kept; `corymb reproduce uifca --out OUT` makes tables of them.
"""

import argparse
import os
import time
from pathlib import Path

from corymb.recipes import uifca
from corymb.recipes.cells import run_cells

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of names")
    given = parser.parse_args()
    names = [name for name in uifca.jobs(given.seeds) if name.startswith(tuple(given.only))]
    began = time.monotonic()
    done = run_cells(
        "corymb.recipes.uifca:work", names, given.out / "cells", workers=given.workers, seconds=given.seconds
    )
    print(f"{len(done.results)} of {len(names)} cells, {len(done.failed)} failed, {time.monotonic() - began:.0f} s")
    for name, error in done.failed.items():
        print(f"  {name}: {error}")
