"""How the time and memory of a round grow: with clients, registered clients, examples, clusters and parameters.

    python -m benchmarks.growth [--axes clients registered ...] [--most 1000000] [--write FILE]

Every point is a separate process with one thread: CPU seconds of a round (the minimum of a few), the memory that an
engine takes for its clients (examples and names not counted), the peak of the rounds above it, and the peak of the
whole process, with examples and names; mapped files are not counted. A slope is that of the logarithms over the larger
half of an axis: 1 is linear, 0 is flat. `registered` asks a thousand of all clients in each round, and `mapped` reads
them from a file on disk.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

AXES: dict[str, dict[str, Any]] = {
    "clients": {"vary": "clients", "values": [100, 1000, 10_000, 100_000, 1_000_000]},
    "registered": {"vary": "clients", "values": [1000, 10_000, 100_000, 1_000_000], "cohort": 1000},
    "mapped": {"vary": "clients", "values": [10_000, 100_000, 1_000_000], "cohort": 1000, "mapped": True},
    "examples": {"vary": "examples", "values": [10, 100, 1000, 10_000], "clients": 100},
    "k": {"vary": "k", "values": [1, 2, 4, 8, 16], "clients": 1000, "examples": 50},
    "parameters": {"vary": "width", "values": [16, 64, 256, 1024], "clients": 50, "examples": 50},
}
FEATURES = 20
ROUNDS = 4


def point(settings: dict[str, Any]) -> dict[str, float]:
    """Measure one point in this process."""
    import torch

    from corymb.algorithms import IFCA, FedAvg
    from corymb.core.driver import drive
    from corymb.core.federation import Federation
    from corymb.core.names import ClientNames, Numbered
    from corymb.data.ragged import by_client
    from corymb.engines import VectorisedEngine
    from corymb.local import Descent
    from corymb.models import Network, mlp
    from corymb.objectives import LinearRegression, Regression

    torch.set_num_threads(1)
    n, m, k, width = (
        settings.get(name, usual) for name, usual in (("clients", 1000), ("examples", 10), ("k", 0), ("width", 0))
    )
    with tempfile.TemporaryDirectory() as folder:
        mapped = Path(folder) if settings.get("mapped") else None
        x, y = _features(n * m, mapped), _targets(n * m, mapped)
        rows = SimpleNamespace(x=x, y=y, offsets=torch.arange(n + 1) * m)
        none = by_client(x[:0], y[:0], torch.empty(0, dtype=torch.int64), n)
        data = SimpleNamespace(names=ClientNames(Numbered("client-", range(n))), train=rows, test=none)
        objective = Regression(Network(mlp(FEATURES, [width], 1))) if width else LinearRegression(FEATURES)
        _return_freed_memory()  # of the examples' preparation
        before, began = _anonymous(), time.process_time()
        fed = Federation(VectorisedEngine(objective, data))
        ready = time.process_time() - began
        _return_freed_memory()  # or the rounds would use what is left over from the preparations
        peak = Peak()
        common = {"rounds": 10**6, "participants": settings.get("cohort"), "local": Descent(lr=0.01, steps=5)}
        rounds = drive(IFCA(k=k, **common) if k else FedAvg(**common), fed, seed=1)
        seconds = []
        for _ in range(ROUNDS):
            began = time.process_time()
            next(rounds)
            seconds.append(time.process_time() - began)
        registered = max(0.0, peak.before - before)
        rounds_peak = peak.stop()
        of_process = peak.before + rounds_peak
        times = {"round s": min(seconds[1:]), "ready s": ready}
        return {**times, "MiB": rounds_peak, "registered MiB": registered, "process MiB": of_process}


def _features(rows: int, folder: Path | None) -> Any:
    import torch

    draw, block = np.random.default_rng(0), 1_000_000
    if folder is None:
        return torch.from_numpy(draw.standard_normal((rows, FEATURES), dtype=np.float32))
    with (folder / "x").open("wb") as out:
        for first in range(0, rows, block):
            draw.standard_normal((min(block, rows - first), FEATURES), dtype=np.float32).tofile(out)
    return torch.from_numpy(np.memmap(folder / "x", np.float32, "r+", shape=(rows, FEATURES)))


def _targets(rows: int, folder: Path | None) -> Any:
    import torch

    if folder is None:
        return torch.zeros(rows)
    return torch.from_numpy(np.memmap(folder / "y", np.float32, "w+", shape=(rows,)))


class Peak:
    """The peak memory of this process without mapped files, sampled every few milliseconds."""

    def __init__(self) -> None:
        self.most, self.before, self._going = 0.0, _anonymous(), True
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while self._going:
            self.most = max(self.most, _anonymous())
            time.sleep(0.005)

    def stop(self) -> float:
        """The peak in MiB above the memory at the start."""
        self._going = False
        self._thread.join()
        return max(self.most, _anonymous()) - self.before


def _return_freed_memory() -> None:
    with suppress(OSError, AttributeError):  # other systems than Linux with glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _anonymous() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return math.nan


def slope(values: list[float], found: list[float]) -> float:
    """The slope of the logarithms over the larger half of the points; NaN for a single point."""
    if len(values) < 2:
        return math.nan
    half = len(values) // 2 if len(values) > 3 else 0
    x, y = (np.log(np.maximum(row[half:], 1e-9)) for row in (values, found))
    return float(np.polyfit(x, y, 1)[0])


def measure(axis: str, most: int) -> list[str]:
    """The lines of the table of one axis."""
    spec = AXES[axis]
    fixed = {name: value for name, value in spec.items() if name not in ("vary", "values")}
    values = [value for value in spec["values"] if value <= most] or spec["values"][:1]
    rows = []
    for value in values:
        wanted = json.dumps({**fixed, spec["vary"]: value})
        command = [sys.executable, "-m", "benchmarks.growth", "--point", wanted]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(axis, value, rows[-1], file=sys.stderr, flush=True)
    fixed_text = ", ".join(f"{name} {value}" for name, value in fixed.items())
    lines = [
        f"## {axis}" + (f" ({fixed_text})" if fixed_text else ""),
        "",
        f"| {spec['vary']} | CPU s per round | s until ready | MiB for clients | MiB of rounds | MiB of the process |",
    ]
    lines += ["|---|---|---|---|---|---|"]
    lines += [
        f"| {v:,} | {r['round s']:.4f} | {r['ready s']:.2f} | {r['registered MiB']:.1f} | {r['MiB']:.1f} "
        f"| {r['process MiB']:.0f} |"
        for v, r in zip(values, rows, strict=True)
    ]
    times, memory, process = (slope(values, [row[name] for row in rows]) for name in ("round s", "MiB", "process MiB"))
    lines += [
        "",
        f"Slope of time: {times:.2f}, of the rounds' memory: {memory:.2f}, of the process's memory: {process:.2f}.",
        "",
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", default=list(AXES))
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--point", type=json.loads)
    args = parser.parse_args()
    if args.point is not None:
        print(json.dumps(point(args.point)))
        return
    lines = [
        "# How a round grows",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, one thread, CPU seconds.",
        f"Linear model with {FEATURES} features (axis parameters: one hidden layer), 10 examples per client,",
        "FedAvg (axis k: IFCA) with 5 local steps, unless the axis says otherwise.",
        "Generated by `python -m benchmarks.growth`.",
        "",
    ]
    for axis in args.axes:
        lines += measure(axis, args.most)
        if args.write:  # after every axis, so that an interrupted run keeps its results
            args.write.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
