"""Where MNIST and Fashion-MNIST come from: a folder of packed arrays, or the published files in a cache.

First the npz file under the folder that the environment variable `CORYMB_DATA` names. Else the four idx files as
published, in the cache folder (`CORYMB_CACHE`, or the user's cache), downloaded where they are missing. A file's
contents are compared with their SHA-256 every time before they are used.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, NamedTuple
from urllib.request import Request, urlopen

import numpy as np

from corymb.data.features import Array
from corymb.data.readers.idx import gunzip, parse_idx
from corymb.settings import InvalidInput, require

_CHUNK = 2**20


class DataUnavailable(OSError):
    """Data that are not here and could not be fetched: one line with what was tried and what to do."""


class Images(NamedTuple):
    """Images uint8 [N, 28, 28] and their classes."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


class Published(NamedTuple):
    """A published file: its name, and the size and SHA-256 of its contents when unpacked."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set's public home."""

    name: str
    packed: str
    """The npz file's place under `CORYMB_DATA`."""
    mirrors: tuple[str, ...]
    """Addresses of the folder with the published files, tried in turn."""
    files: tuple[Published, ...]
    """In the order of `Images`."""
    classes: tuple[str, ...]

    def load(self) -> Images:
        """The images, from `CORYMB_DATA`, the cache or a mirror."""
        packed = Path(os.environ.get("CORYMB_DATA") or os.devnull) / self.packed
        if packed.is_file():
            return _read_packed(packed)
        folder = cache_folder() / self.name
        return Images(*(parse_idx(_contents(self, file, folder), file.name) for file in self.files))


MNIST = Source(
    name="mnist",
    packed="mnist/mnist.npz",
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    files=(
        Published(
            "train-images-idx3-ubyte.gz", 47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
        ),
        Published(
            "train-labels-idx1-ubyte.gz", 60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
        ),
        Published(
            "t10k-images-idx3-ubyte.gz", 7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
        ),
        Published(
            "t10k-labels-idx1-ubyte.gz", 10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
        ),
    ),
    classes=tuple("0123456789"),
)

FASHION_MNIST = Source(
    name="fashion_mnist",
    packed="fashion_mnist/fashion_mnist.npz",
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    files=(
        Published(
            "train-images-idx3-ubyte.gz", 47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
        ),
        Published(
            "train-labels-idx1-ubyte.gz", 60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
        ),
        Published(
            "t10k-images-idx3-ubyte.gz", 7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
        ),
        Published(
            "t10k-labels-idx1-ubyte.gz", 10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
        ),
    ),
    classes=("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def cache_folder() -> Path:
    """Where downloads are kept: `CORYMB_CACHE`, or `corymb` in the user's cache folder."""
    if named := os.environ.get("CORYMB_CACHE"):
        return Path(named)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "corymb"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/corymb"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corymb"


def _read_packed(path: Path) -> Images:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            images = Images(*(arrays[name] for name in Images._fields))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataUnavailable(f"{path} cannot be read ({error}): pack it again, or unset CORYMB_DATA.") from None
    shapes = [part.shape[1:] for part in images]
    right = shapes == [(28, 28), (), (28, 28), ()] and all(part.dtype == np.uint8 for part in images)
    require(right, f"{path} has rows of the shapes {shapes}: wanted uint8 images of 28 x 28 and one label for each.")
    return images


def _contents(source: Source, file: Published, folder: Path) -> bytes:
    """A published file's contents: from the cache if they are there and right, else from a mirror."""
    place = folder / file.name
    if place.is_file():
        try:
            return _verified(place, file)
        except InvalidInput:
            place.unlink()  # damaged, or left by an older version: as good as missing
    problems = []
    for mirror in source.mirrors:
        try:
            return _fetch(mirror + file.name, file, place)
        except (OSError, HTTPException, InvalidInput) as error:
            problems.append(f"{mirror}: {error}")
    raise DataUnavailable(
        f"{source.name}: {file.name} could not be downloaded ({'; '.join(problems)}). Put it into {folder}, or set "
        f"CORYMB_DATA to a folder with {source.packed}."
    )


def _verified(path: Path, file: Published) -> bytes:
    contents = gunzip(path, most=file.size)
    found = hashlib.sha256(contents).hexdigest()
    require(found == file.sha256, f"its contents have the SHA-256 {found[:12]}..., wanted {file.sha256[:12]}...")
    return contents


def _fetch(url: str, file: Published, place: Path) -> bytes:
    """Download beside `place`, check, and only then rename into it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".download-") as folder:
        partial = Path(folder) / file.name
        with urlopen(Request(url, headers={"User-Agent": "corymb"}), timeout=30) as reply, partial.open("wb") as out:
            expected = reply.headers.get("Content-Length")
            received = _copy(reply, out, most=file.size + _CHUNK)
        if expected is not None and received != int(expected):
            raise DataUnavailable(f"got {received} of {expected} bytes")
        contents = _verified(partial, file)
        partial.replace(place)
    return contents


def _copy(reply: IO[bytes], out: IO[bytes], most: int) -> int:
    received = 0
    while chunk := reply.read(_CHUNK):
        received += len(chunk)
        if received > most:
            raise DataUnavailable(f"got more than the {most} bytes that the file can have")
        out.write(chunk)
    return received
