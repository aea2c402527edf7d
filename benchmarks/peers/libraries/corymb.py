"""Corymb's vectorised engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from benchmarks.peers.work import Case, Laps, Model, Task

from corymb.algorithms import IFCA, FedAvg
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.objective import Objective
from corymb.core.snapshot import Snapshot
from corymb.engines import VectorisedEngine
from corymb.local import Descent
from corymb.models import Network, cnn, mlp
from corymb.objectives import Classification
from corymb.trees import Params, count

PACKAGES = ("torch",)


def objective_of(case: Case) -> Objective:
    """The case's network, with cross-entropy."""
    layers, classes = (mlp(784, [200], 10), 10) if case.network == "mlp" else (cnn(1, 28, 62), 62)
    return Classification(Network(layers), classes)


def rounds_of(task: Task, objective: Objective) -> tuple[Iterator[Snapshot], Federation]:
    """The rounds of the case's algorithm, not started yet, and the federation."""
    case = task.case
    x, y, offsets = (torch.from_numpy(array) for array in (task.x, task.y, task.offsets))
    rows = SimpleNamespace(x=x, y=y, offsets=offsets)
    none = SimpleNamespace(x=x[:0], y=y[:0], offsets=torch.zeros_like(offsets))
    data = SimpleNamespace(names=[f"client-{i}" for i in range(case.clients)], train=rows, test=none)
    fed = Federation(VectorisedEngine(objective, data))  # type: ignore[arg-type]
    local = Descent(lr=case.lr, steps=case.steps, batch=case.batch)
    algorithm = (
        IFCA(k=case.k, rounds=case.rounds, local=local, repair=False)
        if case.k
        else FedAvg(rounds=case.rounds, local=local)
    )
    return drive(algorithm, fed), fed


def run(task: Task, folder: Path, threads: int, laps: Laps) -> list[Model]:
    """The models after all rounds."""
    torch.set_num_threads(threads)
    rounds, fed = rounds_of(task, objective_of(task.case))
    laps.begin()
    done = []
    for at in rounds:
        laps.lap()
        done = [at]
    assert not fed.ledger.rejected, f"clients were refused, which no other library does: {fed.ledger.rejected}"
    return arrays_of(done[-1].models)


def arrays_of(models: Params) -> list[Model]:
    """Models as arrays, layer by layer, weight before bias."""
    names = sorted(models, key=lambda name: (int(name.split(".")[0]), name.endswith("bias")))
    return [[models[name][j].numpy() for name in names] for j in range(count(models))]
