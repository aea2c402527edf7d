"""Runs the cells of a benchmark in processes and keeps results in one JSON file; cells in it are not run again."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corymb.recipes.cells import run_cells, write_cell


def arguments(about: str, out: str) -> argparse.ArgumentParser:
    """The command-line arguments of every such benchmark."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--seconds", type=float, help="start no cell after this time; repeat the command to continue")
    parser.add_argument("--out", type=Path, default=Path(out), help="the file for results")
    return parser


def run_kept(work: str, names: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """The results of all cells that have been run; prints how many are left, and which failed."""
    place: Path = args.out
    kept = json.loads(place.read_text()) if place.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name, result in kept.items():
            write_cell(Path(folder), name, {"result": result})
        found = run_cells(work, list(names), Path(folder), workers=args.workers, seconds=args.seconds)
    kept |= found.results
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_suffix(".part")
    beside.write_text(json.dumps(dict(sorted(kept.items())), indent=0, ensure_ascii=False) + "\n")
    os.replace(beside, place)
    for name, why in found.failed.items():
        print(f"FAILED  {name}: {why}")
    print(
        f"{len(found.results)} of {len(names)} cells are in {place}; {len(found.left)} left, {len(found.failed)} failed"
    )
    return found.results
