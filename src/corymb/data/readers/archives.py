"""Read npz files with the arrays `x` and `y` (or other names) and optionally `test` and `client`."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

import numpy as np

from corymb.data.features import Array
from corymb.data.prepare.cells import as_column
from corymb.data.readers.contents import CLIENT, TEST, Contents, Names, as_mask, ids_of, names_in
from corymb.data.readers.limits import check_size
from corymb.settings import InvalidInput, first_line, require

MEMBER = ".npy"
HEADER = 10_000
"""The largest header of an array in bytes; numpy rejects longer ones too, but only after unpacking them."""
FEATURES, LABELS = "x", "y"
"""The default names of arrays."""


def read_npz(
    path: Path, client: str | None, label: str | None = None, features: Names = None, *, labelled: bool = True
) -> Contents:
    """Read one npz file; nothing in it is ever unpickled, and unused arrays are not read.

    Labels are only required if `labelled`.
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
    labels = None if y is None else as_column(y.reshape(-1), target)
    unused = tuple(other for other in names_of(path) if other not in arrays)
    return Contents(path.name, x, labels, owners, mask, where, unused=unused)


def names_of(path: Path) -> list[str]:
    """The names of the arrays in an npz file."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def arrays_in(path: Path, wanted: Collection[str] | None = None) -> dict[str, Array]:
    """Read the arrays of an npz file by name: all, or those in `wanted` that it has.

    The declared size of a member is checked before it is read, since zeros compress a thousandfold.
    """
    require(zipfile.is_zipfile(path), f"{path.name} cannot be read as npz: write it again with numpy.savez.")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(MEMBER): name for name in archive.namelist() if name.endswith(MEMBER)}
            chosen = {name: member for name, member in members.items() if wanted is None or name in wanted}
            sizes = {name: _declared(archive, member) for name, member in chosen.items()}
            check_size(sum(sizes.values()), path.name)
            return {name: _read_member(archive, member) for name, member in chosen.items()}
    except InvalidInput:
        raise
    except Exception as error:  # zipfile and numpy raise various errors on corrupt files
        hint = "save plain arrays, not Python objects" if "pickle" in str(error) else "write it again with numpy.savez"
        raise InvalidInput(f"{path.name} cannot be read as npz ({one_line_of(error)}): {hint}.") from None


def _declared(archive: zipfile.ZipFile, member: str) -> int:
    """The size of an array in bytes by its header, which must not exceed the member's size."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        _check_header(file, version, member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    size = math.prod(shape) * dtype.itemsize
    there = archive.getinfo(member).file_size
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded without a pickle")
    if any(length < 0 for length in shape) or size > there:
        raise ValueError(f"{member} says it holds {list(shape)} of {dtype}, but has {there} bytes")
    return int(size)


def _check_header(file: IO[bytes], version: tuple[int, int], member: str) -> None:
    """Reject an overlong header, which numpy would unpack before checking it."""
    wide = 2 if version == (1, 0) else 4
    length = int.from_bytes(file.read(wide), "little")
    if length > HEADER:
        raise ValueError(f"{member} has a header of {length} bytes")
    file.seek(-wide, 1)


def _read_member(archive: zipfile.ZipFile, member: str) -> Array:
    with archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def one_line_of(error: Exception) -> str:
    """The first line of an error's message, truncated."""
    return first_line(error)[:160]
