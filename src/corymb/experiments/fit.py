"""`fit`: an algorithm, data and a model go in, a `Run` comes out."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from corymb.datasets import FederatedDataset, load
from corymb.datasets.arrays import Values
from corymb.datasets.features import as_array, is_image
from corymb.engines.kernels import KernelName
from corymb.experiments.kind import kind_of
from corymb.experiments.models import Dropout, Model, learner_for
from corymb.experiments.place import Device, EngineName, Memory, Precision, placed_snapshot, threads_set, where_of
from corymb.experiments.run import Run
from corymb.experiments.session import Plan, Progress, Session
from corymb.settings import require
from corymb.snapshot import Algorithm, Snapshot

Data = FederatedDataset | str | os.PathLike[str] | tuple[Values, Values, Values]


def fit(
    algorithm: Algorithm,
    data: Data,
    model: Model | None = None,
    *,
    seed: int = 0,
    engine: EngineName = "vectorised",
    device: Device = "auto",
    precision: Precision = "float32",
    threads: int | None = None,
    memory: Memory = "auto",
    kernel: KernelName | None = None,
    evaluate_every: int | None = 10,
    max_seconds: float | None = None,
    start: Snapshot | None = None,
    min_replies: int = 1,
    progress: bool | Progress | None = None,
    dropout: Dropout = "refuse",
) -> Run:
    """Run `algorithm` on `data`, and say how it went.

    `data` is a `FederatedDataset`, the name of one, a folder or file of your own, or arrays `(x, y, client)`. `model`
    is a function that makes a `torch.nn.Module`, a module, an objective, a name (`corymb list models`) or
    `package.module:function`; without one, a model that suits the data. `progress` is True for a line a round, or
    a function that is given each round's record. Ctrl-C ends the run after the last full round.
    """
    data = as_dataset(data, seed)
    check(algorithm, data, evaluate_every=evaluate_every, max_seconds=max_seconds)
    where = where_of(device, precision)
    with threads_set(threads):
        plan = Plan(algorithm, data, where, engine, memory, kernel, min_replies, seed)
        learner = learner_for(model, kind_of(data), dropout=dropout)
        session = Session(plan, learner, evaluate_every or 0, max_seconds)
        with _shown(progress, algorithm) as show:
            session.go(None if start is None else placed_snapshot(start, where), show)
        return session.result()


def as_dataset(data: Data, seed: int) -> FederatedDataset:
    """Data in any of the forms that `fit` takes."""
    if isinstance(data, FederatedDataset):
        return data
    if isinstance(data, tuple):
        require(len(data) == 3, f"Arrays are three, (x, y, client), got {len(data)}.")
        x, y, client = data
        table = not is_image(as_array(x))
        return FederatedDataset.from_arrays(x, y, client, standardise=table, seed=seed)
    return load(data, seed=seed)


def check(algorithm: Algorithm, data: FederatedDataset, **numbers: float | None) -> None:
    """Refuse what cannot work before anything is computed."""
    k = getattr(algorithm, "k", None)
    few = isinstance(k, int) and k > len(data)
    require(not few, f"k={k} clusters are more than the {len(data)} clients of {data.name!r}.")
    for name, value in numbers.items():
        require(value is None or value >= 0, f"{name} must not be negative, got {value}.")


def _shown(progress: bool | Progress | None, algorithm: Algorithm) -> AbstractContextManager[Progress]:
    if progress is True:
        from corymb.experiments.progress import RoundLine

        return RoundLine(algorithm.planned_rounds)
    return nullcontext(progress or (lambda row: None))
