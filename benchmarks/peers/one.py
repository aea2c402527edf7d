"""One measurement, in the environment of its way: python -m benchmarks.peers.one WAY FOLDER OUT THREADS."""

from __future__ import annotations

import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.work import Laps, Task, save_models


def main(name: str, folder: Path, out: Path, threads: int) -> None:
    """Run the way; write down its models, its rounds' seconds and its versions."""
    way, laps = importlib.import_module(f"benchmarks.peers.ways.{name}"), Laps()
    models = way.run(Task.load(folder), folder, threads, laps)
    save_models(out / "models.npz", models)
    versions = {package: version(package) for package in way.PACKAGES}
    (out / "laps.json").write_text(json.dumps({"laps": laps.done, "versions": versions}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
