"""Users' own data from a folder: one file a client, or tables with a client column.

npz files hold arrays `x` and `y`, and perhaps `test` (boolean). Tables (csv, parquet) have a label column, perhaps a
`test` column, and otherwise numbers. Images, that is bytes or arrays [N, H, W], [N, C, H, W] or [N, H, W, C], become
[C, H, W] in [0, 1]; other features are marked to be standardised. How labels become classes or targets is told in
`corymb.data.labels`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from corymb.data import labels
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array, as_images, is_image
from corymb.data.labels import Task
from corymb.data.readers.archives import read_npz
from corymb.data.readers.part import Part
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

    Files are clients, named by their stems. With `client`, a column's (in npz: an array's) name, the rows of all files
    are put together by it instead; a single npz file with an array `client` needs no telling. A `test` column or array
    says which rows to test on; without one, the share `test` of each client's rows is held out.
    """
    place = Path(path).expanduser()
    parts = [_read(file, label, client) for file in _files(place, client)]
    _check_alike(parts)
    y = _labels(parts, task)
    names, owner = _owners(parts, client)
    x, image = _features(parts)
    return FederatedDataset.from_arrays(
        x,
        y.y,
        owner,
        test=test if parts[0].test is None else np.concatenate([_given(part.test) for part in parts]),
        names=names,
        task=y.task,
        classes=y.classes,
        feature_names=parts[0].feature_names,
        standardise=not image,
        name=place.resolve().stem,
        seed=seed,
    )


def _files(place: Path, client: str | None) -> list[Path]:
    """The files to read, sorted by name and all of one kind."""
    if place.is_file():
        _check_suffix(place)
        told = client is not None or place.suffix.lower() == ".npz"
        require(told, f"{place.name} is one table: say which column holds the clients, client='...'.")
        return [place]
    require(place.is_dir(), f"{place} is not a folder: give a folder of npz, csv or parquet files, or one such file.")
    files = sorted(file for file in place.iterdir() if not file.name.startswith("."))
    require(len(files) > 0, f"{place} is empty: put one npz, csv or parquet file a client into it.")
    for file in files:
        _check_suffix(file)
    kinds = sorted({file.suffix.lower() for file in files})
    require(len(kinds) == 1, f"{place} has files of different kinds ({', '.join(kinds)}): keep to one.")
    return files


def _check_suffix(file: Path) -> None:
    known = file.is_file() and file.suffix.lower() in SUFFIXES
    what = "a folder" if file.is_dir() else "a file of a kind not known"
    require(known, f"{file} is {what}: only npz, csv and parquet files can be read; take it out of the folder.")


def _read(file: Path, label: str, client: str | None) -> Part:
    return read_npz(file, client) if file.suffix.lower() == ".npz" else read_table(file, label, client)


def _check_alike(parts: Sequence[Part]) -> None:
    """All files must have the same columns, and images of one size."""
    first = parts[0]
    for part in parts[1:]:
        missing = sorted(_columns(first) - _columns(part))
        extra = sorted(_columns(part) - _columns(first))
        if missing or extra:
            differ = [
                f"{what} {', '.join(map(repr, names))}"
                for what, names in (("lacks", missing), ("adds", extra))
                if names
            ]
            raise InvalidInput(
                f"{part.path.name} {' and '.join(differ)}, compared with {first.path.name}: columns must agree."
            )
        one, other = list(part.x.shape[1:]), list(first.x.shape[1:])
        require(
            one == other,
            f"{part.path.name} has examples of shape {one}, {first.path.name} of {other}: sizes must agree.",
        )
        same = is_image(part.x) == is_image(first.x)
        require(
            same,
            f"{part.path.name} has {part.x.dtype} and {first.path.name} {first.x.dtype} features: types must agree.",
        )


def _columns(part: Part) -> set[str]:
    return {*part.feature_names, *(["test"] if part.test is not None else [])}


def _labels(parts: Sequence[Part], task: Task | Literal["auto"]) -> labels.Labels:
    starts = np.cumsum([0, *(len(part.x) for part in parts)])

    def where(row: int) -> str:
        part = int(np.searchsorted(starts, row, side="right")) - 1
        return parts[part].place(row - int(starts[part]))

    return labels.read_labels(_typed([part.y for part in parts], parts[0].path, where), task, where=where)


def _typed(columns: Sequence[Array], path: Path, where: labels.Where) -> Array:
    """The labels of all files with one type: a whole number in one may be a decimal or a word in another."""
    if path.suffix.lower() == ".csv":
        return labels.from_text([cell for column in columns for cell in column.tolist()], where)
    if any(column.dtype.kind == "U" for column in columns):
        return np.concatenate([column.astype(np.str_) for column in columns])
    return np.concatenate([column.astype(np.int64) if column.dtype.kind == "u" else column for column in columns])


def _owners(parts: Sequence[Part], client: str | None) -> tuple[list[str] | None, Array]:
    """The clients' names, where files are clients, and each row's client."""
    if client is not None or (len(parts) == 1 and parts[0].client is not None):
        return None, np.concatenate([_given(part.client) for part in parts])
    return [part.path.stem for part in parts], np.repeat(np.arange(len(parts)), [len(part.x) for part in parts])


def _features(parts: Sequence[Part]) -> tuple[Array, bool]:
    """All rows, with the columns in the first file's order, and whether they are images."""
    names = parts[0].feature_names
    ordered = [part.x[:, [part.feature_names.index(name) for name in names]] if names else part.x for part in parts]
    x = ordered[0] if len(ordered) == 1 else np.concatenate(ordered)
    return (as_images(x), True) if is_image(x) else (x, False)


def _given(column: Array | None) -> Array:
    if column is None:
        raise InvalidInput("A file lacks the column of clients or of test rows that others have: columns must agree.")
    return column
