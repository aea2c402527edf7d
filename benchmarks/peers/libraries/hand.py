"""Written by hand for this one network: the same arithmetic for all clients at once, with bmm."""

from __future__ import annotations

from pathlib import Path

import torch
from benchmarks.peers.work import Laps, Model, Task
from benchmarks.rounds import hand_step
from torch import Tensor

PACKAGES = ("torch",)
CHUNK = 100
"""Clients at a time: a thousand at once take longer."""


@torch.no_grad()
def run(task: Task, folder: Path, threads: int, laps: Laps) -> list[Model]:
    """The models after all rounds."""
    torch.set_num_threads(threads)
    case = task.case
    x = torch.from_numpy(task.x).unflatten(0, (case.clients, case.examples))
    y = torch.from_numpy(task.y).unflatten(0, (case.clients, case.examples))
    order = None if task.order is None else torch.from_numpy(task.order)
    model = [torch.from_numpy(array) for array in task.start[0]]
    laps.begin()
    for t in range(case.rounds):
        sums = [torch.zeros_like(p) for p in model]
        for who in torch.arange(case.clients).split(CHUNK):
            stacked = [p.expand(len(who), *p.shape).clone() for p in model]
            for step in range(case.steps):
                hand_step(*_batch(x, y, who, None if order is None else order[t, who, step]), *stacked)
            for total, rows in zip(sums, stacked, strict=True):
                total += rows.sum(0)
        model = [total / case.clients for total in sums]
        laps.lap()
    return [[p.numpy() for p in model]]


def _batch(x: Tensor, y: Tensor, who: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    if rows is None:
        return x[who[0] : who[-1] + 1], y[who[0] : who[-1] + 1]
    flat = (rows + x.shape[1] * who[:, None]).flatten()
    return (t.flatten(0, 1).index_select(0, flat).unflatten(0, rows.shape) for t in (x, y))  # type: ignore[return-value]
