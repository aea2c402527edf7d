"""Data in which examples, not clients, have true clusters: the settings of Chung's report on UIFCA (2023).

There are as many clients as clusters. A share p of each cluster's examples is at the client of the same number; the
others are shuffled and divided evenly: with p = 0 all clients have the same mixture, with p = 1 each has one cluster.
The labels of examples are their true clusters; only evaluation uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from corymb.data.built_in import sources
from corymb.data.built_in.views import client_names
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array
from corymb.data.ragged import Ragged, by_client
from corymb.settings import require

Generator = np.random.Generator


def gaussians(
    seed: int = 0, *, p: float = 0.0, k: int = 4, m: int = 1000, d: int = 32, scale: float = 5.0, test: int = 250
) -> FederatedDataset:
    """Gaussian clusters: centres of 0s and 1s times `scale`, standard deviation 1; k clients with m examples each."""
    truth, train, held = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3))
    centres = truth.integers(0, 2, size=(k, d)) * scale

    def draw(rng: Generator, cluster: Array) -> Array:
        return centres[cluster] + rng.standard_normal((len(cluster), d))

    return _synthetic("gaussians", draw, (train, held), p, k, m, test)


def subspace(
    seed: int = 0, *, p: float = 0.0, k: int = 4, m: int = 1000, d: int = 32, rank: int = 16, test: int = 250
) -> FederatedDataset:
    """Subspace clusters: standard normal coefficients of `rank` orthonormal vectors, drawn for each cluster."""
    require(1 <= rank <= d, f"rank={rank}: wanted 1 to d={d}.")
    truth, train, held = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3))
    bases = np.stack([np.linalg.qr(truth.standard_normal((d, rank)))[0].T for _ in range(k)])  # k rank d

    def draw(rng: Generator, cluster: Array) -> Array:
        drawn: Array = np.einsum("mr,mrd->md", rng.standard_normal((len(cluster), rank)), bases[cluster])
        return drawn

    return _synthetic("subspace", draw, (train, held), p, k, m, test)


def _synthetic(
    name: str,
    draw: Callable[[Generator, Array], Array],
    streams: Sequence[Generator],
    p: float,
    k: int,
    m: int,
    test: int,
) -> FederatedDataset:
    require(k >= 1 and m >= 1 and test >= 0, f"k={k}, m={m}, test={test}: wanted clusters with examples.")

    def part(rng: Generator, each: int) -> Ragged:
        cluster = np.repeat(np.arange(k), each)
        return _dealt(draw(rng, cluster).astype(np.float32), cluster, k, p, rng)

    return _federate(name, part(streams[0], m), part(streams[1], test), k, [str(j) for j in range(k)])


def mnist_digits(seed: int = 0, *, p: float = 0.0, side: int = 28, per_class: int | None = None) -> FederatedDataset:
    """MNIST without its labels, clusters by digit, ten clients.

    `side` 14 halves the pictures' sides by averaging 2 x 2 pixels; `per_class` is the number of pictures of each digit.
    """
    _check_pictures(side, per_class)
    x, y, x_test, y_test = sources.MNIST.load()
    return _pictures("mnist-digits", (x, y), (x_test, y_test), 10, tuple("0123456789"), seed, p, side, per_class)


def mnist_rotation_points(
    seed: int = 0, *, p: float = 0.0, digit: int = 3, side: int = 28, per_class: int | None = None
) -> FederatedDataset:
    """Every MNIST picture of one digit, rotated by 0, 90, 180 and 270 degrees: clusters by rotation, four clients."""
    require(0 <= digit <= 9, f"digit={digit}: wanted 0 to 9.")
    _check_pictures(side, per_class)
    x, y, x_test, y_test = sources.MNIST.load()
    turned = [_turned(images[labels == digit]) for images, labels in ((x, y), (x_test, y_test))]
    classes = tuple(f"{90 * quarters}°" for quarters in range(4))
    return _pictures("mnist-rotation-points", turned[0], turned[1], 4, classes, seed, p, side, per_class)


def _check_pictures(side: int, per_class: int | None) -> None:
    require(side in (14, 28), f"side={side}: wanted 28, the width of the images, or 14 for half of it.")
    require(per_class is None or per_class >= 1, f"per_class={per_class}: wanted 1 or more.")


def _turned(images: Array) -> tuple[Array, Array]:
    turns = [np.rot90(images, quarters, axes=(-2, -1)) for quarters in range(4)]
    return np.concatenate(turns), np.repeat(np.arange(4), len(images))


def _pictures(
    name: str,
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    k: int,
    classes: Sequence[str],
    seed: int,
    p: float,
    side: int,
    per_class: int | None,
) -> FederatedDataset:
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2)]

    def part(images: Array, cluster: Array, most: int | None, rng: Generator) -> Ragged:
        if most is not None:
            rows = np.concatenate([rng.permutation(np.flatnonzero(cluster == j))[:most] for j in range(k)])
            images, cluster = images[rows], cluster[rows]
        if side == 14:
            images = images.reshape(-1, 14, 2, 14, 2).mean((2, 4))
        x = images.reshape(-1, 1, side, side).astype(np.float32) / 255
        return _dealt(x, cluster.astype(np.int64), k, p, rng)

    few = None if per_class is None else max(1, per_class // 4)
    return _federate(name, part(*train, per_class, streams[0]), part(*test, few, streams[1]), k, classes)


def random_background(data: FederatedDataset, seed: int = 0, *, below: float = 0.01) -> FederatedDataset:
    """The same images with every pixel under `below` replaced by a random value in [0, 1], in training and test."""
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2)]

    def part(rows: Ragged, rng: Generator) -> Ragged:
        noise = torch.from_numpy(rng.random(rows.x.shape, dtype=np.float32))
        return rows._replace(x=torch.where(rows.x < below, noise, rows.x))

    train, test = part(data.train, streams[0]), part(data.test, streams[1])
    return _federate(f"{data.name}, random background", train, test, len(data.classes), data.classes)


def _dealt(x: Array, cluster: Array, k: int, p: float, rng: Generator) -> Ragged:
    """Divide examples among k clients: a share p of each cluster to the client of its number, the rest at random."""
    require(0 <= p <= 1, f"p={p}: wanted a share from 0 to 1.")
    client = np.empty(len(cluster), dtype=np.int64)
    rest = []
    for j in range(k):
        rows = rng.permutation(np.flatnonzero(cluster == j))
        own = round(p * len(rows))
        client[rows[:own]] = j
        rest.append(rows[own:])
    others = rng.permutation(np.concatenate(rest))
    client[others] = np.arange(len(others)) % k
    order = rng.permutation(len(x))  # mixes the clusters within a client
    return by_client(torch.from_numpy(x[order]), torch.from_numpy(cluster[order]), torch.from_numpy(client[order]), k)


def _federate(name: str, train: Ragged, test: Ragged, k: int, classes: Sequence[str]) -> FederatedDataset:
    return FederatedDataset(
        name=name, names=client_names(k), train=train, test=test, task="density", classes=tuple(classes)
    )
