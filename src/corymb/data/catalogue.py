"""Data sets by name, and data of your own by path."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from corymb.data.built_in import images, points, sources, synthetic
from corymb.data.built_in.digits import digits, digits_iid, digits_inverted
from corymb.data.built_in.mnist import Images
from corymb.data.built_in.roles import by_role, who_says_enough
from corymb.data.built_in.writers import by_writer
from corymb.data.dataset import FederatedDataset
from corymb.data.files import from_folder
from corymb.data.readers.folder import SUFFIXES
from corymb.data.readers.tables import kind_of
from corymb.data.store import SUFFIX
from corymb.settings import InvalidInput, did_you_mean, expanded, require


@dataclass(frozen=True)
class NamedDataset:
    """A data set that has a name."""

    description: str
    loader: Callable[[int], FederatedDataset]
    source: sources.Source[Any] | None = None
    """What is downloaded for it, if it does not come with the library."""

    def __call__(self, seed: int = 0) -> FederatedDataset:
        """The data set made with `seed`."""
        return self.loader(seed)


def _mnist_rotated(seed: int) -> FederatedDataset:
    return _rotated(sources.MNIST, "mnist-rotated", seed)


def _fashion_rotated(seed: int) -> FederatedDataset:
    return _rotated(sources.FASHION_MNIST, "fashion-rotated", seed)


def _rotated(source: sources.Source[Images], name: str, seed: int) -> FederatedDataset:
    return images.rotated(*source.load(), seed=seed, flat=True, classes=source.classes, name=name)


def _mnist_inverted(seed: int) -> FederatedDataset:
    source = sources.MNIST
    # No two clients share an image, as in the experiments of Vardhan et al. 2024 (SR-FCA).
    return images.inverted(
        *source.load(), seed=seed, flat=True, disjoint=True, classes=source.classes, name="mnist-inverted"
    )


def _cifar_rotated(seed: int) -> FederatedDataset:
    source = sources.CIFAR10  # dealt as in Ghosh et al. 2020 (IFCA)
    return images.rotated(
        *source.load(),
        clients=200,
        per_client=500,
        rotations=2,
        seed=seed,
        classes=source.classes,
        name="cifar-rotated",
    )


def _cifar_labels(seed: int) -> FederatedDataset:
    source = sources.CIFAR10
    return images.label_sets(*source.load(), seed=seed, classes=source.classes, name="cifar-labels")


def _femnist(seed: int) -> FederatedDataset:
    source = sources.FEMNIST
    return by_writer(source.load(), least=50, seed=seed, classes=source.classes, name="femnist")


def _shakespeare(seed: int) -> FederatedDataset:
    roles, least = sources.SHAKESPEARE.load(), 2000
    there = len(who_says_enough(roles, least))
    if there < (wanted := 50):  # LEAF's program makes small samples too
        roles = roles._replace(notes=(*roles.notes, f"{there} roles have {least} characters or more: all are taken"))
    return by_role(roles, clients=min(there, wanted) or wanted, least=least, seed=seed, name="shakespeare")


NAMES: Mapping[str, NamedDataset] = MappingProxyType(
    {
        "digits": NamedDataset("8 x 8 digits in four rotations, 80 clients; comes with the library", digits),
        "digits-inverted": NamedDataset("8 x 8 digits, half of 40 clients see them inverted", digits_inverted),
        "digits-iid": NamedDataset("8 x 8 digits without groups, 20 clients", digits_iid),
        "mixed-regression-ifca": NamedDataset(
            "mixed linear regression of Ghosh et al. 2020 (IFCA), 100 clients in 2 clusters",
            synthetic.mixed_regression_ifca,
        ),
        "mixed-regression": NamedDataset(
            "mixed linear regression of Su, Xu, Yang 2022, 200 clients x 50", synthetic.mixed_regression
        ),
        "mixed-regression-unbalanced": NamedDataset(
            "the same with 900 clients x 10 and 20 x 50", synthetic.mixed_regression_unbalanced
        ),
        "mixed-regression-skewed": NamedDataset(
            "the same, with clusters of 20, 30 and 50 % of the clients", synthetic.mixed_regression_skewed
        ),
        "mnist-rotated": NamedDataset(
            "MNIST in four rotations, 1200 clients x 200; downloaded once", _mnist_rotated, sources.MNIST
        ),
        "mnist-inverted": NamedDataset(
            "MNIST, half of 100 clients x 600 see it inverted; downloaded once", _mnist_inverted, sources.MNIST
        ),
        "fashion-rotated": NamedDataset(
            "Fashion-MNIST in four rotations, 1200 clients x 200; downloaded once",
            _fashion_rotated,
            sources.FASHION_MNIST,
        ),
        "cifar-rotated": NamedDataset(
            "CIFAR-10, half of 200 clients x 500 see it upside down; downloaded once", _cifar_rotated, sources.CIFAR10
        ),
        "cifar-labels": NamedDataset(
            "CIFAR-10, the first seven classes or the last, 16 clients x 4375; downloaded once",
            _cifar_labels,
            sources.CIFAR10,
        ),
        "femnist": NamedDataset(
            "handwritten characters, a client for each writer with 50 images or more; downloaded once",
            _femnist,
            sources.FEMNIST,
        ),
        "shakespeare": NamedDataset(
            "the next character of 80, 50 roles of Shakespeare's plays; downloaded once",
            _shakespeare,
            sources.SHAKESPEARE,
        ),
        "gaussians": NamedDataset("no labels: examples of four Gaussians at 4 clients x 1000", points.gaussians),
        "subspace": NamedDataset("no labels: examples of four subspaces at 4 clients x 1000", points.subspace),
        "mnist-digits": NamedDataset(
            "no labels: MNIST, clusters by digit, 10 clients; downloaded once", points.mnist_digits, sources.MNIST
        ),
        "mnist-rotation-points": NamedDataset(
            "no labels: MNIST's threes in four rotations, 4 clients; downloaded once",
            points.mnist_rotation_points,
            sources.MNIST,
        ),
    }
)


def load(name_or_path: str | os.PathLike[str], seed: int = 0, **options: Any) -> FederatedDataset:
    """A data set by its name, or your own by its path.

    Arguments:
        name_or_path: A name (`corymb list data`), or a folder, a table, an npz file or a file made by
            `FederatedDataset.save`. A folder that has the name of a built-in data set is reached as `./name`.
        seed: What is drawn: rotations' permutations, the rows to test on.
        options: `client`, `label` and whatever else `from_folder` takes, for data of your own.

    >>> load("digits", seed=1).clients
    80
    """
    name = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and name in NAMES:
        require(not options, f"{name} takes no options but the seed: {', '.join(options)} are for data of your own.")
        return NAMES[name](seed)
    path = expanded(name)
    if path.suffix == SUFFIX:
        require(not options, f"{name} was saved with its split: {', '.join(options)} cannot be changed now.")
        return FederatedDataset.load(path)
    if path.exists():
        return from_folder(path, seed=seed, **options)
    if _looks_like_path(name):
        raise InvalidInput(f"{name} is not a folder: there is nothing of that name; check the path.")
    raise InvalidInput(f"There is no data set {name!r}, nor a folder of that name. {did_you_mean(name, NAMES)}")


def _looks_like_path(name: str) -> bool:
    return any(mark in name for mark in "/\\~") or name.startswith(".") or kind_of(Path(name)) in SUFFIXES
