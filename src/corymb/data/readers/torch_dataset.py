"""Convert a torch data set to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Dataset, TensorDataset

from corymb.data.features import Array, as_array
from corymb.settings import InvalidInput, require


def as_arrays(dataset: Dataset[Any]) -> tuple[Array, Array]:
    """The features and labels of all items, each of which is a pair."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return as_array(dataset.tensors[0]), as_array(dataset.tensors[1])
    items = [_pair(dataset, index) for index in range(_length(dataset))]
    for index, (x, _) in enumerate(items):
        first = items[0][0].shape
        require(x.shape == first, f"Item {index} has shape {x.shape} and item 0 {first}: all must have the same shape.")
    return np.stack([x for x, _ in items]), np.asarray([y for _, y in items])


def _length(dataset: Dataset[Any]) -> int:
    length = getattr(dataset, "__len__", None)
    if length is None:
        raise InvalidInput(f"{type(dataset).__name__} has no length: give a data set with items, not a stream.")
    by_number = hasattr(dataset, "__getitem__")
    require(
        by_number, f"A {type(dataset).__name__} has no items by number: give the data set itself, such as its .dataset."
    )
    require(length() > 0, "The torch data set is empty: give it at least one item.")
    return int(length())


def _pair(dataset: Dataset[Any], index: int) -> tuple[Array, Array]:
    item = dataset[index]
    pair = isinstance(item, (tuple, list)) and len(item) == 2
    require(pair, f"Item {index} of the torch data set is a {type(item).__name__}: wanted a pair (features, label).")
    return as_array(item[0]), as_array(item[1])
