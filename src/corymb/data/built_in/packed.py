"""Read arrays from npz files under `CORYMB_DATA`."""

from __future__ import annotations

from pathlib import Path

from corymb.data.features import Array
from corymb.data.fetching.home import DataUnavailable
from corymb.data.readers.archives import arrays_in
from corymb.settings import InvalidInput


def read_arrays(path: Path, *names: str) -> list[Array]:
    """Read the arrays with these names."""
    instead = "Pack it again, or unset CORYMB_DATA."
    try:
        arrays = arrays_in(path, names)
    except InvalidInput as error:
        raise DataUnavailable(f"{path.parent}: {error} {instead}") from None
    for name in names:
        if name not in arrays:
            raise DataUnavailable(f"{path} has no array {name!r}. {instead}")
    return [arrays[name] for name in names]
