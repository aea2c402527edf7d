"""Users' own arrays: npz files with `x` and `y`, or arrays of other names, and perhaps `test` and `client`."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

from corymb.data.features import Array
from corymb.data.prepare.cells import as_column
from corymb.data.readers.contents import CLIENT, TEST, Contents, Names, as_mask, ids_of, names_in
from corymb.settings import InvalidInput, require

FEATURES, LABELS = "x", "y"
"""What arrays are called if nothing else is said."""


def read_npz(
    path: Path, client: str | None, label: str | None = None, features: Names = None, *, labelled: bool = True
) -> Contents:
    """One npz file; nothing in it is ever unpickled, and arrays that are not asked for are not read.

    Unless it must be `labelled`, it may do without labels.
    """
    (name, *more) = names_in(features) or (FEATURES,)
    require(not more, f"{path.name}: features of an npz file are one array, got {', '.join(map(repr, (name, *more)))}.")
    target, owner = label or LABELS, client or CLIENT
    arrays = arrays_in(path, {name, target, owner, TEST})
    for wanted in (name, *([target] if labelled or label else []), *([] if client is None else [client])):
        require(
            wanted in arrays,
            f"{path.name} has no array {wanted!r}: it holds {', '.join(map(repr, names_of(path))) or 'nothing'}.",
        )
    x, y, test, ids = arrays[name], arrays.get(target), arrays.get(TEST), arrays.get(owner)
    require(x.ndim >= 2, f"{path.name}: {name} has the shape {list(x.shape)}: wanted [rows, features] or pictures.")
    require(x.dtype.kind in "biufU", f"{path.name}: {name} is of type {x.dtype}: wanted numbers.")
    require(len(x) > 0, f"{path.name} has no rows: give every client data, or remove the file.")
    for what, array in ((target, y), (TEST, test), (owner, ids)):
        if array is not None:
            rows = array.reshape(-1) if array.shape == (len(x), 1) else array
            require(
                rows.shape == x.shape[:1],
                f"{path.name}: {name} has {len(x)} rows, but {what} is {list(array.shape)}: wanted one for each row.",
            )

    def where(row: int) -> str:
        return f"{path.name}, row {row}"

    mask = None if test is None else as_mask(as_column(test.reshape(-1), TEST), where)
    owners = None if ids is None else ids_of(ids.reshape(-1), owner)
    return Contents(path.name, x, None if y is None else as_column(y.reshape(-1), target), owners, mask, where)


def names_of(path: Path) -> list[str]:
    """The names of the arrays in an npz file."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def arrays_in(path: Path, wanted: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of an npz file, by name: all, or those of `wanted` that it has."""
    require(zipfile.is_zipfile(path), f"{path.name} cannot be read as npz: write it again with numpy.savez.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files if wanted is None or name in wanted}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        hint = "save plain arrays, not Python objects" if "pickle" in str(error) else "write it again with numpy.savez"
        raise InvalidInput(f"{path.name} cannot be read as npz ({error}): {hint}.") from None
