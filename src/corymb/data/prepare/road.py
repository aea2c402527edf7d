"""The road itself: rows of a user with labels and clients, to train and test examples of named clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from corymb.choices import Missing, Scale, Task
from corymb.data.clients import Clients, name_clients
from corymb.data.features import Array, as_codes, as_features, blurred, require_sums
from corymb.data.labels import Labels, no_labels, read_labels
from corymb.data.prepare.cells import Column, Kind, as_column
from corymb.data.prepare.columns import (
    FEW,
    MOST_TOLD,
    ColumnPlan,
    RowName,
    Table,
    encode,
    learn_columns,
    unknown_categories,
)
from corymb.data.prepare.pictures import as_in_run, channels_first, in_unit_range, is_picture
from corymb.data.ragged import Ragged, by_client
from corymb.data.split import held_out
from corymb.data.validate import check_features
from corymb.settings import require

log = logging.getLogger(__name__)

_MISSING, _SCALES = get_args(Missing), ("auto", *get_args(Scale))


class Source(NamedTuple):
    """What came in by a door."""

    x: Array | Table
    """An array of numbers, or columns by name."""
    y: Column | None
    """Labels; none where a density is to be learned."""
    client: Array
    """Ids: text or whole numbers; an empty text is missing."""
    test: float | Array
    """The share of each client's rows to hold out, or a boolean for each row."""
    names: Sequence[str] | None = None
    """The clients' names, where ids are positions among them or the order matters."""
    where: RowName = lambda row: f"row {row}"
    named: bool = True
    """Whether columns have names of their own."""


class How(NamedTuple):
    """How to prepare it."""

    task: Task | Literal["auto"] = "auto"
    classes: Sequence[str] = ()
    missing: Missing = "refuse"
    scale: Scale | Literal["auto"] = "auto"
    seed: int = 0


class Preparation(NamedTuple):
    """What was done to features; plain values, kept with a run so that new examples go the same way."""

    scale: Scale
    top: int = 1
    """What pixels were divided by."""
    columns: tuple[ColumnPlan, ...] = ()
    """How the columns of a table became features; empty where an array of numbers came in."""

    def describe(self) -> dict[str, Any]:
        """As a mapping that JSON can hold."""
        return {**self._asdict(), "columns": [plan._asdict() for plan in self.columns]}

    @staticmethod
    def read(values: Mapping[str, Any]) -> Preparation:
        """From what `describe` gave."""
        return Preparation(values["scale"], values["top"], tuple(ColumnPlan.read(one) for one in values["columns"]))

    def apply(self, x: Array | Table, where: RowName = lambda row: f"row {row}") -> Tensor:
        """New examples as features: what the clients of a run did with theirs."""
        table = _as_table(x, self.columns) if self.columns else x
        if isinstance(table, Mapping):
            absent = [plan.name for plan in self.columns if plan.name not in table]
            require(not absent, f"There is no column {', '.join(map(repr, absent))}: give all that the run was given.")
            cells, table = table, encode(table, self.columns, where, codes=self.scale == "codes")
            for note in unknown_categories(cells, self.columns)[:FEW]:
                log.warning("%s", note)
        if self.scale == "codes":
            return as_codes(table, where)
        return as_in_run(channels_first(table), self.top) if self.scale == "pixels" else as_features(table)


class Prepared(NamedTuple):
    """The fields of a data set that come from a source."""

    train: Ragged
    test: Ragged
    names: tuple[str, ...]
    task: Task
    classes: tuple[str, ...]
    feature_names: tuple[str, ...]
    standardise: bool
    preparation: Preparation
    notes: tuple[str, ...]


