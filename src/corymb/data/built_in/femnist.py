"""FEMNIST of LEAF (Caldas et al. 2018): handwritten characters by writer.

LEAF publishes no files, but a program that creates them from 1.6 GB of NIST's data. The download is the parquet file of
the whole data set published by Flower Labs; LEAF's json files are also read if they are present. Pixels are as in LEAF:
255 is paper, 0 is ink.
"""

from __future__ import annotations

import io
import string
from pathlib import Path

import numpy as np

from corymb.data.built_in.packed import read_arrays
from corymb.data.built_in.writers import Writers
from corymb.data.features import Array
from corymb.data.fetching.home import PARQUET, CachedFile, Home, Published
from corymb.data.fetching.progress import say
from corymb.data.readers.leaf import users_in
from corymb.settings import InvalidInput, require

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_SIDE = 28
_FIELDS = ("images", "labels", "writer", "writer_ids")

FEMNIST = Home(
    name="femnist",
    packed=("femnist/femnist.npz", "femnist/train"),
    mirrors=("https://huggingface.co/datasets/flwrlabs/femnist/resolve/main/data/",),
    files=(Published("train-00000-of-00001.parquet", 2**28, form=PARQUET),),
    licence="BSD-2-Clause (LEAF); the images are NIST's, Special Database 19",
    needs=("pyarrow", "PIL"),
    extra="pictures",
)


def read_published(home: Home) -> Writers:
    """Read LEAF's folders `train` and `test` if they are in the cache; else the parquet file, downloaded if needed."""
    if (home.folder / "train").is_dir():
        return read_leaf(home.folder)
    (kept,) = home.obtain()
    unpacked = home.folder / f"unpacked-{kept.file.digest[:16]}.npz"
    if not unpacked.is_file():
        _unpack(home, kept, unpacked)
    images, labels, writer, names = read_arrays(unpacked, *_FIELDS)
    return without_repeats(Writers(images, labels, writer, tuple(map(str, names))))


def read_packed(path: Path) -> Writers:
    """Read an npz file with `images`, `labels`, `writer`, `writer_ids` and `test`, or LEAF's folders."""
    if path.is_dir():
        return read_leaf(path.parent)
    images, labels, writer, names, test = read_arrays(path, *_FIELDS, "test")
    return Writers(images, labels, writer.astype(np.int64), tuple(map(str, names)), test)


def read_leaf(folder: Path) -> Writers:
    """Read LEAF's folders `train` and `test`."""
    images: list[Array] = []
    labels: list[Array] = []
    writer: list[Array] = []
    test: list[Array] = []
    places: dict[str, int] = {}
    for part in ("train", "test"):
        for user in users_in(folder, part):
            own = _bytes(user.x, user.name)
            images.append(own)
            labels.append(np.asarray(user.y, dtype=np.int64))
            writer.append(np.full(len(own), places.setdefault(user.name, len(places))))
            test.append(np.full(len(own), part == "test"))
    x, y, who, held = (np.concatenate(arrays) for arrays in (images, labels, writer, test))
    found = Writers(x, y, who, tuple(places), held)
    known = len(found.labels) > 0 and found.labels.min() >= 0 and found.labels.max() < len(CHARACTERS)
    require(known, f"{folder}: wanted images with labels from 0 to {len(CHARACTERS) - 1}.")
    return without_repeats(found)


def _bytes(rows: list[list[float]], name: str) -> Array:
    """Convert LEAF's numbers from 0 to 1 back to the original bytes."""
    try:
        values = np.asarray(rows, dtype=np.float64).reshape(-1, _SIDE, _SIDE) * 255
    except ValueError:
        raise InvalidInput(f"Writer {name!r} has images that are not {_SIDE} x {_SIDE} numbers.") from None
    pixels = values.round()
    exact = bool(((np.abs(values - pixels) < 1e-3) & (pixels >= 0) & (pixels <= 255)).all())
    require(exact, f"Writer {name!r} has pixels that are not bytes divided by 255: write the shards with LEAF again.")
    return pixels.astype(np.uint8)


def without_repeats(writers: Writers) -> Writers:
    """Remove images that a writer has twice, a flaw of LEAF; of two copies, the one for training is kept."""
    images, labels, writer, names, test, notes = writers
    held = np.zeros(len(labels), dtype=bool) if test is None else test
    order = np.argsort(held, kind="stable")
    marks = np.column_stack(
        [writer.astype(">u4").view(np.uint8).reshape(-1, 4), labels, images.reshape(len(labels), -1)]
    )
    rows = np.ascontiguousarray(marks[order].astype(np.uint8))
    _, first = np.unique(rows.view(f"V{rows.shape[1]}")[:, 0], return_index=True)
    kept = np.sort(order[first])
    dropped = len(labels) - len(kept)
    if not dropped:
        return writers
    notes = (*notes, f"{dropped} duplicate images of writers are dropped")
    return Writers(images[kept], labels[kept], writer[kept], names, None if test is None else test[kept], notes)


def _unpack(home: Home, kept: CachedFile, place: Path) -> None:
    """Decode the images of the parquet file once into an npz file, since that takes a minute."""
    home.check_needs()
    say(f"unpacking {kept.path.name} into {place}: a minute or two, once")
    try:
        images, labels, writer, names = read_parquet(kept.contents)
    except (ValueError, KeyError, TypeError, OSError) as error:  # includes the errors of pyarrow and Pillow
        raise home.dropped(kept, error) from None
    partial = place.with_name(f"{place.name}.part")
    with partial.open("wb") as file:
        np.savez_compressed(file, images=images, labels=labels, writer=writer, writer_ids=np.array(names))
    partial.replace(place)


def read_parquet(contents: bytes) -> tuple[Array, Array, Array, tuple[str, ...]]:
    """Read images, labels, writers and their names from the columns `image` (png), `character` and `writer_id`."""
    import pyarrow.parquet as parquet
    from PIL import Image

    images: list[Array] = []
    labels: list[Array] = []
    writer: list[int] = []
    places: dict[str, int] = {}
    for batch in parquet.ParquetFile(io.BytesIO(contents)).iter_batches(columns=["image", "character", "writer_id"]):
        for picture in batch.column("image").to_pylist():
            with Image.open(io.BytesIO(picture["bytes"])) as opened:
                images.append(np.asarray(opened.convert("L"), dtype=np.uint8))
        labels.append(batch.column("character").to_numpy())
        writer += [places.setdefault(name, len(places)) for name in batch.column("writer_id").to_pylist()]
    right = len(images) > 0 and all(image.shape == (_SIDE, _SIDE) for image in images)
    require(right, f"The parquet file of FEMNIST has pictures that are not {_SIDE} x {_SIDE}, or none.")
    return np.stack(images), np.concatenate(labels).astype(np.uint8), np.array(writer), tuple(places)
