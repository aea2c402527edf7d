"""`fit`: from an algorithm, data and a model to a `Run`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from corymb.core.client import ClientFn
from corymb.core.snapshot import Algorithm, Snapshot, packages_of, planned_rounds
from corymb.data import as_dataset
from corymb.engines.isolation import plain_modes, torch_quiet
from corymb.keys import root
from corymb.messages import OURS
from corymb.runs.folder.contents import as_toml, final_files
from corymb.runs.folder.layout import check_free
from corymb.runs.folder.own_model import check_answers
from corymb.runs.folder.reader import is_finished, read_clients, read_config, read_environment, read_standard
from corymb.runs.folder.writer import RunStore
from corymb.runs.history import CONVERGED, counted
from corymb.runs.learners import Model
from corymb.runs.own.algorithm import check_names
from corymb.runs.own.callbacks import Callbacks
from corymb.runs.own.metrics import Metric, check_metrics
from corymb.runs.plan import (
    Plan,
    check_longer,
    make_engine,
    placed_snapshot,
    placement_for,
    rounds_in,
    threads_set,
    with_fewer,
    with_rounds,
)
from corymb.runs.progress import RoundLine
from corymb.runs.remote.cluster import kept_in
from corymb.runs.remote.engine import FEDERATION, REMOTE_ENGINES, remote_engine
from corymb.runs.run import Run
from corymb.runs.serving import labels_points
from corymb.runs.session import Progress, Session
from corymb.runs.settings import DataOptions, RunSettings
from corymb.settings import check_all_types, check_plain, expanded, require, to_dict

Folder = str | os.PathLike[str]
Data = Any
"""A data set in any of the forms that `corymb.data.loading` takes, or an engine."""


def fit(
    algorithm: Algorithm,
    data: Data = None,
    model: Model | None = None,
    *,
    out: Folder | None = None,
    resume: Folder | None = None,
    start: Snapshot | None = None,
    progress: bool | Progress | None = None,
    max_seconds: float | None = None,
    callbacks: object = (),
    metrics: Mapping[str, Metric] | None = None,
    settings: RunSettings | None = None,
    **options: Any,
) -> Run:
    """Run `algorithm` on `data`.

    Arguments:
        algorithm: What to run, such as `corymb.IFCA(k=4)`.
        data: A `FederatedDataset`, the name of one, your own folder or file, arrays `(x, y, client)`, a data frame with
            columns `client` and `label`, a mapping or list of clients' `(x, y)`, or an engine whose clients already
            hold their data. None with `engine="flower"`, where nodes hold the data.
        model: A function that returns a `torch.nn.Module`, a module, an objective, a name (`corymb list models`) or
            `package.module:function`; if not given, a model that suits the data.
        out: A new or empty folder where the run is saved while it runs.
        resume: The folder of a run that was stopped. It continues exactly as if it had never stopped: its own
            settings (seed, engine, precision, ...) apply, except `keep_going`, not those given here; algorithm, data
            and model must be the same. An algorithm with more rounds extends the run, even if it has ended.
        start: A snapshot to start from.
        progress: True for a line per round on stderr, or a function that takes each round's record.
        max_seconds: Approximate time limit for the rounds and the final evaluation. A round that is far from finished
            when time runs out does not count; 0 runs exactly one.
        callbacks: Functions that take each round's record, or objects with any of `on_start`, `on_round`,
            `on_evaluation` and `on_end`. Raising `corymb.StopRun` in one ends the run after that round.
        metrics: Functions of (predictions, y) that return a value for each example, by name. They are computed at the
            clients on their test examples, as `test_<name>`.
        settings: How to carry out the run.
        options: Fields of `RunSettings` by name, such as `seed=3`; they take precedence over `settings`.

    Ctrl-C ends the run after the last complete round.
    """
    _check_algorithm(algorithm)
    _check_arguments(start, progress, settings)
    settings = (settings or RunSettings()).updated(options, others=inspect.signature(fit).parameters)
    observers = Observers(progress, callbacks, metrics)
    if resume is None:
        return start_run(
            algorithm, data, model, settings, out=out, start=start, max_seconds=max_seconds, observers=observers
        )
    require(
        out is None and start is None, "A resumed run already has a folder and a start: do not give `out` or `start`."
    )
    going = settings.keep_going
    return resume_run(resume, algorithm, data, model, max_seconds=max_seconds, keep_going=going, observers=observers)


class Observers(NamedTuple):
    """Observers of a run: progress on stderr, callbacks, and user-defined metrics."""

    progress: bool | Progress | None = None
    callbacks: object = ()
    metrics: Mapping[str, Metric] | None = None

    def fields(self) -> dict[str, Any]:
        """Fields of `Plan`."""
        Callbacks(self.callbacks)  # rejects invalid callbacks before anything is written
        return {"metrics": check_metrics(self.metrics or {})}


def start_run(
    algorithm: Algorithm,
    data: Data,
    model: Model | None,
    settings: RunSettings,
    *,
    out: Folder | None = None,
    start: Snapshot | None = None,
    max_seconds: float | None = None,
    observers: Observers = Observers(),  # noqa: B008 - frozen
    data_name: str | None = None,
    data_options: DataOptions = DataOptions(),  # noqa: B008 - frozen
) -> Run:
    """Start a new run; `data_name` and `data_options` are recorded so that the data can be found again."""
    store = None if out is None else RunStore(check_free(out))
    settings = kept_in(settings, out)
    rest = _requested(algorithm, model, data_options, max_seconds, observers)
    plan = partial(plan_for, data, settings, data_name=data_name, **rest)
    with session_for(plan, settings.threads, store) as session:
        at = None
        if start is not None:
            _check_start(start, session)
            session.note_handover(start)
            at = placed_snapshot(start, session.plan.placement)
        if store is not None:
            session.create_folder(at)
        return finish(session, at, observers)


def _check_start(start: Snapshot, session: Session) -> None:
    """Reject a snapshot with another number of clients or of another model."""
    before, clients = len(start.labels), len(session.fed.names)
    require(
        before == clients,
        f"start has {counted(before, 'client')}, but the data have {clients}: use run.refresh(data) if clients join or "
        "leave.",
    )
    if labels_points(session.plan.algorithm):  # the shapes of these models depend on the clusters
        return
    wanted = session.fed.objective.init(root(0))
    for name in [name for name in wanted if name in start.models]:
        got, shape = list(start.models[name].shape[1:]), list(wanted[name].shape)
        require(
            got == shape,
            f"start is of another model or from data with other features: its {name!r} has shape {got}, "
            f"wanted {shape}.",
        )
    if packages_of(session.plan.algorithm) != OURS:  # the models of your own algorithms may have other parameters
        return
    for what, one, other in (("it", start.models, wanted), ("this one", wanted, start.models)):
        lacks = next((name for name in other if name not in one), None)
        require(lacks is None, f"start is of another model: {what} has no parameter {lacks!r}.")


def resume_run(
    folder: Folder,
    algorithm: Algorithm,
    data: Data,
    model: Model | None = None,
    *,
    max_seconds: float | None = None,
    keep_going: bool = False,
    every_round: bool = False,
    observers: Observers = Observers(),  # noqa: B008 - frozen
) -> Run:
    """Continue the run in a folder to its end, or beyond it if the algorithm has more rounds than the run had.

    Otherwise, a run that has ended is returned unchanged. With `keep_going`, one that diverged continues; with
    `every_round`, one that converged in fewer rounds than planned does those that were left.
    """
    store = RunStore(expanded(folder))
    config, ended = read_config(store.folder), is_finished(store.folder)
    before, now = rounds_in(config), rounds_in(to_dict(algorithm))
    left = every_round and config.get("until") == CONVERGED  # planned rounds that convergence skipped
    longer = before is not None and now is not None and (now > before or left)
    if ended and not longer:
        return Run.load(store.folder, model)
    environment = read_environment(store.folder)
    if longer:
        config = {**config, "until": "rounds"}  # an explicit number of rounds is always run in full
    settings, data_options = RunSettings.recorded(config), DataOptions.recorded(config)
    settings = replace(settings, keep_going=settings.keep_going or keep_going)
    rest = _requested(algorithm, model, data_options, max_seconds, observers) | {"run": environment["run"]}
    if "refreshed" in config.get("record", {}):  # it keeps its original standardisation
        rest |= {"record": {"refreshed": config["record"]["refreshed"]}, "standard": read_standard(store.folder)}
    plan = partial(plan_for, data, settings, data_name=config["data"], clients=read_clients(store.folder), **rest)
    with session_for(plan, settings.threads, store) as session:
        began_with = config.get("record", {}).get("data", session.fingerprint)
        require(
            began_with == session.fingerprint,
            f"The data are not those that the run in {folder} began with: give the same clients and examples, at every "
            "node of a federation, or start a new run (start=run.snapshot.handover() begins from its models).",
        )
        check_answers(session.answers, config.get("record", {}).get("answers"), config["model"])
        saved = store.reopen()
        start = session.restore(saved, environment)
        if longer:
            assert before is not None
            assert now is not None
            early = len(session.history) < planned_rounds(with_fewer(algorithm, before))
            check_longer(algorithm, before, now, start if ended else None, early=early)
            store.replan(as_toml(with_rounds(config, now)))
        return finish(session, start, observers)


def _requested(
    algorithm: Algorithm,
    model: Model | None,
    data_options: DataOptions,
    max_seconds: float | None,
    observers: Observers,
) -> dict[str, Any]:
    """The fields of a plan that are taken unchanged from the request."""
    return {
        "algorithm": algorithm,
        "model": model,
        "data_options": data_options,
        "max_seconds": max_seconds,
        **observers.fields(),
    }


@contextmanager
def session_for(plan: Callable[[], Plan], threads: int | None, store: RunStore | None) -> Iterator[Session]:
    """Open a session; its folder and engine are released afterwards."""
    with ExitStack() as stack:
        stack.enter_context(plain_modes())
        stack.enter_context(threads_set(threads))
        stack.enter_context(torch_quiet())
        if store is not None:
            stack.enter_context(closing(store))
        planned = plan()
        stack.callback(planned.close)
        yield Session(planned, store)


def plan_for(
    data: Data,
    settings: RunSettings,
    *,
    data_name: str | None = None,
    clients: Collection[str] = (),
    **others: Any,
) -> Plan:
    """Plan a run on data or on the clients of an engine; `others` are fields of `Plan`.

    `clients` are those of a run to resume on remote nodes.
    """
    k = getattr(others["algorithm"], "k", None)
    if settings.engine in REMOTE_ENGINES and not hasattr(data, "open"):
        known = None if data is None else as_dataset(data, settings.seed).in_order()
        data, others["own"] = remote_engine(settings, known, others["algorithm"], clients), True
        data_name = data_name or (FEDERATION if known is None else known.name)
        if known is not None:
            others |= {"truth": known.truth, "true_parameters": known.true_parameters}
    if hasattr(data, "open") and hasattr(data, "fingerprint"):  # an engine
        used, name = data.describe(), data_name or "federation"
        if not labels_points(others["algorithm"]):
            _check_clusters(k, len(data.names), name)
        settings = settings.updated({name: used[name] for name in ("device", "precision") if name in used})
        return Plan(engine=data, settings=settings, placement=placement_for(settings), data_name=name, **others)
    require(data is not None, "Give the data to run on: only with engine='flower' do the nodes hold their own.")
    dataset, placement = as_dataset(data, settings.seed).in_order(), placement_for(settings)
    if not labels_points(others["algorithm"]):
        _check_clusters(k, len(dataset), dataset.name)
    return Plan(
        engine=make_engine(dataset, settings, placement),
        settings=settings,
        placement=placement,
        data_name=data_name or (os.fspath(data) if isinstance(data, (str, os.PathLike)) else dataset.name),
        truth=dataset.truth,
        true_parameters=dataset.true_parameters,
        **others,
    )


def _check_algorithm(algorithm: object) -> None:
    has_run, has_serve = hasattr(algorithm, "run"), hasattr(algorithm, "serve")
    known = not isinstance(algorithm, type) and has_run and has_serve
    got = repr(algorithm) if isinstance(algorithm, str) else f"a {type(algorithm).__name__}"
    if has_run and not has_serve:
        got += " without `serve`, the client function that returns a client's model (such as `serve_assigned`)"
    require(
        known,
        f"The algorithm is {got}: wanted an instance such as corymb.IFCA(k=4); corymb.configure('ifca', data, k=4) "
        "creates one by name.",
    )
    require(
        is_dataclass(algorithm),
        f"{type(algorithm).__name__} is not a dataclass: its settings must be fields, so decorate it with "
        "@dataclass(frozen=True, kw_only=True).",
    )
    check_names(type(algorithm))
    check_all_types(algorithm)
    check_plain(algorithm)
    serve = algorithm.serve  # type: ignore[attr-defined]
    require(
        isinstance(serve, ClientFn),
        f"{type(algorithm).__name__}.serve is a {type(serve).__name__}: wanted a client function, such as `serve = "
        "serve_assigned`, or your own at module level, decorated with @on_client.",
    )


def _check_arguments(start: object, progress: object, settings: object) -> None:
    """Reject arguments of a wrong type; data, models, callbacks and metrics are checked where they are used."""
    known = start is None or isinstance(start, Snapshot)
    require(known, f"start is a {type(start).__name__}: wanted a snapshot, such as the `snapshot` of a run.")
    known = progress is None or isinstance(progress, bool) or callable(progress)
    require(known, f"progress is {progress!r}: wanted True, False or a function that takes each round's record.")
    known = settings is None or isinstance(settings, RunSettings)
    require(known, f"settings is a {type(settings).__name__}: wanted RunSettings(...), or give its fields by name.")


def _check_clusters(k: object, clients: int, name: str) -> None:
    too_many = isinstance(k, int) and k > clients
    require(not too_many, f"k={k} exceeds the {counted(clients, 'client')} of {name!r}: give a smaller k.")


def finish(session: Session, start: Snapshot | None, observers: Observers) -> Run:
    """Run the rounds of a session and the final steps."""
    with _shown(observers.progress, session.plan.algorithm) as show:
        callbacks = Callbacks(observers.callbacks, show)
        callbacks.start(session.about_to_start(start))
        session.run(start, callbacks, evaluated=True)
        run = session.result()
    if session.store is not None:
        session.store.finish(final_files(run))
    callbacks.end(run)
    return run


def _shown(progress: bool | Progress | None, algorithm: Algorithm) -> AbstractContextManager[Progress]:
    if progress is True:
        return RoundLine.of(algorithm)
    return nullcontext(progress or (lambda row: None))