def prepare(source: Source, how: How) -> Prepared:
    """Take the road: who there is, what labels are, who tests what, and features as numbers."""
    require(how.missing in _MISSING, f"missing={how.missing!r}: one of {', '.join(map(repr, _MISSING))}.")
    require(how.scale in _SCALES, f"scale={how.scale!r}: one of {', '.join(map(repr, _SCALES))}.")
    check_features([len(source.x)] if isinstance(source.x, Mapping) else source.x.shape[1:])
    source, notes = _complete(_tabular(source, how.missing), how.missing)
    clients = name_clients(source.client, source.names)
    if how.missing == "drop":
        clients = clients.present()
    labels = _labels(source, clients, how)
    mask = _mask(source.test, clients, how.seed)
    x, names, preparation, told = _features(source, clients, ~mask, how)
    codes, n = torch.from_numpy(clients.codes), clients.n
    held = torch.from_numpy(mask)
    told += _never_trained(labels, held)
    return Prepared(
        train=by_client(x[~held], labels.y[~held], codes[~held], n),
        test=by_client(x[held], labels.y[held], codes[held], n),
        names=clients.names,
        task=labels.task,
        classes=labels.classes,
        feature_names=names,
        standardise=preparation.scale == "standard",
        preparation=preparation,
        notes=(*notes, *labels.notes, *told),
    )


def _labels(source: Source, clients: Clients, how: How) -> Labels:
    if source.y is None:
        require(how.task in ("auto", "density"), f"There are no labels: task={how.task!r} needs one for each row.")
        return no_labels(len(source.client))
    return read_labels(source.y, clients, how.task, how.classes, source.where)


def _never_trained(labels: Labels, held: Tensor) -> list[str]:
    """A note on classes that only test examples have."""
    if labels.task != "classification" or not bool(held.any()) or bool(held.all()):
        return []
    missing = sorted(set(labels.y[held].unique().tolist()) - set(labels.y[~held].unique().tolist()))
    names = ", ".join(repr(labels.classes[one]) for one in missing[:MOST_TOLD])
    more = f" and {len(missing) - MOST_TOLD} more" if len(missing) > MOST_TOLD else ""
    what, it = ("class", "it") if len(missing) == 1 else ("classes", "them")
    return [f"{what} {names}{more}: only test examples have {it}, so that no model can learn {it}"] if missing else []


def _tabular(source: Source, missing: Missing) -> Source:
    """A source whose x is columns wherever cells may be missing or are not numbers."""
    x = source.x
    if isinstance(x, Mapping):
        return source
    if x.ndim != 2 or (x.dtype.kind in "biuf" and missing in ("refuse", "drop") and not _has_nan(x)):
        return source
    names = [str(place) for place in range(x.shape[1])]
    return source._replace(x={name: as_column(x[:, place], name) for place, name in enumerate(names)}, named=False)


def _has_nan(x: Array) -> bool:
    return x.dtype.kind == "f" and bool(np.isnan(x).any())


def _as_table(x: Array | Table, plans: Sequence[ColumnPlan]) -> Array | Table:
    """New examples by the run's columns, where they are not features already."""
    if isinstance(x, Mapping):
        return x
    width, numbers = sum(len(plan.features) for plan in plans), x.dtype.kind in "biuf"
    if x.ndim != 2 or (numbers and x.shape[1] == width and any(plan.what == "category" for plan in plans)):
        return x
    require(
        x.shape[1] == len(plans),
        f"Examples have {x.shape[1]} columns, the run was given {len(plans)}: "
        f"{', '.join(repr(plan.name) for plan in plans)}.",
    )
    table = {plan.name: as_column(x[:, place], plan.name) for place, plan in enumerate(plans)}
    dates = [plan.name for plan in plans if plan.what == "date" and numbers]  # days already
    return table | {name: table[name]._replace(kinds=np.where(table[name].kinds, Kind.DATE, 0)) for name in dates}


