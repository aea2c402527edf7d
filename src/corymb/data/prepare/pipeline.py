"""Prepare a user's rows with labels and clients as training and test examples of named clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
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
    MOST_LISTED,
    ColumnPlan,
    RowName,
    Table,
    encode,
    learn_columns,
    unknown_categories,
)
from corymb.data.prepare.named import Categories, Fills
from corymb.data.prepare.pictures import as_in_run, channels_first, in_unit_range, is_picture
from corymb.data.ragged import Ragged, by_client
from corymb.data.split import held_out
from corymb.data.validate import check_features
from corymb.settings import require

log = logging.getLogger(__name__)

_MISSING, _SCALES = get_args(Missing), ("auto", *get_args(Scale))


class Source(NamedTuple):
    """The input of preparation, from any format."""

    x: Array | Table
    """An array of numbers, or columns by name."""
    y: Column | None
    """Labels; None if a density is to be learned."""
    client: Array
    """Client ids: text or integers; empty text is missing."""
    test: float | Array
    """The share of each client's rows to hold out, or a boolean for each row."""
    names: Sequence[str] | None = None
    """The clients' names, if ids are indices of them or their order matters."""
    where: RowName = lambda row: f"row {row}"
    named: bool = True
    """Whether the columns have names."""


class PrepareOptions(NamedTuple):
    """Options of preparation."""

    task: Task | Literal["auto"] = "auto"
    classes: Sequence[str] = ()
    categories: Categories = MappingProxyType({})
    missing: Missing | Fills = "refuse"
    scale: Scale | Literal["auto"] = "auto"
    seed: int = 0


class Preparation(NamedTuple):
    """How features were prepared, as plain values that are stored with a run to prepare new examples the same way."""

    scale: Scale
    top: int = 1
    """The divisor of pixels."""
    columns: tuple[ColumnPlan, ...] = ()
    """How the columns of a table became features; empty for an array of numbers."""

    def describe(self) -> dict[str, Any]:
        """The preparation as a JSON-compatible mapping."""
        return {**self._asdict(), "columns": [plan._asdict() for plan in self.columns]}

    @staticmethod
    def read(values: Mapping[str, Any]) -> Preparation:
        """Rebuild a preparation from the mapping that `describe` returned."""
        return Preparation(values["scale"], values["top"], tuple(ColumnPlan.read(one) for one in values["columns"]))

    def apply(self, x: Array | Table, where: RowName = lambda row: f"row {row}") -> Tensor:
        """Prepare new examples as the clients of the run prepared theirs."""
        table = _as_table(x, self.columns) if self.columns else x
        if isinstance(table, Mapping):
            absent = [plan.name for plan in self.columns if plan.name not in table]
            require(not absent, f"There is no column {', '.join(map(repr, absent))}: give all columns of the run.")
            cells, table = table, encode(table, self.columns, where, codes=self.scale == "codes")
            for note in unknown_categories(cells, self.columns)[:FEW]:
                log.warning("%s", note)
        if self.scale == "codes":
            return as_codes(table, where)
        return as_in_run(channels_first(table), self.top) if self.scale == "pixels" else as_features(table)


class Prepared(NamedTuple):
    """The fields of a data set that follow from a source."""

    train: Ragged
    test: Ragged
    names: Sequence[str]
    task: Task
    classes: tuple[str, ...]
    feature_names: tuple[str, ...]
    standardise: bool
    preparation: Preparation
    notes: tuple[str, ...]


