"""FEMNIST of LEAF (Caldas et al. 2018): handwritten characters by writer, as LEAF's json or one npz file.

Pixels are as LEAF has them: 255 is the paper, 0 is ink.
"""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np

from corymb.data.built_in.fetching import DataUnavailable, Home
from corymb.data.built_in.packed import read_arrays
from corymb.data.built_in.writers import Writers
from corymb.data.features import Array
from corymb.data.readers.leaf import users_in
from corymb.settings import require

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_SIDE = 28

FEMNIST = Home(name="femnist", packed=("femnist/femnist.npz", "femnist/train"))


def read_published(home: Home) -> Writers:
    """LEAF's folders `train` and `test` in the cache."""
    if (home.folder / "train").is_dir():
        return read_leaf(home.folder)
    raise DataUnavailable(
        f"femnist: put LEAF's folders train and test (-s niid -t sample) into {home.folder}, or set CORYMB_DATA to a "
        f"folder with {home.packed[0]}."
    )


def read_packed(path: Path) -> Writers:
    """The npz file `images`, `labels`, `writer`, `writer_ids`, `test`, or LEAF's folders."""
    if path.is_dir():
        return read_leaf(path.parent)
    images, labels, writer, names, test = read_arrays(path, "images", "labels", "writer", "writer_ids", "test")
    return Writers(images, labels, writer.astype(np.int64), tuple(map(str, names)), test)


def read_leaf(folder: Path) -> Writers:
    """LEAF's folders `train` and `test`; what a writer has twice, which is a flaw of LEAF's, is taken once."""
    images: list[Array] = []
    labels: list[int] = []
    writer: list[int] = []
    test: list[bool] = []
    places: dict[str, int] = {}
    seen: set[tuple[int, int, bytes]] = set()
    repeats = 0
    for part in ("train", "test"):  # in this order: of two copies, the one to train on is kept
        for user in users_in(folder, part):
            place = places.setdefault(user.name, len(places))
            for image, label in zip(_bytes(user.x, user.name), user.y, strict=True):
                mark = (place, int(label), image.tobytes())
                repeats += mark in seen
                if mark not in seen:
                    seen.add(mark)
                    images.append(image)
                    labels.append(int(label))
                    writer.append(place)
                    test.append(part == "test")
    require(len(images) > 0, f"{folder} has no images.")
    top = max(labels)
    require(min(labels) >= 0 and top < len(CHARACTERS), f"{folder}: a label is {top}, wanted 0 to 61.")
    notes = (f"{repeats} images that a writer has twice are taken once",) if repeats else ()
    return Writers(np.stack(images), np.array(labels), np.array(writer), tuple(places), np.array(test), notes)


def _bytes(rows: list[list[float]], name: str) -> Array:
    """LEAF's numbers from 0 to 1 as the bytes that they were."""
    values = np.asarray(rows, dtype=np.float64).reshape(-1, _SIDE, _SIDE) * 255
    pixels = values.round()
    exact = bool((np.abs(values - pixels) < 1e-3).all()) and bool((pixels >= 0).all() and (pixels <= 255).all())
    require(exact, f"Writer {name!r} has pixels that are no bytes divided by 255: write the shards with LEAF again.")
    return pixels.astype(np.uint8)
