"""The work given to every library, as files; needs only numpy, since it is imported in every environment."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

Model = list[np.ndarray]
"""Parameters in the order of the network's layers: weight, bias, weight, bias, …"""


@dataclass(frozen=True)
class Case:
    """The clients, the network and the training of a comparison."""

    name: str
    says: str
    network: str
    clients: int
    batch: int | None
    examples: int = 0
    k: int = 0
    """Clusters; 0 is FedAvg."""
    steps: int = 10
    lr: float = 0.1
    """So small that rounding errors do not grow: float32 and float64 differ by 3e-5 for FEMNIST's CNN with 0.01, and by
    4e-4 with 0.03.
    """
    rounds: int = 4
    """The number of rounds, of which the first warms up."""


CASES = [
    Case("mlp-100x600", "FedAvg, MLP 784-200-10, 100 × 600, 10 steps of batch 50", "mlp", 100, 50, 600),
    Case("mlp-1000x50", "FedAvg, MLP 784-200-10, 1000 × 50, 10 full-batch steps", "mlp", 1000, None, 50, rounds=2),
    Case("femnist", "FedAvg, CNN, 50 writers of FEMNIST, 10 steps of batch 10", "cnn", 50, 10, lr=0.01, rounds=3),
    Case("ifca-100x600", "IFCA, k = 4, MLP, 100 × 600, 10 steps of batch 50", "mlp", 100, 50, 600, k=4, rounds=3),
    Case("ifca-1000x50", "IFCA, k = 4, MLP, 1000 × 50, 10 full-batch steps", "mlp", 1000, None, 50, k=4, rounds=2),
]


@dataclass(frozen=True)
class Task:
    """A case with its examples, initial models and batches."""

    case: Case
    x: np.ndarray
    y: np.ndarray
    offsets: np.ndarray
    start: list[Model]
    order: np.ndarray | None
    """Rows of every client's batches: rounds, clients, steps, batch; None if a step takes all examples."""

    def save(self, folder: Path) -> None:
        """Write files, without pickling."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "case.json").write_text(json.dumps(asdict(self.case)))
        for name in ("x", "y", "offsets"):
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)
        if self.order is not None:
            np.save(folder / "order.npy", self.order, allow_pickle=False)
        save_models(folder / "start.npz", self.start)

    @staticmethod
    def load(folder: Path, *, mapped: bool = False) -> Task:
        """Read what `save` wrote; `mapped` leaves the examples on disk."""
        arrays = {name: np.load(folder / f"{name}.npy", "r" if mapped else None) for name in ("x", "y", "offsets")}
        order = np.load(folder / "order.npy") if (folder / "order.npy").exists() else None
        case = Case(**json.loads((folder / "case.json").read_text()))
        return Task(case, **arrays, start=load_models(folder / "start.npz"), order=order)

    def client(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """One client's examples."""
        rows = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        return self.x[rows], self.y[rows]

    def batches(self, round: int, i: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """One client's batches in one round, step by step."""
        x, y = self.client(i)
        for step in range(self.case.steps):
            yield (x, y) if self.order is None else (x[rows := self.order[round, i, step]], y[rows])


def save_models(file: Path, models: list[Model]) -> None:
    """Write models as one file of arrays."""
    np.savez(file, **{f"{j}-{place}": a for j, model in enumerate(models) for place, a in enumerate(model)})


def load_models(file: Path) -> list[Model]:
    """Read what `save_models` wrote."""
    with np.load(file) as kept:
        models = 1 + max(int(name.split("-")[0]) for name in kept.files)
        places = len(kept.files) // models
        return [[kept[f"{j}-{place}"] for place in range(places)] for j in range(models)]


# ---- times


@dataclass
class Laps:
    """Wall and CPU seconds of every round, including those of child processes."""

    done: list[dict[str, float]] = field(default_factory=list)
    _since: tuple[float, float] = (0.0, 0.0)

    def begin(self) -> None:
        """Start timing the first round; each further lap starts where the last one ended."""
        self._since = time.perf_counter(), cpu_seconds()

    def lap(self) -> None:
        """Record the end of a round."""
        now = time.perf_counter(), cpu_seconds()
        self.done.append({"wall": now[0] - self._since[0], "cpu": now[1] - self._since[1]})
        self.begin()


def cpu_seconds() -> float:
    """CPU seconds of this process and all its descendants."""
    ticks = os.sysconf("SC_CLK_TCK")
    of = [(Path("/proc") / str(pid) / "stat") for pid in family(os.getpid())[1:]]
    return time.process_time() + sum(sum(map(int, fields[11:15])) for fields in map(_stat, of) if fields) / ticks


def family(pid: int) -> list[int]:
    """The pids of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(Path("/proc") / entry / "stat")):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _stat(file: Path) -> list[str]:
    """The fields after a process's name in its `stat` file; none if it has ended."""
    try:
        return file.read_text().rpartition(") ")[2].split()
    except OSError:
        return []
