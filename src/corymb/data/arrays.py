"""Arrays with a client for each row, or arrays of each client, as a `Source` for preparation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from corymb.data.clients import Values
from corymb.data.features import Array, as_array
from corymb.data.prepare.cells import Column, as_column, joined
from corymb.data.prepare.pipeline import Source
from corymb.data.readers.contents import Contents
from corymb.data.readers.frames import is_frame, read_frame
from corymb.data.readers.torch_dataset import as_arrays
from corymb.settings import InvalidInput, require

Test = float | Values | tuple[Values, Values, Values]


def source_of(
    x: Values,
    y: Values | None,
    client: Values,
    *,
    test: Test,
    names: Sequence[str] | None,
    feature_names: Sequence[str],
) -> Source:
    """A source of features, labels (if any) and each row's client; separate test examples are appended as rows."""
    features, labels, owner = features_in(x), None if y is None else labels_in(y), as_array(client)
    held = _mask(test, len(features if labels is None else labels.kinds))
    if isinstance(test, tuple):
        require(labels is not None, "Separate test examples need labels for the training examples too: give y.")
        assert labels is not None
        more, more_labels, more_owner = features_in(test[0]), labels_in(test[1]), as_array(test[2])
        one, other = list(more.shape[1:]), list(features.shape[1:])
        require(one == other, f"Test examples have shape {one}, but training examples {other}: they must agree.")
        held = np.repeat([False, True], [len(features), len(more)])
        features, labels = np.concatenate([features, more]), joined([labels, more_labels])
        owner = np.concatenate([owner, more_owner])
    if not len(feature_names):
        return Source(features, labels, owner, held, names)
    shape = list(features.shape[1:])
    require(
        [len(feature_names)] == shape,
        f"There are {len(feature_names)} feature names for features of shape {shape}: give one name per feature.",
    )
    columns = {name: as_column(features[:, place], name) for place, name in enumerate(feature_names)}
    return Source(columns, labels, owner, held, names)


def _mask(test: Test, rows: int) -> float | Array:
    if isinstance(test, tuple):
        return 0.0
    given = as_array(test)
    if given.ndim == 0 and given.dtype.kind in "iuf":
        return float(given)
    require(
        given.dtype == np.bool_ and given.shape == (rows,),
        f"test is {given.dtype} {list(given.shape)}: wanted a share, a boolean for each of the {rows} rows, or "
        "(x, y, client) of the test examples.",
    )
    return given


def features_in(x: Values) -> Array:
    """Convert features to an array; an array of Python objects or text is a table and must have two axes."""
    try:
        array = as_array(x)
    except ValueError as error:
        _check_sizes(x)
        raise InvalidInput(f"x cannot be converted to an array ({error}): wanted [rows, features].") from None
    if array.dtype.kind == "O" and array.ndim == 1:
        _check_sizes(array)
    require(array.dtype.kind in "biufUO", f"Features are of type {array.dtype}: wanted numbers or text.")
    require(
        array.ndim >= 2,
        f"x has shape {list(array.shape)}: wanted [rows, features]; use x[:, None] for one feature.",
    )
    table = array.dtype.kind in "biuf" or array.ndim == 2
    require(table, f"Features are of type {array.dtype}: wanted numbers.")
    return array


def _check_sizes(x: Any) -> None:
    """Reject examples of different sizes, such as pictures or sequences that were not brought to one size."""
    try:
        shapes = [list(np.shape(one)) for one in x]
    except ValueError:  # a single example cannot be converted to an array
        return
    for place, shape in [(place, shape) for place, shape in enumerate(shapes) if shape != shapes[0]][:1]:
        raise InvalidInput(
            f"Examples have different sizes (example 0 {shapes[0]}, example {place} {shape}): resize pictures to one "
            "size, and cut or pad sequences to one length."
        )


def _how(y: Array) -> str:
    """Advice for the error on labels with several values for each example; empty for a single axis."""
    if y.ndim < 2:
        return ""
    if y.ndim != 2 or y.dtype.kind not in "biuf":
        return "; labels for each pixel or each part of a sequence are not supported"
    one_hot = bool(((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all())
    return ": use y.argmax(1)" if one_hot else "; for several labels or targets, fit one run for each"


def labels_in(y: Values) -> Column:
    """Convert labels to a column with one label for each row."""
    values = as_array(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    shape = list(values.shape)
    require(values.ndim == 1, f"Labels have shape {shape}: wanted one label for each example{_how(values)}.")
    require(
        values.dtype.kind in "biufUO",
        f"Labels are of type {values.dtype}: wanted numbers, booleans or text.",
    )
    return as_column(values, "y")


def contents_of_clients(clients: Mapping[str, Any] | Sequence[Any], label: str | None) -> dict[str, Contents]:
    """The rows of each client, by its name: a pair (x, y), a data frame or a torch data set of pairs."""
    items = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    found: dict[str, Contents] = {}
    for name, rows in items:
        require(str(name) not in found, f"Two clients are called {str(name)!r}: rename one.")  # such as 1 and "1"
        found[str(name)] = _of_client(str(name), rows, label)
    return found


def _of_client(name: str, rows: Any, label: str | None) -> Contents:
    def where(row: int) -> str:
        return f"client {name!r}, row {row}"

    if is_frame(rows):
        read = read_frame(rows, client=None, label=label, features=None, whole=False)
        return read._replace(origin=f"client {name!r}", where=where)
    if isinstance(rows, Dataset):
        rows = as_arrays(rows)
    pair = isinstance(rows, (tuple, list)) and len(rows) == 2
    require(
        pair,
        f"Client {name!r} has a {type(rows).__name__}: wanted a pair (x, y), a data frame or a torch data set.",
    )
    x, y = features_in(rows[0]), labels_in(rows[1])
    require(
        len(x) == len(y.kinds),
        f"Client {name!r}: x has {len(x)} rows, but y has {len(y.kinds)}: give one label for each row.",
    )
    require(len(x) > 0, f"Client {name!r} has no rows: give every client data, or leave out the client.")
    return Contents(f"client {name!r}", x, y, None, None, where)
