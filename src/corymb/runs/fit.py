"""`fit`: an algorithm, data and a model go in, a `Run` comes out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from corymb.core.snapshot import Algorithm, Snapshot, planned_rounds
from corymb.data import FederatedDataset, load
from corymb.data.arrays import Values
from corymb.data.features import as_array, is_image
from corymb.data.schema import schema_of
from corymb.engines.vectorised.kernels import KernelName
from corymb.runs.folder.reader import check_free, final_files, is_finished
from corymb.runs.folder.writer import RunStore
from corymb.runs.learners import Dropout, Model, learner_for
from corymb.runs.placing import Device, EngineName, Memory, Precision, placed_snapshot, threads_set, where_of
from corymb.runs.run import Run
from corymb.runs.session import Plan, Progress, Session
from corymb.runs.settings import RunSettings, recorded
from corymb.settings import require

Folder = str | os.PathLike[str]
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
    out: Folder | None = None,
    resume: Folder | None = None,
    checkpoint_every: int = 1,
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

    `out` is a folder, new or empty, where the run is kept as it goes, with a checkpoint every `checkpoint_every`
    rounds. `resume` is such a folder: the run there goes on, bit for bit as if it had never stopped. What it was told
    (seed, engine, precision, ...) is obeyed whatever is said here; give the same algorithm, data and model.
    """
    if resume is not None:
        require(out is None and start is None, "A run that is resumed has its folder and its start: give no others.")
        return go_on(resume, algorithm, data, model, max_seconds=max_seconds, progress=progress)
    how = RunSettings(
        seed=seed,
        engine=engine,
        device=device,
        precision=precision,
        threads=threads,
        memory=memory,
        kernel=kernel,
        evaluate_every=evaluate_every or 0,
        checkpoint_every=checkpoint_every,
        min_replies=min_replies,
        dropout=dropout,
    )
    return begin(algorithm, data, model, how, out=out, start=start, max_seconds=max_seconds, progress=progress)


def begin(
    algorithm: Algorithm,
    data: Data,
    model: Model | None,
    how: RunSettings,
    *,
    out: Folder | None = None,
    start: Snapshot | None = None,
    max_seconds: float | None = None,
    progress: bool | Progress | None = None,
    said: Mapping[str, Any] | None = None,
) -> Run:
    """A new run; `said` is how the user called the data."""
    named = {"data": os.fspath(data)} if isinstance(data, (str, os.PathLike)) else {}
    store = None if out is None else RunStore(check_free(out))
    with _prepared(algorithm, data, model, how, store, max_seconds, {**named, **(said or {})}) as session:
        at = None if start is None else placed_snapshot(start, session.plan.where)
        if store is not None:
            session.keep(at)
        return _finish(session, at, progress)


def go_on(
    folder: Folder,
    algorithm: Algorithm,
    data: Data,
    model: Model | None = None,
    *,
    max_seconds: float | None = None,
    progress: bool | Progress | None = None,
) -> Run:
    """The run in a folder, to its end; one that has ended is given as it is."""
    store = RunStore(Path(folder).expanduser())
    if is_finished(store.folder):
        return Run.load(store.folder, model)
    how, said, environment = recorded(store.folder)
    with _prepared(algorithm, data, model, how, store, max_seconds, said) as session:
        return _finish(session, session.resume(store.reopen(), environment), progress)


@contextmanager
def _prepared(
    algorithm: Algorithm,
    data: Data,
    model: Model | None,
    how: RunSettings,
    store: RunStore | None,
    max_seconds: float | None,
    said: Mapping[str, Any],
) -> Iterator[Session]:
    """A run that can begin; afterwards its folder is left alone."""
    data = as_dataset(data, how.seed)
    check(algorithm, data, evaluate_every=how.evaluate_every, max_seconds=max_seconds)
    where = where_of(how.device, how.precision)
    with threads_set(how.threads), nullcontext() if store is None else closing(store):
        plan = Plan(algorithm, data, where, how, said)
        learner = learner_for(model, schema_of(data), dropout=how.dropout)
        yield Session(plan, learner, max_seconds, store)


def _finish(session: Session, start: Snapshot | None, progress: bool | Progress | None) -> Run:
    with _shown(progress, session.plan.algorithm) as show:
        session.go(start, show)
    run = session.result()
    if session.store is not None:
        session.store.finish(final_files(run))
    return run


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
        from corymb.runs.progress import RoundLine

        return RoundLine(planned_rounds(algorithm))
    return nullcontext(progress or (lambda row: None))