def prepare(source: Source, options: PrepareOptions) -> Prepared:
    """Prepare a source: name the clients, read the labels, split off test rows and convert the features."""
    require(
        isinstance(options.missing, Mapping) or options.missing in _MISSING,
        f"missing={options.missing!r}: wanted one of {', '.join(map(repr, _MISSING))}, or {{'column': number}}.",
    )
    require(options.scale in _SCALES, f"scale={options.scale!r}: wanted one of {', '.join(map(repr, _SCALES))}.")
    check_features([len(source.x)] if isinstance(source.x, Mapping) else source.x.shape[1:])
    source, notes = _complete(_tabular(source, options), options.missing)
    clients = name_clients(source.client, source.names)
    if options.missing == "drop":
        clients = clients.present()
    labels = _labels(source, clients, options)
    mask = _mask(source.test, clients, options.seed)
    x, names, preparation, more = _features(source, clients, ~mask, options)
    codes, n = torch.from_numpy(clients.codes), clients.n
    held = torch.from_numpy(mask)
    more += _never_trained(labels, held)
    return Prepared(
        train=by_client(x[~held], labels.y[~held], codes[~held], n),
        test=by_client(x[held], labels.y[held], codes[held], n),
        names=clients.names,
        task=labels.task,
        classes=labels.classes,
        feature_names=names,
        standardise=preparation.scale == "standard",
        preparation=preparation,
        notes=(*notes, *labels.notes, *more),
    )


def _labels(source: Source, clients: Clients, options: PrepareOptions) -> Labels:
    if source.y is None:
        require(
            options.task in ("auto", "density"), f"There are no labels: task={options.task!r} needs one for each row."
        )
        return no_labels(len(source.client))
    return read_labels(source.y, clients, options.task, options.classes, source.where)


def _never_trained(labels: Labels, held: Tensor) -> list[str]:
    """A note on classes that only test examples have."""
    if labels.task != "classification" or not bool(held.any()) or bool(held.all()):
        return []
    missing = sorted(set(labels.y[held].unique().tolist()) - set(labels.y[~held].unique().tolist()))
    names = ", ".join(repr(labels.classes[one]) for one in missing[:MOST_LISTED])
    more = f" and {len(missing) - MOST_LISTED} more" if len(missing) > MOST_LISTED else ""
    what, it = ("class", "it") if len(missing) == 1 else ("classes", "them")
    return [f"{what} {names}{more}: only test examples have {it}, so that no model can learn {it}"] if missing else []


def _tabular(source: Source, options: PrepareOptions) -> Source:
    """Convert x to columns if cells may be missing or are not numbers."""
    x = source.x
    if isinstance(x, Mapping):
        return source
    plain = options.missing in ("refuse", "drop") and not options.categories
    if x.ndim != 2 or (x.dtype.kind in "biuf" and plain and not _has_nan(x)):
        for name, given in (("categories", options.categories), ("missing", isinstance(options.missing, Mapping))):
            require(not given, f"{name} names columns of a table, and examples with {x.ndim - 1} axes have none.")
        return source
    names = [str(place) for place in range(x.shape[1])]
    return source._replace(x={name: as_column(x[:, place], name) for place, name in enumerate(names)}, named=False)


def _has_nan(x: Array) -> bool:
    return x.dtype.kind == "f" and bool(np.isnan(x).any())


def _as_table(x: Array | Table, plans: Sequence[ColumnPlan]) -> Array | Table:
    """Convert new examples to the run's columns, unless they are already features."""
    if isinstance(x, Mapping):
        return x
    width, numbers = sum(len(plan.features) for plan in plans), x.dtype.kind in "biuf"
    if x.ndim != 2 or (numbers and x.shape[1] == width and any(plan.what == "category" for plan in plans)):
        return x
    require(
        x.shape[1] == len(plans),
        f"Examples have {x.shape[1]} columns, but the run has {len(plans)}: "
        f"{', '.join(repr(plan.name) for plan in plans)}.",
    )
    table = {plan.name: as_column(x[:, place], plan.name) for place, plan in enumerate(plans)}
    dates = [plan.name for plan in plans if plan.what == "date" and numbers]  # already days
    return table | {name: table[name]._replace(kinds=np.where(table[name].kinds, Kind.DATE, 0)) for name in dates}


