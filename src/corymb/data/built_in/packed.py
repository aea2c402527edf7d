"""Arrays of npz files under `CORYMB_DATA`."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from corymb.data.features import Array
from corymb.data.fetching.home import DataUnavailable


def read_arrays(path: Path, *names: str) -> list[Array]:
    """The arrays of these names."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataUnavailable(f"{path} cannot be read ({error}): pack it again, or unset CORYMB_DATA.") from None
