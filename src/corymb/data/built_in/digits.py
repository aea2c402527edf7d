"""Handwritten digits from scikit-learn, 1797 images of 8 x 8 pixels: real data without a download."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from corymb.data.built_in.skews import dirichlet, quantity_skew, shifted
from corymb.data.built_in.views import View, apply_views, client_names, inversions, rotations, unchanged
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array
from corymb.data.ragged import Ragged
from corymb.settings import require

_TOP = 16  # the brightest pixel


def digits(seed: int = 0, *, clients: int = 80, train: int = 60, test: int = 40) -> FederatedDataset:
    """Rotated digits: four clusters of clients see the digits turned by 0, 90, 180 and 270 degrees.

    The images are split once, by `seed`, into a training pool and a test pool in proportion to `train` and `test` (by
    default 1078 and 719), so that no client's test image is a training image of another client. Each cluster shuffles
    both pools with its own permutation and deals `train` and `test` images to one client after another, starting again
    at the front when a pool is used up. No client has an image twice. By default each cluster uses 122 training images
    and 81 test images twice and the others once, and every image occurs in all rotations. Pixels are divided by 16; an
    image is a vector of 64. The clients of a cluster are consecutive.

    >>> data = digits(clients=8, train=20, test=10)
    >>> data.clients, tuple(data.train.x.shape), data.truth.tolist()
    (8, (160, 64), [0, 0, 1, 1, 2, 2, 3, 3])
    """
    return _deal("digits", rotations(4), seed, clients, train, test)


def digits_inverted(seed: int = 0, *, clients: int = 40, train: int = 60, test: int = 40) -> FederatedDataset:
    """Two clusters, one of which sees the digits with dark and light exchanged; otherwise as `digits`."""
    return _deal("digits-inverted", inversions(_TOP), seed, clients, train, test)


def digits_iid(seed: int = 0, *, clients: int = 20, train: int = 60, test: int = 40) -> FederatedDataset:
    """Digits with a single true cluster, to test that an algorithm finds no others; otherwise as `digits`."""
    return _deal("digits-iid", rotations(1), seed, clients, train, test)


def digits_shifted(seed: int = 0, *, clients: int = 40, train: int = 60, test: int = 40) -> FederatedDataset:
    """Four clusters with permuted labels, as in `concept_shift`; otherwise as `digits`."""
    return shifted(_deal("digits-shifted", [unchanged] * 4, seed, clients, train, test), 4, seed)


def digits_dirichlet(seed: int = 0, *, clients: int = 20, alpha: float = 0.5, least: int = 1) -> FederatedDataset:
    """Digits divided by Dirichlet shares of classes, as in `dirichlet`: 1078 training and 719 test images."""
    return _partitioned(dirichlet, "digits-dirichlet", seed, clients=clients, alpha=alpha, least=least)


def digits_skewed(seed: int = 0, *, clients: int = 20, alpha: float = 0.5, least: int = 1) -> FederatedDataset:
    """Digits divided into clients of very different sizes, as in `quantity_skew`: 1078 training and 719 test images."""
    return _partitioned(quantity_skew, "digits-skewed", seed, clients=clients, alpha=alpha, least=least)


def _partitioned(partitioner: Callable[..., FederatedDataset], name: str, seed: int, **how: float) -> FederatedDataset:
    return partitioner(*_split(seed), seed=seed, flat=True, classes=tuple("0123456789"), name=name, **how)


def _split(seed: int) -> tuple[Array, Array, Array, Array]:
    """The images (pixels divided by 16) and their digits: six tenths for training, the rest for testing."""
    x, y = _images()
    train, test = np.split(np.random.default_rng(seed).permutation(len(x)), [round(0.6 * len(x))])
    pixels = x.astype(np.float32) / _TOP
    return pixels[train], y[train], pixels[test], y[test]


def _deal(name: str, views: Sequence[View], seed: int, clients: int, train: int, test: int) -> FederatedDataset:
    x, y = _images()
    k, each = len(views), clients // len(views)
    require(each * k == clients and clients > 0, f"clients={clients}: wanted a multiple of the {k} clusters.")
    enough = train >= 1 and test >= 0 and train + test <= len(x)
    require(enough, f"train={train}, test={test}: a client needs a training image, and there are {len(x)} in all.")
    rng = np.random.default_rng(seed)
    pools = np.split(rng.permutation(len(x)), [round(len(x) * train / (train + test))])

    def part(pool: Array, size: int) -> Ragged:
        rows = [rng.permutation(pool)[np.arange(each * size) % max(1, len(pool))] for _ in views]
        return apply_views(x, y, rows, torch.full((clients,), size), views, top=_TOP, flat=True)

    return FederatedDataset(
        name=name,
        names=client_names(clients),
        train=part(pools[0], train),
        test=part(pools[1], test),
        task="classification",
        classes=tuple("0123456789"),
        truth=torch.arange(k).repeat_interleave(each),
    )


def _images() -> tuple[Array, Array]:
    """Read the images and their digits from scikit-learn's file: importing scikit-learn takes twenty times as long."""
    package = find_spec("sklearn")
    for folder in [] if package is None else package.submodule_search_locations or []:
        if (file := Path(folder) / "datasets" / "data" / "digits.csv.gz").exists():
            with gzip.open(file, "rt") as lines:
                rows = np.array([line.split(",") for line in lines], dtype=np.float64).astype(np.uint8)
            return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images.astype(np.uint8), bunch.target
