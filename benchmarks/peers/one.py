"""One measurement, in the library's environment: python -m benchmarks.peers.one LIBRARY FOLDER OUT THREADS."""

from __future__ import annotations

import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.work import Laps, Task, save_models


def main(name: str, folder: Path, out: Path, threads: int) -> None:
    """Run the library; write its models, the seconds of its rounds, and its versions."""
    library, laps = importlib.import_module(f"benchmarks.peers.libraries.{name}"), Laps()
    models = library.run(Task.load(folder), folder, threads, laps)
    save_models(out / "models.npz", models)
    versions = {package: version(package) for package in library.PACKAGES}
    (out / "laps.json").write_text(json.dumps({"laps": laps.done, "versions": versions}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
