"""Algorithms by name, with the defaults that suit the data: step size, number of rounds, true clusters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from corymb.algorithms.catalogue import CATALOGUE, Entry
from corymb.core.snapshot import Algorithm
from corymb.data.dataset import FederatedDataset
from corymb.data.schema import DataSchema, schema_of
from corymb.local import Descent
from corymb.settings import InvalidInput, did_you_mean, from_dict, require, to_dict

FromData = Mapping[str, Callable[[FederatedDataset], Any]]
"""Settings that the user does not choose but that come from the data, by name."""


class Defaults(NamedTuple):
    """What replaces an algorithm's own defaults; None leaves its default in place."""

    lr: float | None = None
    rounds: int | None = None


def defaults_for(schema: DataSchema) -> Defaults:
    """The defaults for data of a schema.

    >>> defaults_for(DataSchema(task="classification", features=(64,), classes=("0", "1")))
    Defaults(lr=0.3, rounds=40)
    """
    if schema.task == "classification":
        small = not schema.standardise and not schema.picture and schema.size <= 100
        return Defaults(lr=0.3, rounds=40) if small else Defaults()
    if schema.task == "density":
        return Defaults()
    if schema.standardise:
        # The mean squared error over d standardised features has curvature of at most 2 (d + 1), reached if all of
        # them are perfectly correlated: this step size is safe even then.
        return Defaults(lr=min(0.1, 0.5 / (schema.size + 1)))
    return Defaults()


def with_defaults(algorithm: type, given: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """Settings as plain values: what is given, else what suits the data, else the algorithm's own defaults.

    Nested settings are completed field by field, so that giving `local.lr` leaves `local.steps` as it was.
    """
    settings = dict(given)
    for field in dataclasses.fields(algorithm):
        own, value = field.default, given.get(field.name, {})
        if field.name == "rounds" and defaults.rounds is not None:
            settings.setdefault("rounds", defaults.rounds)
        elif isinstance(value, Mapping) and isinstance(own, Descent):
            settings[field.name] = _descent(own, value, defaults)
        elif isinstance(value, Mapping) and dataclasses.is_dataclass(own) and not isinstance(own, type):
            settings[field.name] = {**to_dict(own), **with_defaults(type(own), value, defaults)}
    return settings


def _descent(own: Descent, given: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    tuned = defaults.lr is not None and own.optimiser == "sgd"  # what suits the data is a step of plain descent
    suited = to_dict(own) if not tuned else {**to_dict(own), "lr": defaults.lr}
    if "epochs" in given:
        suited["steps"] = None  # it is one or the other
    return {**suited, **given}


# ---- algorithms by name


def entry_of(name: str) -> Entry:
    """The catalogue's entry for a name."""
    known = name in CATALOGUE
    require(known, f"There is no algorithm {name!r}. {did_you_mean(name, CATALOGUE)}")
    return CATALOGUE[name]


def _entry_for(kind: type[Algorithm]) -> tuple[str, Entry] | None:
    return next(((name, entry) for name, entry in CATALOGUE.items() if entry.algorithm is kind), None)


def name_of(algorithm: Algorithm) -> str:
    """The name of an algorithm in the catalogue, or the name of its class."""
    found = _entry_for(type(algorithm))
    return found[0] if found else type(algorithm).__name__


def started(algorithm: Algorithm) -> Algorithm | None:
    """The part of an algorithm that continues from given models; None if there is none."""
    found = _entry_for(type(algorithm))
    return found[1].started(algorithm) if found else algorithm


def from_data(kind: type[Algorithm]) -> FromData:
    """The settings of an algorithm that come from the data: an oracle is told the true clusters."""
    found = _entry_for(kind)
    return {"groups": _true_clusters} if found and found[1].role == "oracle" else {}


def _true_clusters(data: FederatedDataset) -> list[int]:
    truth = data.in_order().truth  # in the order that clients have on every engine
    if truth is None:
        raise InvalidInput(f"The true clusters of {data.name!r} are not known: this algorithm cannot run on it.")
    clusters: list[int] = truth.tolist()
    return clusters


def configure(algorithm: str | type[Algorithm], data: FederatedDataset, **settings: Any) -> Algorithm:
    """An algorithm, by name or class, with the defaults that suit the data; settings that are given win.

    >>> from corymb.data import digits
    >>> ifca = configure("ifca", digits(clients=8), k=4)
    >>> ifca.rounds, ifca.local.lr
    (40, 0.3)
    """
    kind = entry_of(algorithm).algorithm if isinstance(algorithm, str) else algorithm
    filled = {name: value(data) for name, value in from_data(kind).items() if name not in settings}
    complete = with_defaults(kind, {**filled, **settings}, defaults_for(schema_of(data)))
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in complete and field.default is field.default_factory:
            name = algorithm if isinstance(algorithm, str) else algorithm.__name__
            raise InvalidInput(f"{name} needs {field.name}: give it as --{field.name} or {field.name}=....")
    return from_dict(kind, complete)
