"""Arrays with a client for each row, or arrays of each client, as a `Source` for preparation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from corymb.data.clients import Values, dealt_rows, is_dealt
from corymb.data.features import Array, as_array
from corymb.data.prepare.cells import Column, as_column, joined
from corymb.data.prepare.pipeline import Source
from corymb.data.readers.contents import Contents
from corymb.data.readers.folder import join
from corymb.data.readers.frames import is_frame, read_frame
from corymb.data.readers.torch_dataset import as_arrays
from corymb.settings import InvalidInput, require

Owners = Values | Mapping[Any, Values] | Sequence[Values]
"""A client for each row, or the numbers of the rows that each client has."""
Test = float | Values | tuple[Values, Values, Owners]


def source_of(
    x: Values,
    y: Values | None,
    client: Owners,
    *,
    test: Test,
    names: Sequence[str] | None,
    feature_names: Sequence[str],
) -> Source:
    """A source of features, labels (if any) and each row's client; separate test examples are appended as rows."""
    features, labels = features_in(x), None if y is None else labels_in(y)
    held = _mask(test, len(features if labels is None else labels.kinds))
    features, labels, owner, rows = _owned(features, labels, client)
    held = held[rows] if rows is not None and isinstance(held, np.ndarray) else held
    if isinstance(test, tuple):
        require(labels is not None, "Separate test examples need labels for the training examples too: give y.")
        assert labels is not None
        more, more_labels, more_owner, _ = _owned(features_in(test[0]), labels_in(test[1]), test[2])
        one, other = list(more.shape[1:]), list(features.shape[1:])
        require(one == other, f"Test examples have shape {one}, but training examples {other}: they must agree.")
        held = np.repeat([False, True], [len(features), len(more)])
        assert more_labels is not None
        features, labels = np.concatenate([features, more]), joined([labels, more_labels])
        owner = np.concatenate([owner, more_owner])
    source = Source(features, labels, owner, held, names)
    if rows is not None and not isinstance(test, tuple):
        source = source._replace(where=lambda row: f"row {rows[row]}")
    if not len(feature_names):
        return source
    shape = list(features.shape[1:])
    require(
        [len(feature_names)] == shape,
        f"There are {len(feature_names)} feature names for features of shape {shape}: give one name per feature.",
    )
    columns = {name: as_column(features[:, place], name) for place, name in enumerate(feature_names)}
    return source._replace(x=columns)


def _owned(features: Array, labels: Column | None, client: Owners) -> tuple[Array, Column | None, Array, Array | None]:
    """Features, labels and each row's client; and which rows these are, if clients are given with their rows."""
    if not is_dealt(client):
        return features, labels, as_array(client), None  # type: ignore[arg-type]
    rows, owner = dealt_rows(client, len(features))  # type: ignore[arg-type]
    many = labels is None or len(labels.kinds) == len(features)
    require(many, f"x has {len(features)} rows, but y has {labels and len(labels.kinds)}: give one label for each row.")
    return features[rows], None if labels is None else labels.take(rows), owner, rows


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


Many = Mapping[Any, Any] | Sequence[Any]
"""Each client's rows, by name or in a list: a pair (x, y), a data frame or a torch data set of pairs."""


def source_of_clients(clients: Many, *, test: float | Many, label: str | None) -> Source:
    """A source of each client's rows; separate test examples, which clients may lack, are appended as rows."""
    found = contents_of_clients(clients, label)
    if not isinstance(test, (Mapping, Sequence)):
        return join(list(found.values()), test=test, names=list(found))
    held = contents_of_clients(test, label, "the test examples of client")
    for name in held:
        require(name in found, f"There are test examples of client {name!r}, which has no others: give it some.")
    for name, rows in (*found.items(), *held.items()):
        require(rows.test is None, f"Client {name!r} has a column 'test', but test is given too: leave out one.")
    parts = [rows._replace(test=np.full(rows.rows, part is held)) for part in (found, held) for rows in part.values()]
    return join(parts, test=0.0, names=[*found, *held])


def contents_of_clients(clients: Many, label: str | None, whose: str = "client") -> dict[str, Contents]:
    """The rows of each client, by its name."""
    items = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    found: dict[str, Contents] = {}
    for name, rows in items:
        require(str(name) not in found, f"Two clients are called {str(name)!r}: rename one.")  # such as 1 and "1"
        found[str(name)] = _of_client(f"{whose} {str(name)!r}", rows, label)
    return found


def is_pair(rows: object) -> bool:
    """Whether rows are a tuple (x, y), where x has two axes or more."""
    return isinstance(rows, tuple) and len(rows) == 2 and np.ndim(rows[0]) > 1


def _of_client(whose: str, rows: Any, label: str | None) -> Contents:
    def where(row: int) -> str:
        return f"{whose}, row {row}"

    if is_frame(rows):
        read = read_frame(rows, client=None, label=label, features=None, whole=False)
        return read._replace(origin=whose, where=where)
    at_start = whose[0].upper() + whose[1:]
    if isinstance(rows, Dataset):
        with _naming(at_start):
            rows = as_arrays(rows)
    pair = isinstance(rows, (tuple, list)) and len(rows) == 2 and not all(map(is_pair, rows))
    what = f"a {type(rows).__name__}" + (f" of {len(rows)}" if isinstance(rows, (tuple, list)) else "")
    hint = ", such as its .dataset" if hasattr(rows, "dataset") else ""
    apart = " (test examples apart, as test={...})" if isinstance(rows, (tuple, list, Mapping)) else ""
    wanted = f"a pair (x, y), a data frame or a torch data set{hint}{apart}"
    require(pair, f"{at_start} has {what}: wanted {wanted}.")
    with _naming(at_start):
        x, y = features_in(rows[0]), labels_in(rows[1])
    require(
        len(x) == len(y.kinds),
        f"{at_start}: x has {len(x)} rows, but y has {len(y.kinds)}: give one label for each row.",
    )
    require(len(x) > 0, f"{at_start} has no rows: give every client data, or leave out the client.")
    return Contents(whose, x, y, None, None, where)


@contextmanager
def _naming(whose: str) -> Iterator[None]:
    """Say whose data are refused."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{whose}: {error}") from None
