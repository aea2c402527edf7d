"""Data in any of the forms that users have them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset

from corymb.data.catalogue import load
from corymb.data.dataset import FederatedDataset
from corymb.data.readers.frames import is_frame, is_hugging_face
from corymb.settings import InvalidInput, require

WANTED = (
    "a FederatedDataset, the name of one, a folder, a file, arrays (x, y, client), a data frame, a mapping or list of "
    "clients, or an engine"
)


def as_dataset(data: Any, seed: int = 0) -> FederatedDataset:
    """A data set from whatever `fit` takes; what has columns is expected to call them `client` and `label`."""
    if isinstance(data, FederatedDataset):
        return data
    if isinstance(data, (str, os.PathLike)):
        return load(data, seed=seed)
    if is_frame(data):
        return FederatedDataset.from_dataframe(data, seed=seed)
    if is_hugging_face(data):
        return FederatedDataset.from_huggingface(data, seed=seed)
    if isinstance(data, tuple):
        require(len(data) == 3, f"Arrays are three, (x, y, client), got {len(data)}.")
        return FederatedDataset.from_arrays(*data, seed=seed)
    if isinstance(data, (Mapping, list)):
        return FederatedDataset.from_clients(data, seed=seed)
    whose = isinstance(data, Dataset)
    require(not whose, "A torch data set does not say whose its items are: FederatedDataset.from_torch(data, client).")
    raise InvalidInput(f"The data are a {type(data).__name__}: wanted {WANTED}.")
