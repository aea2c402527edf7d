"""`Run.refresh`: a run continues with new examples for its clients, and with new clients.

The models and the clusters of known clients stay; a new client gets its cluster in the first round. Features keep their
original standardisation, because the models know no other units. Random keys depend on the clock, which continues, so
no random draw is used twice.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from corymb.algorithms.catalogue import entry_of
from corymb.core.engine import Engine
from corymb.core.federation import Federation, Ledger
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.data import FederatedDataset, as_dataset
from corymb.data.schema import schema_of
from corymb.runs.defaults import from_data, started
from corymb.runs.fit import Data, Observers, finish, plan_for, session_for
from corymb.runs.folder.layout import check_free
from corymb.runs.folder.writer import RunStore
from corymb.runs.history import CONVERGED, Round, counted
from corymb.runs.learners import MODELS, Model
from corymb.runs.own.metrics import Metric
from corymb.runs.own.privacy import is_private
from corymb.runs.plan import check_longer, make_engine, placed_snapshot, placement_for, rounds_in, with_rounds
from corymb.runs.remote.engine import REMOTE_ENGINES
from corymb.runs.serving import remembers
from corymb.runs.session import Progress
from corymb.runs.settings import RunSettings
from corymb.runs.standardise.messages import describe_changed
from corymb.runs.standardise.statistics import changed_scales
from corymb.settings import InvalidInput, from_dict, require, to_dict

if TYPE_CHECKING:
    from corymb.runs.run import Run

log = logging.getLogger(__name__)


def refresh(
    run: Run,
    data: Data,
    *,
    rounds: int | None = None,
    algorithm: Algorithm | None = None,
    model: Model | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: bool | Progress | None = None,
    callbacks: object = (),
    metrics: Mapping[str, Metric] | None = None,
) -> Run:
    """Continue a run on the current data: new examples of its clients, and new clients.

    Arguments:
        run: The run; it is not modified.
        data: All examples that each client has from now on, in any form that `fit` takes.
        rounds: How many more rounds; if not given, as many as the algorithm has, or fewer if the run ends when it has
            converged (`until="converged"`).
        algorithm: Needed if it is your own and the run was loaded; the same holds for `model`.
        out: A new folder for the run that continues this one.
        progress: As for `fit`, and so are `callbacks` and `metrics`.
    """
    observers = Observers(progress, callbacks, metrics)
    dataset = _like(run, as_dataset(data, run.seed).in_order())
    algorithm = algorithm or _algorithm(run, dataset)
    before = rounds_in(to_dict(algorithm))
    require(rounds is None or rounds >= 1, f"rounds must be at least 1, got {rounds}.")
    if before is None:
        raise InvalidInput(f"{run.config['algorithm']} has no rounds and so cannot be continued: start a new run.")
    joined = [name for name in dataset.names if name not in run.names]
    left = [name for name in run.names if name not in dataset.names]
    continued, more = started(algorithm), rounds or before
    if continued is not None and not remembers(continued):
        _warn_of_missing(left)
        continued, start = _with_rounds(continued, more), run.snapshot.handover()
    else:
        require(
            not joined and not left,
            f"Clients of {run.config['algorithm']} cannot join or leave during a run: the new data must have the same "
            f"{len(run.names)} clients, but differ in {', '.join([*joined, *left][:3])}.",
        )
        done = run.snapshot.round if run.stopped == CONVERGED else before
        continued, start = _with_rounds(algorithm, done + more), replace(run.snapshot, fingerprint="")
        check_longer(continued, done, done + more, run.snapshot)
    settings = RunSettings.recorded(run.config)
    if rounds is not None:
        settings = replace(settings, until="rounds")  # an explicit number of rounds is always run in full
    keeps = bool(getattr(continued, "keeps_memory", False))
    plan = partial(
        plan_for,
        _live_engine(run, dataset, out) if keeps else dataset,
        settings,
        live_clock=run.snapshot.clock if keeps else None,
        algorithm=continued,
        model=_model(run, model),
        standard=run.standard,
        record={"refreshed": [*_refreshed(run), {"clock": run.snapshot.clock, "data": run.config["record"]["data"]}]},
        data_name=dataset.name,
        **observers.fields(),
    )
    store = None if out is None else RunStore(check_free(Path(out)))
    with session_for(plan, settings.threads, store) as session:
        session.note_handover(start)
        ledger = copy.deepcopy(run.ledger)
        session.add_notes(_changed_units(run, dataset, settings, continued, ledger))
        at = placed_snapshot(_renamed(start, run.names, dataset.names), session.plan.placement)
        session.take_over(_history(run, dataset.names), ledger, run.seconds)
        if store is not None:
            session.create_folder(at)
        return finish(session, at, observers)


def _changed_units(
    run: Run, data: FederatedDataset, settings: RunSettings, algorithm: Algorithm, ledger: Ledger
) -> list[str]:
    """Notes on features whose values are out of all proportion to the run's standardisation, asked from the clients."""
    if run.standard is None or settings.engine in REMOTE_ENGINES or is_private(algorithm):
        return []
    fed = Federation(make_engine(data, settings, placement_for(settings)))
    fed.ledger = ledger
    targets = run.schema.task == "regression" and bool(run.standard.target_scale != 1)
    changed = changed_scales(fed, run.standard, targets=targets)
    return describe_changed(changed, run.schema.size, run.schema.feature_names)


