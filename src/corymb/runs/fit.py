"""`fit`: from an algorithm, data and a model to a `Run`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from corymb.core.snapshot import Algorithm, Snapshot
from corymb.data import FederatedDataset, load
from corymb.data.arrays import Values
from corymb.data.features import as_array, is_image
from corymb.runs.folder.contents import final_files
from corymb.runs.folder.layout import check_free
from corymb.runs.folder.reader import is_finished, read_config, read_environment
from corymb.runs.folder.writer import RunStore
from corymb.runs.learners import Model
from corymb.runs.plan import Clients, Plan, placed_snapshot, placement_for, threads_set
from corymb.runs.progress import RoundLine
from corymb.runs.run import Run
from corymb.runs.session import Progress, Session
from corymb.runs.settings import DataOptions, RunSettings
from corymb.settings import require

Folder = str | os.PathLike[str]
Data = FederatedDataset | str | os.PathLike[str] | tuple[Values, Values, Values]


def fit(
    algorithm: Algorithm,
    data: Data,
    model: Model | None = None,
    *,
    out: Folder | None = None,
    resume: Folder | None = None,
    start: Snapshot | None = None,
    progress: bool | Progress | None = None,
    max_seconds: float | None = None,
    settings: RunSettings | None = None,
    **options: Any,
) -> Run:
    """Run `algorithm` on `data`.

    Arguments:
        algorithm: What to run, such as `corymb.IFCA(k=4)`.
        data: A `FederatedDataset`, the name of one, a folder or file of your own, or arrays `(x, y, client)`.
        model: A function that makes a `torch.nn.Module`, a module, an objective, a name (`corymb list models`) or
            `package.module:function`; if not given, a model that suits the data.
        out: A folder, new or empty, where the run is saved as it goes.
        resume: The folder of a run that was stopped. It continues exactly as if it had never stopped: its own
            settings (seed, engine, precision, ...) apply, not those given here; algorithm, data and model must be the
            same.
        start: A snapshot to start from.
        progress: True for a line per round on stderr, or a function that takes each round's record.
        max_seconds: Stop after the round in which this time is up.
        settings: How to carry out the run.
        options: Fields of `RunSettings` by name, such as `seed=3`; they win over `settings`.

    Ctrl-C ends the run after the last complete round.
    """
    settings = (settings or RunSettings()).updated(options, others=inspect.signature(fit).parameters)
    if resume is None:
        return start_run(
            algorithm, data, model, settings, out=out, start=start, max_seconds=max_seconds, progress=progress
        )
    require(
        out is None and start is None, "A resumed run has a folder and a start of its own: leave out and start out."
    )
    return resume_run(resume, algorithm, data, model, max_seconds=max_seconds, progress=progress)


def start_run(
    algorithm: Algorithm,
    data: Data,
    model: Model | None,
    settings: RunSettings,
    *,
    out: Folder | None = None,
    start: Snapshot | None = None,
    max_seconds: float | None = None,
    progress: bool | Progress | None = None,
    data_name: str | None = None,
    data_options: DataOptions = DataOptions(),  # noqa: B008 - frozen
) -> Run:
    """Start a new run; `data_name` and `data_options` are recorded so that the data can be found again."""
    store = None if out is None else RunStore(check_free(out))
    name = data_name or (os.fspath(data) if isinstance(data, (str, os.PathLike)) else None)
    with _session(algorithm, data, model, settings, store, max_seconds, name, data_options) as session:
        at = None if start is None else placed_snapshot(start, session.plan.placement)
        if store is not None:
            session.create_folder(at)
        return _finish(session, at, progress)


def resume_run(
    folder: Folder,
    algorithm: Algorithm,
    data: Data,
    model: Model | None = None,
    *,
    max_seconds: float | None = None,
    progress: bool | Progress | None = None,
) -> Run:
    """Continue the run in a folder to its end; a run that has ended is returned as it is."""
    store = RunStore(Path(folder).expanduser())
    if is_finished(store.folder):
        return Run.load(store.folder, model)
    config, environment = read_config(store.folder), read_environment(store.folder)
    settings, data_options = RunSettings.recorded(config), DataOptions.recorded(config)
    with _session(algorithm, data, model, settings, store, max_seconds, config["data"], data_options) as session:
        return _finish(session, session.restore(store.reopen(), environment), progress)


@contextmanager
def _session(
    algorithm: Algorithm,
    data: Data,
    model: Model | None,
    settings: RunSettings,
    store: RunStore | None,
    max_seconds: float | None,
    data_name: str | None,
    data_options: DataOptions,
) -> Iterator[Session]:
    """A session that is ready to run; its folder is released afterwards."""
    dataset = as_dataset(data, settings.seed)
    check_clusters(algorithm, dataset)
    require(max_seconds is None or max_seconds >= 0, f"max_seconds must not be negative, got {max_seconds}.")
    placement = placement_for(settings)
    with threads_set(settings.threads), nullcontext() if store is None else closing(store):
        plan = Plan(
            algorithm=algorithm,
            clients=Clients(dataset, settings, placement),
            model=model,
            settings=settings,
            placement=placement,
            data_name=data_name or dataset.name,
            data_options=data_options,
            truth=dataset.truth,
            true_parameters=dataset.true_parameters,
            max_seconds=max_seconds,
        )
        yield Session(plan, store)


def _finish(session: Session, start: Snapshot | None, progress: bool | Progress | None) -> Run:
    with _shown(progress, session.plan.algorithm) as show:
        session.run(start, show)
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


def check_clusters(algorithm: Algorithm, data: FederatedDataset) -> None:
    """Refuse more clusters than there are clients, before anything is computed."""
    k = getattr(algorithm, "k", None)
    too_many = isinstance(k, int) and k > len(data)
    require(not too_many, f"k={k} clusters are more than the {len(data)} clients of {data.name!r}.")


def _shown(progress: bool | Progress | None, algorithm: Algorithm) -> AbstractContextManager[Progress]:
    if progress is True:
        return RoundLine(algorithm.planned_rounds)
    return nullcontext(progress or (lambda row: None))
