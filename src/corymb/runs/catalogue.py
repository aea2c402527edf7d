"""The algorithms by name: the one place where a name stands for a class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from corymb.algorithms import (
    CFL,
    IFCA,
    SRFCA,
    Alone,
    FedAvg,
    FedProx,
    FedSoft,
    FedX,
    LocalKMeans,
    MomentDescent,
    OneShot,
    OneShotIFCA,
    Oracle,
)
from corymb.core.snapshot import Algorithm
from corymb.data.dataset import FederatedDataset
from corymb.data.schema import schema_of
from corymb.runs.defaults import defaults_for, with_defaults
from corymb.settings import InvalidInput, did_you_mean, from_dict, require

FromData = Mapping[str, Callable[[FederatedDataset], Any]]
"""Settings that are no choice of the user's but come from the data, such as the true clusters."""


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


def _one_run(algorithm: IFCA) -> IFCA:
    """Restarts have nothing to choose from when the start is given."""
    return dataclasses.replace(algorithm, restarts=1)


def _second_phase(algorithm: MomentDescent) -> FedX | None:
    """Its first phase finds the start that is given here."""
    return algorithm.then


def _nothing(algorithm: Algorithm) -> None:
    return None


ALGORITHMS: Mapping[str, Row] = MappingProxyType(
    {
        "ifca": Row(IFCA, "clients choose the model that fits them, and train it, by turns", started=_one_run),
        "sr-fca": Row(
            SRFCA, "clusters from the distances of local models, refined; finds their number", started=_nothing
        ),
        "moment-descent": Row(
            MomentDescent, "mixed regression from any start: moments of residuals, then fedx", started=_second_phase
        ),
        "fedx": Row(FedX, "moment descent's second phase alone: choose, then FedAvg or FedProx"),
        "one-shot-ifca": Row(OneShotIFCA, "ifca started from sr-fca's first clusters", started=_nothing),
        "cfl": Row(CFL, "one model, split in two where clients pull apart", started=_nothing),
        "fedsoft": Row(FedSoft, "every client a mixture of clusters, by the share of its examples", started=_nothing),
        "local-kmeans": Row(LocalKMeans, "k-means on local models, whose means are served", started=_nothing),
        "fedavg": Row(FedAvg, "one model for everybody, the global baseline"),
        "fedprox": Row(FedProx, "as fedavg, with clients held near the model they were sent"),
        "alone": Row(Alone, "every client by itself, the local baseline", started=_nothing),
        "one-shot": Row(OneShot, "clusters from local models once, then training inside them", started=_nothing),
        "oracle": Row(Oracle, "training inside the true clusters, where they are known", {"groups": _true_clusters}),
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
