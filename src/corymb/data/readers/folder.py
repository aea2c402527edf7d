"""Users' own data from a folder: one file a client, or tables with a client column.

npz files hold arrays `x` and `y`, and perhaps `test` (boolean). Tables (csv, parquet) have a label column, perhaps a
`test` column, and otherwise numbers. Images, that is bytes or arrays [N, H, W], [N, C, H, W] or [N, H, W, C], become
[C, H, W] in [0, 1]; other features are marked to be standardised. `corymb.data.labels` says how labels become classes
or targets.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from corymb.core.engine import in_order
from corymb.data.arrays import order
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array, as_images, is_image
from corymb.data.labels import Labels, RowName, Task, from_text, no_labels, read_labels
from corymb.data.readers.archives import read_npz
from corymb.data.readers.contents import FileContents
from corymb.data.readers.tables import read_table
from corymb.settings import InvalidInput, require

SUFFIXES = (".npz", ".csv", ".parquet")


def from_folder(
    path: str | os.PathLike[str],
    *,
    client: str | None = None,
    label: str = "label",
    test: float = 0.2,
    task: Task | Literal["auto"] = "auto",
    seed: int = 0,
) -> FederatedDataset:
    """Data of your own: a folder of npz, csv or parquet files, one a client, or a file with a column of clients.

    Clients are named by the stems of their files. With `client`, the name of a column (in npz files: of an array), the
    rows of all files are grouped by it instead; a single npz file with an array `client` is grouped by that. A `test`
    column or array marks the rows to test on; without one, the share `test` of each client's rows is held out. With
    `task="density"` there need be no labels.
    """
    place = Path(path).expanduser()
    files = _read(_files(place, client), label, client, labelled=task != "density")
    _check_same_columns(files)
    names, owner = _owners(files, client)
    x, image = _features(files)
    held = test if files[0].test is None else np.concatenate([_given(file.test) for file in files])
    ordered = order(x, _labels(files, task), owner, test=held, names=names, seed=seed)
    return FederatedDataset(
        name=place.resolve().stem,
        **ordered._asdict(),
        feature_names=files[0].feature_names,
        standardise=not image,
    )


def _files(place: Path, client: str | None) -> list[Path]:
    """The files to read, in the order of their clients' names and all of one kind."""
    if place.is_file():
        _check_suffix(place)
        told = client is not None or place.suffix.lower() == ".npz"
        require(told, f"{place.name} is one table: name the column that holds the clients, client='...'.")
        return [place]
    require(place.is_dir(), f"{place} is not a folder: give a folder of npz, csv or parquet files, or one such file.")
    files = [file for file in place.iterdir() if not file.name.startswith(".")]
    require(len(files) > 0, f"{place} is empty: put one npz, csv or parquet file a client into it.")
    for file in files:
        _check_suffix(file)
    kinds = sorted({file.suffix.lower() for file in files})
    require(len(kinds) == 1, f"{place} has files of different kinds ({', '.join(kinds)}): use only one kind.")
    return [files[position] for position in in_order([file.stem for file in files])]


def _check_suffix(file: Path) -> None:
    known = file.is_file() and file.suffix.lower() in SUFFIXES
    what = "a folder" if file.is_dir() else "a file of an unknown kind"
    require(known, f"{file} is {what}: only npz, csv and parquet files can be read; take it out of the folder.")


def _read(paths: Sequence[Path], label: str, client: str | None, *, labelled: bool) -> list[FileContents]:
    """All files; tables have their features in the order of the first one's columns."""
    files: list[FileContents] = []
    for path in paths:
        if path.suffix.lower() == ".npz":
            files.append(read_npz(path, client, labelled=labelled))
        else:
            like = files[0].feature_names if files else ()
            files.append(read_table(path, label, client, like=like, labelled=labelled))
    return files


def _check_same_columns(files: Sequence[FileContents]) -> None:
    """All files must have the same columns, and images of one size."""
    first = files[0]
    for file in files[1:]:
        missing = sorted(_columns(first) - _columns(file))
        extra = sorted(_columns(file) - _columns(first))
        if missing or extra:
            differ = [
                f"{what} {', '.join(map(repr, names))}"
                for what, names in (("lacks", missing), ("adds", extra))
                if names
            ]
            raise InvalidInput(
                f"{file.path.name} {' and '.join(differ)}, compared with {first.path.name}: columns must agree."
            )
        one, other = list(file.x.shape[1:]), list(first.x.shape[1:])
        require(
            one == other,
            f"{file.path.name} has examples of shape {one}, {first.path.name} of {other}: sizes must agree.",
        )
        require(
            is_image(file.x) == is_image(first.x),
            f"{file.path.name} has {file.x.dtype} and {first.path.name} {first.x.dtype} features: types must agree.",
        )


def _columns(file: FileContents) -> set[str]:
    own = {"test": file.test, "label": file.y}
    return {*file.feature_names, *(name for name, values in own.items() if values is not None)}


def _labels(files: Sequence[FileContents], task: Task | Literal["auto"]) -> Labels:
    starts = np.cumsum([0, *(len(file.x) for file in files)])

    def where(row: int) -> str:
        number = int(np.searchsorted(starts, row, side="right")) - 1
        return files[number].place(row - int(starts[number]))

    columns = [file.y for file in files if file.y is not None]  # all or none: the columns of all files agree
    if not columns:
        return no_labels(int(starts[-1]))
    return read_labels(_typed(columns, files[0].path, where), task, where=where)


def _typed(columns: Sequence[Array], path: Path, where: RowName) -> Array:
    """The labels of all files with one type: a whole number in one may be a decimal or a word in another."""
    if path.suffix.lower() == ".csv":
        return from_text([cell for column in columns for cell in column.tolist()], where)
    if any(column.dtype.kind == "U" for column in columns):
        return np.concatenate([column.astype(np.str_) for column in columns])
    return np.concatenate([column.astype(np.int64) if column.dtype.kind == "u" else column for column in columns])


def _owners(files: Sequence[FileContents], client: str | None) -> tuple[list[str] | None, Array]:
    """The clients' names, where files are clients, and each row's client."""
    if client is not None or (len(files) == 1 and files[0].client is not None):
        return None, np.concatenate([_given(file.client) for file in files])
    return [file.path.stem for file in files], np.repeat(np.arange(len(files)), [len(file.x) for file in files])


def _features(files: Sequence[FileContents]) -> tuple[Array, bool]:
    """All rows, and whether they are images."""
    x = files[0].x if len(files) == 1 else np.concatenate([file.x for file in files])
    return (as_images(x), True) if is_image(x) else (x, False)


def _given(column: Array | None) -> Array:
    if column is None:
        raise InvalidInput("A file lacks the column of clients or of test rows that others have: columns must agree.")
    return column
