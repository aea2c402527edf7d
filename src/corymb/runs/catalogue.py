"""The algorithms by name: the one place where a name stands for a class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from corymb.algorithms.catalogue import CATALOGUE
from corymb.core.snapshot import Algorithm
from corymb.data.dataset import FederatedDataset
from corymb.data.schema import schema_of
from corymb.runs.defaults import defaults_for, with_defaults
from corymb.settings import InvalidInput, did_you_mean, from_dict, require

FromData = Mapping[str, Callable[[FederatedDataset], Any]]
"""Settings that the user does not choose: they come from the data, such as the true clusters."""


@dataclass(frozen=True)
class Row:
    """An algorithm that has a name. Its settings are the fields of its class, and nothing else."""

    algorithm: type[Algorithm]
    description: str
    from_data: FromData = dataclasses.field(default_factory=dict)
    started: Callable[[Any], Algorithm | None] = lambda algorithm: algorithm
    """What of it goes on from given models: all, a part, or nothing (None). A run from the true parameters needs it."""


def _true_clusters(data: FederatedDataset) -> list[int]:
    if data.truth is None:
        raise InvalidInput(f"The true clusters of {data.name!r} are not known: this algorithm cannot run on it.")
    truth = data.in_order().truth  # as engines have the clients
    clusters: list[int] = [] if truth is None else truth.tolist()
    return clusters


FROM_DATA: Mapping[str, FromData] = {"oracle": {"groups": _true_clusters}}
ALGORITHMS: Mapping[str, Row] = MappingProxyType(
    {
        name: Row(entry.algorithm, entry.description, FROM_DATA.get(name, {}), entry.started)
        for name, entry in CATALOGUE.items()
    }
)


def row_of(algorithm: str | type[Algorithm]) -> Row:
    """The row of a name or a class; a class that has no row stands for itself."""
    if isinstance(algorithm, str):
        known = algorithm in ALGORITHMS
        require(known, f"There is no algorithm {algorithm!r}. {did_you_mean(algorithm, ALGORITHMS)}")
        return ALGORITHMS[algorithm]
    rows = (row for row in ALGORITHMS.values() if row.algorithm is algorithm)
    return next(rows, Row(algorithm, ""))


def name_of(algorithm: Algorithm) -> str:
    """The name that an algorithm has on the command line, or its class's."""
    names = (name for name, row in ALGORITHMS.items() if row.algorithm is type(algorithm))
    return next(names, type(algorithm).__name__)


def configure(algorithm: str | type[Algorithm], data: FederatedDataset, **settings: Any) -> Algorithm:
    """An algorithm, by name or class, with the defaults that suit the data; settings that are given win.

    >>> from corymb.data import digits
    >>> ifca = configure("ifca", digits(clients=8), k=4)
    >>> ifca.rounds, ifca.local.lr
    (40, 0.3)
    """
    row = row_of(algorithm)
    filled = {name: value(data) for name, value in row.from_data.items() if name not in settings}
    complete = with_defaults(row.algorithm, {**filled, **settings}, defaults_for(schema_of(data)))
    for field in dataclasses.fields(row.algorithm):  # type: ignore[arg-type]
        if field.name not in complete and field.default is field.default_factory:
            what = algorithm if isinstance(algorithm, str) else algorithm.__name__
            raise InvalidInput(f"{what} needs {field.name}: give it as --{field.name} or {field.name}=....")
    return from_dict(row.algorithm, complete)