def _warn_of_missing(left: list[str]) -> None:
    if left:
        named = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
        log.warning(
            "no longer part of the run, because missing from the new data: %s (%s)", named, counted(len(left), "client")
        )


def _like(run: Run, data: FederatedDataset) -> FederatedDataset:
    """The data with the run's numbering of classes; rejects data whose schema differs from the run's."""
    data = _in_order_of(run.schema.feature_names, data)
    plans = [one.columns if one else () for one in (data.preparation, run.schema.preparation)]
    new, old = ([plan._replace(fill=None) for plan in columns] for columns in plans)
    require(
        new == old or not new or not old,
        "The columns of the new data differ from those of the run in name, type or categories: start a new run.",
    )
    if data.task == "classification" == run.schema.task and data.classes != run.schema.classes:
        places = {name: place for place, name in enumerate(run.schema.classes)}
        unknown = next((name for name in data.classes if name not in places), None)
        require(unknown is None, f"The new data have a class {unknown!r} that the run does not have: start a new run.")
        number = torch.tensor([places[name] for name in data.classes])
        train, test = (split._replace(y=number[split.y]) for split in (data.train, data.test))
        data = replace(data, train=train, test=test, classes=run.schema.classes)
    # Compare everything but what may change over time: imputed values, notes, and counts of clients with little data.
    both = schema_of(data), run.schema
    now, then = (schema._replace(preparation=None, notes=(), clients={}) for schema in both)
    for name, got, wanted in zip(now._fields, now, then, strict=True):
        require(got == wanted, f"The new data have {name} {got}, but the run has {wanted}: start a new run.")
    return data


def _in_order_of(names: tuple[str, ...], data: FederatedDataset) -> FederatedDataset:
    """The data with its features in the order of these names, if they are the same: a file's columns may move."""
    if data.feature_names == names or sorted(data.feature_names) != sorted(names) or data.preparation is None:
        return data
    place = {name: number for number, name in enumerate(names)}
    order = torch.tensor([data.feature_names.index(name) for name in names])
    columns = tuple(sorted(data.preparation.columns, key=lambda plan: place[plan.features[0]]))
    return replace(
        data,
        train=data.train._replace(x=data.train.x[:, order]),
        test=data.test._replace(x=data.test.x[:, order]),
        feature_names=names,
        preparation=data.preparation._replace(columns=columns),
    )


def _algorithm(run: Run, data: FederatedDataset) -> Algorithm:
    """The run's algorithm, from its record."""
    name = run.config["algorithm"]
    try:
        kind: Any = entry_of(name).algorithm
    except InvalidInput:
        raise InvalidInput(f"The run's algorithm ({name}) is user-defined: give it again, algorithm=....") from None
    own = {field.name for field in dataclasses.fields(kind)}
    derived = {name: value(data) for name, value in from_data(kind).items()}
    algorithm: Algorithm = from_dict(kind, {**{n: v for n, v in run.config.items() if n in own}, **derived})
    return algorithm


def _with_rounds(algorithm: Any, rounds: int) -> Algorithm:
    changed: Algorithm = from_dict(type(algorithm), with_rounds(to_dict(algorithm), rounds))
    return changed


def _model(run: Run, given: Model | None) -> Model | None:
    if given is not None or run.config["model"] in MODELS:
        return given or str(run.config["model"])
    if run.objective is None:
        raise InvalidInput(f"The run's model ({run.config['model']}) is user-defined: give it again, model=....")
    return run.objective


def _live_engine(run: Run, data: FederatedDataset, out: object) -> Engine:
    """The run's live clients, with their memory and new examples."""
    require(
        run.serving is not None and out is None,
        "The clients of this run keep memory that further rounds need: only the run returned by fit can be continued, "
        "not a loaded one, and without out=.",
    )
    assert run.serving is not None
    engine = run.serving[0]._engine  # the view used for predictions has the same clients
    if (host := getattr(engine, "host", None)) is not None:
        host.journal = None  # its folder belongs to the run that has ended
    cleared = engine.refresh(data)
    if cleared:
        log.warning("client memory tied to the old examples is cleared: %s", ", ".join(cleared))
    return engine


def _renamed(at: Snapshot, before: Sequence[str], names: Sequence[str]) -> Snapshot:
    """A snapshot for other clients: known ones keep their labels, new ones have none."""
    if before == names:
        return at
    place = {name: position for position, name in enumerate(before)}
    labels = [int(at.labels[place[name]]) if name in place else -1 for name in names]
    return replace(at, labels=torch.tensor(labels), shares=None)


def _history(run: Run, names: Sequence[str]) -> list[Round]:
    """The rounds so far, with moves by the clients' new positions and without clients that have left."""
    now = {name: str(position) for position, name in enumerate(names)}
    here = {str(old): now[name] for old, name in enumerate(run.names) if name in now}
    return [{**row, "moves": {here[p]: label for p, label in row["moves"].items() if p in here}} for row in run.history]


def _refreshed(run: Run) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = run.config["record"].get("refreshed", [])
    return found