def _complete(source: Source, missing: Missing | Fills) -> tuple[Source, list[str]]:
    """Drop rows with missing values if requested; otherwise require a client for each row."""
    no_client = source.client == "" if source.client.dtype.kind == "U" else np.zeros(len(source.client), bool)
    labels = _rows(source) if source.y is None else source.y.kinds
    lengths = len(_rows(source)), len(labels), len(source.client)
    require(
        len(set(lengths)) == 1,
        "x has {} rows, y {} and client {}: give one label and one client for each row.".format(*lengths),
    )
    require(lengths[0] > 0, "There are no rows: x, y and client are empty.")
    if missing != "drop":
        first = source.where(int(no_client.argmax()))
        remedy = "fill it in, or drop such rows (missing='drop', --missing drop)"
        require(not no_client.any(), f"The client in {first} is missing: {remedy}.")
        return source, []
    lacking = no_client if source.y is None else no_client | (source.y.kinds == Kind.MISSING)
    if isinstance(source.x, Mapping):
        for column in source.x.values():
            lacking = lacking | (column.kinds == Kind.MISSING)
    if not lacking.any():
        return source, []
    require(not lacking.all(), "Every row lacks a value, so none would be left: use missing='median' or 'mean'.")
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
    gone = set(source.client[~no_client].tolist()) - set(kept.client.tolist())
    notes = [f"{int(lacking.sum())} of {len(lacking)} rows lack a value and were dropped"]
    who, are = ("1 client", "is") if len(gone) == 1 else (f"{len(gone)} clients", "are")
    return kept, notes + ([f"{who} had no complete row and {are} left out"] if gone else [])


def _rows(source: Source) -> Array:
    return next(iter(source.x.values())).kinds if isinstance(source.x, Mapping) else source.x


def _mask(test: float | Array, clients: Clients, seed: int) -> Array:
    if isinstance(test, np.ndarray):
        return test
    return held_out(torch.from_numpy(clients.codes), clients.names, test, seed).numpy()


FEW_LISTED = 10
"""At most this many columns that lose their differences in float32 get a note."""


def _features(
    source: Source, clients: Clients, train: Array, options: PrepareOptions
) -> tuple[Tensor, tuple[str, ...], Preparation, list[str]]:
    """The features for training, their names, their preparation, and notes."""
    x, plans, notes, lost = source.x, tuple[ColumnPlan, ...](), list[str](), list[str]()
    if isinstance(x, Mapping):
        rows, codes = np.flatnonzero(train), options.scale == "codes"
        plans, notes = learn_columns(
            x, clients, rows, options.missing, source.where, codes=codes, categories=options.categories
        )
        for plan in plans if options.scale == "codes" else ():
            require(
                plan.what == "number",
                f"Column {plan.name!r} does not hold numbers: codes (scale='codes') are integers from 0.",
            )
        numbers = {f"column {plan.name!r}": x[plan.name].values for plan in plans if plan.what == "number"}
        if options.scale != "codes":
            lost = [what for what, values in numbers.items() if bool(blurred(values))]
            for what, values in numbers.items():
                require_sums(values[:, None], [what])
        x = encode(x, plans, source.where, codes=options.scale == "codes")
    elif x.ndim == 2 and options.scale != "codes":
        require_sums(x, [f"feature {place}" for place in range(x.shape[1])])
        lost = [f"feature {place}" for place in np.flatnonzero(blurred(x))] if x.dtype.itemsize > 4 else []
    notes += [f"{what}: large numbers that differ only beyond the 7 digits of float32" for what in lost[:FEW_LISTED]]
    names = tuple(name for plan in plans for name in plan.features) if source.named else ()
    scale: Scale = ("pixels" if is_picture(x) else "standard") if options.scale == "auto" else options.scale
    if scale != "pixels":
        taken = as_codes(x, source.where) if scale == "codes" else as_features(x)
        return taken, names, Preparation(scale, 1, plans), notes
    pixels, top, more = in_unit_range(channels_first(x), clients)
    return pixels, names, Preparation(scale, top, plans), notes + more
