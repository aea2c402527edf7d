"""Users' own arrays: npz files with `x`, `y` and perhaps `test` and `client`."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from corymb.data.features import Array
from corymb.data.readers.contents import FileContents, as_mask
from corymb.settings import InvalidInput, require

CLIENT = "client"


def read_npz(path: Path, client: str | None, *, labelled: bool = True) -> FileContents:
    """One npz file; nothing in it is ever unpickled. Unless it must be `labelled`, it may do without `y`."""
    arrays = arrays_in(path)
    for name in ["x", *(["y"] if labelled else []), *([] if client is None else [client])]:
        require(
            name in arrays, f"{path.name} has no array {name!r}: it holds {', '.join(map(repr, arrays)) or 'nothing'}."
        )
    x, y, test = arrays["x"], arrays.get("y"), arrays.get("test")
    owner = arrays.get(client or CLIENT)
    require(x.ndim >= 2, f"{path.name}: x has the shape {list(x.shape)}: wanted [rows, features] or images.")
    require(x.dtype.kind in "biuf", f"{path.name}: x is of type {x.dtype}: wanted numbers.")
    require(len(x) > 0, f"{path.name} has no rows: give every client data, or remove the file.")
    for name, array in (("y", y), ("test", test), (client or CLIENT, owner)):
        if array is not None:
            same = array.shape[:1] == x.shape[:1]
            require(
                same, f"{path.name}: x has {len(x)} rows, but {name} is {list(array.shape)}: wanted one for each row."
            )
    mask = None if test is None else as_mask(test, path, first=0)
    return FileContents(path=path, x=x, y=y, client=owner, test=mask, feature_names=(), first=0)


def arrays_in(path: Path) -> dict[str, Array]:
    """All arrays of an npz file, by name."""
    require(zipfile.is_zipfile(path), f"{path.name} cannot be read as npz: write it again with numpy.savez.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        hint = "save plain arrays, not Python objects" if "pickle" in str(error) else "write it again with numpy.savez"
        raise InvalidInput(f"{path.name} cannot be read as npz ({error}): {hint}.") from None
