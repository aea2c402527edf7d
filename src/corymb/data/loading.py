"""Load data in any of the supported forms."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from corymb.data.arrays import is_pair
from corymb.data.catalogue import DEALT, NAMES
from corymb.data.dataset import FederatedDataset
from corymb.data.files import from_folder
from corymb.data.readers.folder import SUFFIXES
from corymb.data.readers.frames import is_frame, is_hugging_face
from corymb.data.readers.tables import kind_of
from corymb.data.store import SUFFIX
from corymb.settings import InvalidInput, did_you_mean, expanded, require

WANTED = (
    "a FederatedDataset, the name of one, a folder, a file, arrays (x, y, client), a data frame, a mapping or list of "
    "clients, or an engine"
)


def load(name_or_path: str | os.PathLike[str], seed: int = 0, **options: Any) -> FederatedDataset:
    """A data set by its name, or your own by its path.

    Arguments:
        name_or_path: A name (`corymb list data`), or a folder, a table, an npz file or a file made by
            `FederatedDataset.save`. A folder that has the name of a built-in data set is reached as `./name`.
        seed: Seed of random choices: the permutations of rotations, the test rows.
        options: For a name, how it is dealt to clients: `clients`, `per_client`, `alpha` or `least`, if it takes them.
            For your own data, `client`, `label` and the other options of `from_folder`.

    >>> load("digits", seed=1).clients, load("digits-dirichlet", clients=8, alpha=0.1).clients
    (80, 8)
    """
    name = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and name in NAMES:
        return NAMES[name](seed, **options)
    path = expanded(name)
    if path.suffix != SUFFIX and not path.exists():
        if _looks_like_path(name):
            raise InvalidInput(f"{name} does not exist: check the path.")
        raise InvalidInput(f"There is no data set or folder {name!r}. {did_you_mean(name, NAMES)}")
    dealt = [option for option in options if option in DEALT]
    require(not dealt, f"{', '.join(dealt)} only applies to built-in data (corymb list data), not to {name}.")
    if path.suffix == SUFFIX:
        require(not options, f"{name} is a saved data set with its own split: leave out {', '.join(options)}.")
        return FederatedDataset.load(path)
    return from_folder(path, seed=seed, **options)


def _looks_like_path(name: str) -> bool:
    return any(mark in name for mark in "/\\~") or name.startswith(".") or kind_of(Path(name)) in SUFFIXES


def as_dataset(data: Any, seed: int = 0) -> FederatedDataset:
    """Convert anything that `fit` accepts to a data set; tables must have columns named `client` and `label`."""
    if isinstance(data, FederatedDataset):
        return data
    if isinstance(data, (str, os.PathLike)):
        return load(data, seed=seed)
    if is_frame(data):
        return FederatedDataset.from_dataframe(data, seed=seed)
    if is_hugging_face(data):
        return FederatedDataset.from_huggingface(data, seed=seed)
    whole = isinstance(data, tuple) and data and all(isinstance(one, Dataset) or is_pair(one) for one in data)
    if isinstance(data, (Mapping, list)) or whole:
        return FederatedDataset.from_clients(data, seed=seed)
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Dataset):
        return FederatedDataset.from_torch(*data, seed=seed)
    if isinstance(data, tuple):
        wanted = "three arrays, (x, y, client), a torch data set and client ids, or a list with the data of each client"
        require(len(data) == 3, f"Got a tuple of {len(data)}: wanted {wanted}.")
        return FederatedDataset.from_arrays(*data, seed=seed)
    whose = isinstance(data, Dataset)
    require(not whose, "A torch data set does not name its clients: use FederatedDataset.from_torch(data, client).")
    raise InvalidInput(f"The data are a {type(data).__name__}: wanted {WANTED}.")
