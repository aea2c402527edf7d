"""MNIST and Fashion-MNIST: four idx files each, or one npz file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from corymb.data.built_in.packed import read_arrays
from corymb.data.features import Array
from corymb.data.fetching.home import Home, Published
from corymb.data.readers.idx import parse_idx
from corymb.settings import require


class Images(NamedTuple):
    """Images uint8 [N, H, W] or [N, C, H, W], and their classes."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


def _files(*digests: str) -> tuple[Published, ...]:
    """The four files, in the order of `Images`; checksums are of the unpacked contents."""
    names = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    sizes = (47040016, 60008, 7840016, 10008)
    return tuple(
        Published(name, size, digest, unpacked=True) for name, size, digest in zip(names, sizes, digests, strict=True)
    )


MNIST = Home(
    name="mnist",
    packed=("mnist/mnist.npz",),
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    files=_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    licence="none stated for the data (LeCun, Cortes, Burges)",
)

FASHION_MNIST = Home(
    name="fashion_mnist",
    packed=("fashion_mnist/fashion_mnist.npz",),
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    files=_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    licence="MIT (Zalando)",
)


def read_published(home: Home) -> Images:
    """Read the four idx files."""
    return Images(*(parse_idx(kept.contents, kept.file.name) for kept in home.obtain()))


def read_packed(path: Path) -> Images:
    """Read one npz file with the fields of `Images`."""
    images = Images(*read_arrays(path, *Images._fields))
    shapes = [part.shape[1:] for part in images]
    right = shapes == [(28, 28), (), (28, 28), ()] and all(part.dtype == np.uint8 for part in images)
    require(right, f"{path} has rows of the shapes {shapes}: wanted uint8 images of 28 x 28 and one label for each.")
    return images
