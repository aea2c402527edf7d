"""Arrays with a client for each row, sorted into train and test examples of named clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from corymb.core.engine import in_order
from corymb.data.features import Array, as_array, as_features
from corymb.data.labels import Labels, Task, read_labels
from corymb.data.ragged import Ragged, by_client
from corymb.data.split import held_out
from corymb.settings import InvalidInput, require

Values = ArrayLike | Tensor
Test = float | Values | tuple[Values, Values, Values]
Truth = Values | Mapping[str, int]


class Ordered(NamedTuple):
    """The fields of a data set that come from arrays."""

    train: Ragged
    test: Ragged
    names: tuple[str, ...]
    task: Task
    classes: tuple[str, ...]


class _Rows(NamedTuple):
    x: Tensor
    y: Tensor
    client: Tensor

    def where(self, mask: Tensor, n: int) -> Ragged:
        return by_client(self.x[mask], self.y[mask], self.client[mask], n)


def order(x: Values, labels: Labels, client: Values, *, test: Test, names: Sequence[str] | None, seed: int) -> Ordered:
    """Features, labels and each row's client as train and test examples of named clients."""
    named, codes = name_clients(as_array(client), names)
    rows = _Rows(as_features(x), labels.y, codes)
    _check_lengths(rows)
    train, held = _divide(rows, test, named, labels, seed)
    return Ordered(train, held, named, labels.task, labels.classes)


def _divide(rows: _Rows, test: Test, names: tuple[str, ...], labels: Labels, seed: int) -> tuple[Ragged, Ragged]:
    n = len(names)
    if isinstance(test, tuple):
        x, y, client = test
        codes = name_clients(as_array(client), names)[1]
        held = _Rows(as_features(x), read_labels(as_array(y), labels.task, labels.classes).y, codes)
        _check_lengths(held)
        return by_client(*rows, n), by_client(*held, n)
    mask = _mask(as_array(test), rows.client, names, seed)
    return rows.where(~mask, n), rows.where(mask, n)


def _mask(test: Array, client: Tensor, names: tuple[str, ...], seed: int) -> Tensor:
    if test.ndim == 0 and test.dtype.kind in "iuf":
        return held_out(client, names, float(test), seed)
    require(
        test.dtype == np.bool_ and test.shape == client.shape,
        f"test is {test.dtype} {list(test.shape)}: wanted a share, a boolean for each of the {len(client)} rows, or "
        "(x, y, client) of the test examples.",
    )
    return torch.from_numpy(test.copy())


def _check_lengths(rows: _Rows) -> None:
    x, y, client = (len(part) for part in rows)
    require(x == y == client, f"x has {x} rows, y {y} and client {client}: give one label and one client for each row.")


def name_clients(client: Array, names: Sequence[str] | None) -> tuple[tuple[str, ...], Tensor]:
    """The clients' names, and each row's position among them.

    Without `names`, clients are in the order of their names, in which runs of digits count as numbers; with them,
    whole-number ids are positions in `names`.
    """
    require(client.ndim == 1, f"client has the shape {list(client.shape)}: wanted one client id for each row.")
    if client.dtype.kind == "O":
        require(all(isinstance(one, str) for one in client), "Client ids are of mixed types: make all of them text.")
        client = client.astype(np.str_)
    require(client.dtype.kind in "iuU", f"Client ids are of type {client.dtype}: wanted whole numbers or text.")
    if names is not None and client.dtype.kind in "iu":
        return tuple(names), _positions(client, len(names))
    found, codes = np.unique(client, return_inverse=True)
    occurring = [str(one) for one in found]
    wanted = tuple(names) if names is not None else tuple(occurring[place] for place in in_order(occurring))
    number = {name: position for position, name in enumerate(wanted)}
    for name in occurring:
        require(
            name in number, f"There are rows of client {name!r}, who is not among the clients: correct or add the name."
        )
    lookup = torch.tensor([number[name] for name in occurring], dtype=torch.int64)
    return wanted, lookup[torch.from_numpy(codes)]


def _positions(client: Array, n: int) -> Tensor:
    for one in client[(client < 0) | (client >= n)][:1]:
        raise InvalidInput(
            f"Client id {one} is not a position in the {n} names: number the clients from 0, or name more."
        )
    return torch.from_numpy(client.astype(np.int64))


def read_truth(truth: Truth | None, names: Sequence[str]) -> Tensor | None:
    """True clusters in the order of `names`, from an array in that order or from a mapping by name."""
    if truth is None:
        return None
    if isinstance(truth, Mapping):
        for name in names:
            require(name in truth, f"truth has no cluster for client {name!r}: give one for every client.")
        truth = [truth[name] for name in names]
    clusters = as_array(truth)
    if clusters.dtype.kind not in "iu":
        raise InvalidInput(f"truth is of type {clusters.dtype}: wanted a whole number for each client.")
    return torch.from_numpy(clusters.astype(np.int64))
