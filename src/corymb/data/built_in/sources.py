"""Sources of public data sets: a folder of packed arrays, or the published files in a cache.

Packed data in the folder given by the environment variable `CORYMB_DATA` come first. Otherwise the published files are
read from the cache folder (`CORYMB_CACHE`, or the user's cache) and downloaded if they are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from corymb.data.built_in import cifar, femnist, mnist, shakespeare
from corymb.data.built_in.mnist import Images
from corymb.data.built_in.roles import Roles, characters
from corymb.data.built_in.writers import Writers
from corymb.data.fetching.home import DataUnavailable, Home

__all__ = ["CIFAR10", "FASHION_MNIST", "FEMNIST", "MNIST", "SHAKESPEARE", "DataUnavailable", "Source"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Source(Generic[T]):
    """A public data set, before it is divided among clients."""

    home: Home
    classes: tuple[str, ...]
    read_packed: Callable[[Path], T]
    read_published: Callable[[Home], T]

    @property
    def name(self) -> str:
        """The name of its folder in the cache."""
        return self.home.name

    def load(self) -> T:
        """Load the data from `CORYMB_DATA`, the cache or a mirror."""
        packed = self.home.packed_here
        return self.read_published(self.home) if packed is None else self.read_packed(packed)


MNIST: Source[Images] = Source(
    home=mnist.MNIST,
    classes=tuple("0123456789"),
    read_packed=mnist.read_packed,
    read_published=mnist.read_published,
)

FASHION_MNIST: Source[Images] = Source(
    home=mnist.FASHION_MNIST,
    classes=("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    read_packed=mnist.read_packed,
    read_published=mnist.read_published,
)

CIFAR10: Source[Images] = Source(
    home=cifar.CIFAR10,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    read_packed=cifar.read_packed,
    read_published=cifar.read_published,
)

FEMNIST: Source[Writers] = Source(
    home=femnist.FEMNIST,
    classes=femnist.CHARACTERS,
    read_packed=femnist.read_packed,
    read_published=femnist.read_published,
)

SHAKESPEARE: Source[Roles] = Source(
    home=shakespeare.SHAKESPEARE,
    classes=characters(),
    read_packed=shakespeare.read_packed,
    read_published=shakespeare.read_published,
)
