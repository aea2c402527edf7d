"""Cells of a benchmark, in processes, whose results are one JSON file: what is in it is not run again."""

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
    """What every such benchmark is asked."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--seconds", type=float, help="begin no cell after so long; the same command goes on later")
    parser.add_argument("--out", type=Path, default=Path(out), help="the file that results are kept in")
    return parser


def run_kept(work: str, names: Sequence[str], asked: argparse.Namespace) -> dict[str, Any]:
    """What each cell gave, of those that there was time for; says which are left, and what failed."""
    place: Path = asked.out
    kept = json.loads(place.read_text()) if place.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name, result in kept.items():
            write_cell(Path(folder), name, {"result": result})
        found = run_cells(work, list(names), Path(folder), workers=asked.workers, seconds=asked.seconds)
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