def _complete(source: Source, missing: Missing) -> tuple[Source, list[str]]:
    """Without the rows that lack something, if those are to be dropped."""
    nobody = source.client == "" if source.client.dtype.kind == "U" else np.zeros(len(source.client), bool)
    labels = _rows(source) if source.y is None else source.y.kinds
    lengths = len(_rows(source)), len(labels), len(source.client)
    require(
        len(set(lengths)) == 1,
        "x has {} rows, y {} and client {}: give one label and one client for each row.".format(*lengths),
    )
    require(lengths[0] > 0, "There are no rows: x, y and client are empty.")
    if missing != "drop":
        first = source.where(int(nobody.argmax()))
        how = "fill it in, or drop such rows (missing='drop', --missing drop)"
        require(not nobody.any(), f"The client in {first} is missing: {how}.")
        return source, []
    lacking = nobody if source.y is None else nobody | (source.y.kinds == Kind.MISSING)
    if isinstance(source.x, Mapping):
        for column in source.x.values():
            lacking = lacking | (column.kinds == Kind.MISSING)
    if not lacking.any():
        return source, []
    require(not lacking.all(), "Every row lacks a value, so that none would be left: say missing='median' or 'mean'.")
    rows, before = np.flatnonzero(~lacking), source.where
    x = (
        {name: column.take(rows) for name, column in source.x.items()}
        if isinstance(source.x, Mapping)
        else source.x[rows]
    )
    kept = source._replace(
        x=x,
        y=None if source.y is None else source.y.take(rows),
        client=source.client[rows],
        test=source.test[rows] if isinstance(source.test, np.ndarray) else source.test,
        where=lambda row: before(int(rows[row])),
    )
    gone = set(source.client[~nobody].tolist()) - set(kept.client.tolist())
    notes = [f"{int(lacking.sum())} of {len(lacking)} rows lack a value and were dropped"]
    return kept, notes + ([f"{len(gone)} clients had no complete row and are left out"] if gone else [])


def _rows(source: Source) -> Array:
    return next(iter(source.x.values())).kinds if isinstance(source.x, Mapping) else source.x


def _mask(test: float | Array, clients: Clients, seed: int) -> Array:
    if isinstance(test, np.ndarray):
        return test
    return held_out(torch.from_numpy(clients.codes), clients.names, test, seed).numpy()


FEW_TOLD = 10
"""So many columns are named that lose what their numbers differ by."""


def _features(
    source: Source, clients: Clients, train: Array, how: How
) -> tuple[Tensor, tuple[str, ...], Preparation, list[str]]:
    """Features as training takes them, their names, what was done to them, and what is to be said about it."""
    x, plans, notes, lost = source.x, tuple[ColumnPlan, ...](), list[str](), list[str]()
    if isinstance(x, Mapping):
        rows, codes = np.flatnonzero(train), how.scale == "codes"
        plans, notes = learn_columns(x, clients, rows, how.missing, source.where, codes=codes)
        for plan in plans if how.scale == "codes" else ():
            require(
                plan.what == "number",
                f"Column {plan.name!r} holds no numbers: codes (scale='codes') are whole numbers from 0 on.",
            )
        numbers = {f"column {plan.name!r}": x[plan.name].values for plan in plans if plan.what == "number"}
        if how.scale != "codes":
            lost = [what for what, values in numbers.items() if bool(blurred(values))]
            for what, values in numbers.items():
                require_sums(values[:, None], [what])
        x = encode(x, plans, source.where, codes=how.scale == "codes")
    elif x.ndim == 2 and x.dtype.itemsize > 4 and how.scale != "codes":
        require_sums(x, [f"feature {place}" for place in range(x.shape[1])])
        lost = [f"feature {place}" for place in np.flatnonzero(blurred(x))]
    notes += [f"{what}: large numbers that differ only beyond the 7 digits that are kept" for what in lost[:FEW_TOLD]]
    names = tuple(name for plan in plans for name in plan.features) if source.named else ()
    scale: Scale = ("pixels" if is_picture(x) else "standard") if how.scale == "auto" else how.scale
    if scale != "pixels":
        taken = as_codes(x, source.where) if scale == "codes" else as_features(x)
        return taken, names, Preparation(scale, 1, plans), notes
    pixels, top, told = in_unit_range(channels_first(x), clients)
    return pixels, names, Preparation(scale, top, plans), notes + told
