"""Data frames (pandas, polars, pyarrow) and Hugging Face data sets, recognised by duck typing: none is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from corymb.data.features import Array, as_array
from corymb.data.prepare.cells import as_column
from corymb.data.readers.contents import (
    CLIENT,
    LABEL,
    TEST,
    Columns,
    Contents,
    Names,
    as_mask,
    client_column,
    ids_of,
    names_in,
    sort_columns,
)
from corymb.data.readers.tables import as_objects, typed_columns
from corymb.settings import InvalidInput, require


def is_frame(data: object) -> bool:
    """Whether an object is a data frame: columns by name, each with `to_numpy`."""
    return hasattr(data, "shape") and hasattr(data, "columns") and hasattr(data, "__getitem__")


def is_hugging_face(data: object) -> bool:
    """Whether an object is a Hugging Face data set: columns by name, and `features` that describe them."""
    return hasattr(data, "column_names") and hasattr(data, "features") and hasattr(data, "__getitem__")


def read_frame(frame: Any, *, client: str | None, label: str | None, features: Names, whole: bool = True) -> Contents:
    """Read the rows of a data frame; the frame of a single client (not `whole`) has no column of clients."""
    client, label = _name(client, "client"), _name(label, "label")
    keys = _keys(frame)
    names = [str(key) for key in keys]
    for name in [name for name, often in Counter(names).items() if often > 1][:1]:
        raise InvalidInput(f"The data frame has two columns called {name!r}: rename one.")
    wanted = {*([client or CLIENT] if whole else []), label or LABEL} - set(names)
    for name in [name for name in getattr(getattr(frame, "index", None), "names", ()) if name in wanted][:1]:
        raise InvalidInput(f"{name!r} is the index of the data frame, and no column: use frame.reset_index().")
    values = {name: _values(frame[key]) for name, key in zip(names, keys, strict=True)}
    named = [client or CLIENT] if whole else ()
    found = _sorted(typed_columns(values, named, "the data frame"), client, label, features, whole)
    used = found.x if isinstance(found.x, Mapping) else {}
    categorical = [name for name, key in zip(names, keys, strict=True) if _is_categorical(frame[key])]
    return found._replace(numbered=tuple(name for name in categorical if name in used and _numbers(values[name])))


def _is_categorical(column: Any) -> bool:
    return str(getattr(column, "dtype", "")) == "category"  # of pandas; those of polars are text


def _numbers(values: Array) -> bool:
    return values.dtype.kind in "iuf"


def frame_columns(frame: Any) -> Columns:
    """All columns of a data frame, or of a mapping of columns by name."""
    keys = list(frame) if isinstance(frame, Mapping) else _keys(frame)
    return typed_columns({str(key): _values(frame[key]) for key in keys}, (), "the data frame")


def _keys(frame: Any) -> list[Any]:
    """The keys of the columns: their names, which a pyarrow table has in another attribute."""
    arrow = not hasattr(frame, "iloc") and hasattr(frame, "column_names")
    return list(frame.column_names if arrow else frame.columns)


def _name(column: Any, what: str) -> str | None:
    """The name of a column as text; in pandas it may be a number."""
    known = column is None or isinstance(column, (str, int))
    require(known, f"{what} is a {type(column).__name__}: wanted the name of a column.")
    return None if column is None else str(column)


def read_hugging_face(
    data: Any, *, client: str | None, label: str | None, features: Names, whole: bool = True
) -> Contents:
    """Read the rows of a Hugging Face data set; a single feature of arrays or images is stacked.

    The data set of a single client (not `whole`) has no column of clients.
    """
    require(isinstance(data.column_names, list), "Give one split of the data set, such as data['train'].")
    owner, target = client or CLIENT, label or LABEL
    others = (*([owner] if whole else []), target, TEST)
    own = [name for name in names_in(features) or data.column_names if name not in others]
    values = {name: as_objects(list(data[name])) for name in data.column_names if name not in own}
    stacked = _stacked(data[own[0]]) if len(own) == 1 else None
    if stacked is None:
        values |= {name: as_objects(list(data[name])) for name in own}
        named = [owner] if whole else ()
        return _sorted(typed_columns(values, named, "the data set"), client, label, features, whole)
    absent = [name for name in others[:-1] if name not in values]
    require(not absent, f"The data set has no column {', '.join(map(repr, absent))}: it has {data.column_names}.")

    def where(row: int) -> str:
        return f"row {row}"

    ids = ids_of(values[owner], owner) if whole else None
    held = as_mask(as_column(values[TEST], TEST), where) if TEST in values else None
    return Contents("the data set", stacked, as_column(values[target], target), ids, held, where)


def class_names(data: Any, label: str | None) -> tuple[str, ...]:
    """The names of the classes, if a Hugging Face data set has them."""
    feature = data.features.get(label or "label") if isinstance(data.features, Mapping) else None
    return tuple(getattr(feature, "names", None) or ())


def _sorted(table: Columns, client: str | None, label: str | None, features: Names, whole: bool) -> Contents:
    owner = client_column(table, client, label, features) if whole else None
    return sort_columns(table, client=owner, label=label, features=features)


def _values(column: Any) -> Array:
    values = column.to_numpy() if hasattr(column, "to_numpy") else as_array(column)
    array = np.asarray(values)
    return array if array.ndim == 1 else as_objects(list(values))


def _stacked(column: Any) -> Array | None:
    """Stack cells that are arrays, lists or images; None if they are plain values."""
    cells = list(column)
    if not cells or isinstance(cells[0], (str, bytes)) or np.ndim(cells[0]) == 0:
        return None
    try:
        return np.stack([np.asarray(cell) for cell in cells])
    except ValueError as error:
        raise InvalidInput(f"The features differ in shape ({error}): give all examples the same shape.") from None
