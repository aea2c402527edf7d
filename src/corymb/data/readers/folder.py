"""Read users' own data from files: one file per client, or rows with a column of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from corymb.core.engine import in_order
from corymb.data.features import Array
from corymb.data.prepare.cells import joined
from corymb.data.prepare.columns import RowName, Table
from corymb.data.prepare.pipeline import Source
from corymb.data.readers.archives import read_npz
from corymb.data.readers.contents import CLIENT, Contents, Names, client_column, sort_columns
from corymb.data.readers.tables import TABLES, kind_of, read_table, stem_of
from corymb.settings import InvalidInput, require

NPZ = ".npz"
SUFFIXES = (NPZ, *TABLES)
KINDS = "npz, csv, tsv, jsonl (also .gz) and parquet"


def read_files(
    place: Path, *, client: str | None, label: str | None, features: Names, test: float, labelled: bool = True
) -> tuple[Source, list[str]]:
    """Read the rows of a folder's files or of one file; also returns notes on unused columns."""
    files = _files(place)
    contents = [_read(path, client, label, features, alone=place.is_file(), labelled=labelled) for path in files]
    grouped = client is not None or (len(contents) == 1 and contents[0].client is not None)
    source = join(contents, test=test, names=None if grouped else [stem_of(path) for path in files])
    return source, list(dict.fromkeys([*contents[0].notes, *_first_reading(contents)]))


def _first_reading(contents: Sequence[Contents]) -> tuple[str, ...]:
    """The notes on how the cells of files were read, of the first file that has any; notes of others are alike."""
    return next((one.reading for one in contents if one.reading), ())


def join(contents: Sequence[Contents], *, test: float, names: Sequence[str] | None = None) -> Source:
    """Join the rows of several files, frames or clients to one source; with `names`, each of them is a client."""
    _check_alike(contents)
    sizes = [one.rows for one in contents]
    labels = [one.y for one in contents if one.y is not None]  # all or none have labels, since their columns agree
    if names is None:
        owner = np.concatenate([_given(one.client) for one in contents])
    else:
        owner = np.repeat(np.asarray([str(name) for name in names], dtype=np.str_), sizes)
    held = test if contents[0].test is None else np.concatenate([_given(one.test) for one in contents])
    return Source(
        x=_joined_features(contents),
        y=joined(labels) if labels else None,
        client=owner,
        test=held,
        where=_where(contents, sizes),
    )


def _files(place: Path) -> list[Path]:
    """The files to read, sorted by the names of their clients and all of one type."""
    if place.is_file():
        require(kind_of(place) in SUFFIXES, f"{place} is of an unknown type: only {KINDS} files can be read.")
        return [place]
    require(place.is_dir(), f"{place} is not a folder: give a folder of {KINDS} files, or one such file.")
    files = [file for file in place.iterdir() if not file.name.startswith(".")]
    require(len(files) > 0, f"{place} is empty: put one file ({KINDS}) per client into it.")
    for file in files:
        _check_suffix(file)
    kinds = sorted({kind_of(file) for file in files})
    require(len(kinds) == 1, f"{place} has files of different types ({', '.join(kinds)}): use only one type.")
    return [files[position] for position in in_order([stem_of(file) for file in files])]


def _check_suffix(file: Path) -> None:
    known = file.is_file() and kind_of(file) in SUFFIXES
    what, or_else = "a file of an unknown type", ""
    if file.is_dir():
        what, or_else = "a folder", ", or read its pictures or texts in Python and give arrays"
    require(known, f"{file} is {what}: only {KINDS} files can be read; remove it from the folder{or_else}.")


def _read(
    path: Path, client: str | None, label: str | None, features: Names, *, alone: bool, labelled: bool
) -> Contents:
    if kind_of(path) == NPZ:
        return read_npz(path, client, label, features, labelled=labelled)
    table = read_table(path, [client or CLIENT])
    owner = client_column(table, client, label, features, how="client='...' (--client)") if alone else client
    return sort_columns(table, client=owner, label=label, features=features, labelled=labelled)


def _check_alike(contents: Sequence[Contents]) -> None:
    """Require the same columns, and images of one size, in all files."""
    first = contents[0]
    for one in contents[1:]:
        missing, extra = sorted(_columns(first) - _columns(one)), sorted(_columns(one) - _columns(first))
        if missing or extra:
            differ = [
                f"{what} {', '.join(map(repr, names))}"
                for what, names in (("lacks", missing), ("has extra", extra))
                if names
            ]
            raise InvalidInput(
                f"{one.origin} {' and '.join(differ)}, compared with {first.origin}: columns must agree."
            )
        if not isinstance(one.x, Mapping) and not isinstance(first.x, Mapping):
            shape, other = list(one.x.shape[1:]), list(first.x.shape[1:])
            require(
                shape == other,
                f"{one.origin} has examples of shape {shape}, but {first.origin} of {other}: shapes must agree.",
            )


def _columns(contents: Contents) -> set[str]:
    own = {"test": contents.test, "label": contents.y}
    return {
        *(contents.x if isinstance(contents.x, Mapping) else ()),
        *(name for name, values in own.items() if values is not None),
    }


def _joined_features(contents: Sequence[Contents]) -> Array | Table:
    """The features of all rows, with columns in the order of the first file."""
    tables = [one.x for one in contents if isinstance(one.x, Mapping)]
    if tables:
        require(len(tables) == len(contents), "Some clients have tables and others arrays: give all the same.")
        return {name: joined([table[name] for table in tables]) for name in tables[0]}
    arrays = [one.x for one in contents if not isinstance(one.x, Mapping)]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _where(contents: Sequence[Contents], sizes: Sequence[int]) -> RowName:
    starts = np.cumsum([0, *sizes])

    def where(row: int) -> str:
        number = int(np.searchsorted(starts, row, side="right")) - 1
        return contents[number].where(row - int(starts[number]))

    return where


def _given(column: Array | None) -> Array:
    if column is None:
        raise InvalidInput("A file lacks the column of clients or of test rows that others have: columns must agree.")
    return column
