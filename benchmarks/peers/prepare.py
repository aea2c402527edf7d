"""Prepares the work of a case for all libraries: examples, initial models, and the batches that Corymb draws."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from benchmarks.peers.libraries.corymb import arrays_of, objective_of, rounds_of
from benchmarks.peers.work import Case, Task
from torch import Tensor

from corymb.core.snapshot import Snapshot
from corymb.engines.vectorised.threads import one_thread
from corymb.local.descent import Batches

TESTED = 2000
GROUPS = 4
NOISE = 0.5


def prepare(case: Case, folder: Path) -> None:
    """Write the work of a case, and `test-x.npy`, `test-y.npy` and `test-group.npy` (true clusters) to score it."""
    x, y, offsets, test = femnist(case.clients, case.batch or 1) if case.network == "cnn" else drawn(case)
    task = Task(case, x, y, offsets, start=[], order=None)
    with (
        one_thread(),
        mock.patch.object(Batches, "__iter__", _recorded),
    ):  # several threads would draw batches at the same time
        DRAWN.clear()
        algorithm, fed = rounds_of(task, objective_of(case))
        fed.set_clock(seed=0, clock=0)
        start = arrays_of(Snapshot.fresh(fed, max(case.k, 1)).models)
        order = None if case.batch is None else _order(task, algorithm)
    Task(case, x, y, offsets, start, order).save(folder)
    for name, array in test.items():
        np.save(folder / f"test-{name}.npy", array, allow_pickle=False)


DRAWN: list[Tensor] = []
"""The rows of batches, in the order in which they were drawn."""
_drawn = Batches.__iter__


def _recorded(batches: Batches) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """Batches that are recorded as they are drawn."""
    for rows, active in _drawn(batches):
        if rows is not None:
            DRAWN.append(rows if rows.dim() == 2 else rows.unsqueeze(0))
        yield rows, active


def _order(task: Task, algorithm: Iterator[Snapshot]) -> np.ndarray:
    """The rows of every batch: rounds, clients, steps, batch. Within a chunk, clients are ordered by size."""
    case, sizes = task.case, torch.from_numpy(np.diff(task.offsets))
    place = sizes.argsort(stable=True).argsort()
    found = []
    for _ in range(case.rounds):
        DRAWN.clear()
        next(algorithm)
        whole = [rows for rows in DRAWN if rows.shape[1] == case.batch]  # without the trial that measures memory
        chunks = [whole[first : first + case.steps] for first in range(0, len(whole), case.steps)]
        drawn = torch.cat([torch.stack(chunk, 1) for chunk in chunks])
        found.append(drawn[-case.clients :][place])  # without an earlier trial of one client
    order = torch.stack(found)
    wanted = (case.rounds, case.clients, case.steps, case.batch)
    assert order.shape == wanted, f"batches {tuple(order.shape)}, wanted {wanted}"
    assert bool((order >= 0).all()), "some batches are not full"
    return order.numpy()


def drawn(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Ten noisy images as classes; with clusters, each cluster's labels are shifted."""
    draw = np.random.default_rng(0)
    pictures = draw.random((10, 784), dtype=np.float32)
    n, m = case.clients, case.examples
    group = np.arange(n) % GROUPS if case.k else np.zeros(n, np.int64)

    def examples(of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kind = draw.integers(10, size=len(of))
        noise = draw.standard_normal((len(of), 784), dtype=np.float32)
        return pictures[kind] + NOISE * noise, (kind + 2 * of) % 10

    x, y = examples(np.repeat(group, m))
    tested = np.arange(TESTED) % GROUPS if case.k else np.zeros(TESTED, np.int64)
    test_x, test_y = examples(tested)
    return x, y, np.arange(n + 1) * m, {"x": test_x, "y": test_y, "group": tested}


def femnist(writers: int, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The first writers with at least 100 images, cut to whole batches; LEAF's held-out tenth is for testing."""
    with np.load(Path(os.environ["CORYMB_DATA"]) / "femnist" / "femnist.npz") as kept:
        images, labels, writer, held = (kept[name] for name in ("images", "labels", "writer", "test"))
    x, y = images[:, None].astype(np.float32) / 255, labels.astype(np.int64)
    draw, chosen, tested = np.random.default_rng(0), [], []
    for writer_id in np.flatnonzero(np.bincount(writer[~held]) >= 100)[:writers]:
        rows = draw.permutation(np.flatnonzero((writer == writer_id) & ~held))
        chosen.append(rows[: len(rows) // batch * batch])
        tested.append(np.flatnonzero((writer == writer_id) & held))
    offsets = np.cumsum([0, *map(len, chosen)])
    train, test = np.concatenate(chosen), np.concatenate(tested)
    return x[train], y[train], offsets, {"x": x[test], "y": y[test], "group": np.zeros(len(test), np.int64)}
