"""Partitioners with label skew, quantity skew and concept shift, for any examples.

There is no rejection sampling: a request is satisfied exactly, or rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heapreplace

import numpy as np
import torch

from corymb.data.built_in import images, views
from corymb.data.built_in.labelled import Labelled, labelled_images, labelled_rows
from corymb.data.clients import Values
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array, as_features
from corymb.data.ragged import Ragged, offsets_of
from corymb.settings import require

Generator = np.random.Generator
_LEAST_ALPHA, _MOST_ALPHA = 1e-3, 1e9
"""Below the first, shares underflow; above the second, they are all equal."""


def dirichlet(
    x: Values,
    y: Values,
    x_test: Values,
    y_test: Values,
    *,
    clients: int = 100,
    alpha: float = 0.5,
    least: int = 1,
    seed: int = 0,
    flat: bool = False,
    classes: Sequence[str] = (),
    name: str = "dirichlet",
) -> FederatedDataset:
    """Divide every class by shares from a Dirichlet distribution: with a small `alpha`, clients have few classes.

    As in Yurochkin et al. 2019, except that shares are not redrawn if a client has too few examples: one with fewer
    than `least` training examples gets some from the client with the most. Each example has one owner; test examples
    are divided by the same shares. There are no true clusters.

    Arguments:
        x: Training examples, one per row; bytes are pixels.
        y: Their classes: integers from 0, or names. `x_test` and `y_test` are the test examples and classes.
        clients: The number of clients.
        alpha: The concentration of the Dirichlet distribution.
        least: The fewest training examples of a client.
    """
    examples = labelled_rows(x, y, x_test, y_test, classes)
    _check(len(examples.y), clients, least, alpha)
    rng = np.random.default_rng(seed)
    parts = (examples.y, examples.y_test)
    labels = np.union1d(*parts)
    shares = rng.dirichlet(np.full(clients, alpha), len(labels))
    owner, owner_test = (np.empty(len(part), dtype=np.int64) for part in parts)
    for label, share in zip(labels, shares, strict=True):
        for part, owners in zip(parts, (owner, owner_test), strict=True):
            rows = rng.permutation(np.flatnonzero(part == label))
            owners[rows] = np.repeat(np.arange(clients), _counts(len(rows), share))
    _raise_to(least, owner, clients)
    return _dealt(examples, owner, owner_test, clients, flat, name)


def quantity_skew(
    x: Values,
    y: Values,
    x_test: Values,
    y_test: Values,
    *,
    alpha: float = 0.5,
    clients: int = 100,
    least: int = 1,
    seed: int = 0,
    flat: bool = False,
    classes: Sequence[str] = (),
    name: str = "quantity-skew",
) -> FederatedDataset:
    """Clients of very different sizes with the same distribution: `least` each, the rest by Dirichlet shares.

    Each example has one owner; test examples are divided by the same shares. There are no true clusters. Arguments are
    those of `dirichlet`.
    """
    examples = labelled_rows(x, y, x_test, y_test, classes)
    _check(len(examples.y), clients, least, alpha)
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(clients, alpha))
    sizes = least + _counts(len(examples.y) - clients * least, share)
    owner = rng.permutation(np.repeat(np.arange(clients), sizes))
    owner_test = rng.permutation(np.repeat(np.arange(clients), _counts(len(examples.y_test), share)))
    return _dealt(examples, owner, owner_test, clients, flat, name)


def concept_shift(
    x: Values,
    y: Values,
    x_test: Values,
    y_test: Values,
    *,
    clusters: int = 4,
    clients: int = 100,
    per_client: int = 600,
    seed: int = 0,
    flat: bool = False,
    disjoint: bool = False,
    classes: Sequence[str] = (),
    name: str = "concept-shift",
) -> FederatedDataset:
    """Clusters see the same images with permuted labels; otherwise as `rotated`.

    The first cluster keeps the labels. Any two clusters differ in every class, since each shifts the classes further
    along one cyclic order, drawn by `seed`. `clusters` is at most the number of classes; the other arguments are those
    of `rotated`.
    """
    dealt = labelled_images(x, y, x_test, y_test, classes)
    require(len(dealt.y) > 0, "There are no training images: wanted some.")
    kinds = len(dealt.classes)
    views.check_whole("clusters", clusters)
    require(1 <= clusters <= kinds, f"clusters={clusters}: there are {kinds} classes, for as many clusters at most.")
    data = images.viewed(
        dealt[:4],
        [views.unchanged] * clusters,
        clients=clients,
        per_client=per_client,
        seed=seed,
        flat=flat,
        disjoint=disjoint,
        classes=dealt.classes,
        name=name,
    )
    return shifted(data, clusters, seed)


def shifted(data: FederatedDataset, clusters: int, seed: int) -> FederatedDataset:
    """The same examples with the labels of each true cluster permuted as in `concept_shift`."""
    kinds, truth = len(data.classes), data.truth
    assert truth is not None
    order = np.random.default_rng([seed, 1]).permutation(kinds)
    renamed = np.empty((clusters, kinds), dtype=np.int64)
    for cluster in range(clusters):
        renamed[cluster, order] = np.roll(order, -cluster)
    table = torch.from_numpy(renamed)

    def part(rows: Ragged) -> Ragged:
        return rows._replace(y=table[truth.repeat_interleave(rows.sizes), rows.y])

    return replace(data, train=part(data.train), test=part(data.test))


def _check(rows: int, clients: int, least: int, alpha: float) -> None:
    number = isinstance(alpha, (int, float, np.number)) and not isinstance(alpha, bool)
    bounds = f"alpha={alpha!r}: wanted a number, {_LEAST_ALPHA} to {_MOST_ALPHA:g}."
    require(number and _LEAST_ALPHA <= alpha <= _MOST_ALPHA, bounds)
    for what, value in (("clients", clients), ("least", least)):
        views.check_whole(what, value)
    require(rows > 0, "There are no training examples: wanted some.")
    require(
        clients * least <= rows,
        f"clients={clients}, least={least}: that takes {clients * least} training examples of the {rows} there are; "
        "ask for less.",
    )


def _counts(total: int, share: Array) -> Array:
    """Integers that sum to `total` in proportion to `share`, by the largest-remainder method."""
    exact = share / share.sum() * total
    counts: Array = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]] += 1
    return counts


def _raise_to(least: int, owner: Array, clients: int) -> None:
    """Move rows, in place, from the clients with the most to those with fewer than `least`."""
    sizes = np.bincount(owner, minlength=clients)
    rows, last = (
        np.argsort(owner, kind="stable"),
        np.cumsum(sizes) - 1,
    )  # for each client: its rows in order, and its last row
    richest = [(-int(sizes[client]), int(client)) for client in np.flatnonzero(sizes > least)]
    heapify(richest)
    for client in np.flatnonzero(sizes < least):
        for _ in range(least - int(sizes[client])):
            size, donor = richest[0]
            owner[rows[last[donor]]] = client
            last[donor] -= 1
            heapreplace(richest, (size + 1, donor))


def _dealt(
    examples: Labelled, owner: Array, owner_test: Array, clients: int, flat: bool, name: str
) -> FederatedDataset:
    def part(rows: Array, labels: Array, owners: Array) -> Ragged:
        order = np.argsort(owners, kind="stable")
        chosen = rows[order]
        held = torch.from_numpy(chosen) if chosen.dtype == np.uint8 else as_features(chosen)
        sizes = torch.from_numpy(np.bincount(owners, minlength=clients))
        return Ragged(held.flatten(1) if flat else held, torch.from_numpy(labels[order]), offsets_of(sizes))

    return FederatedDataset(
        name=name,
        names=views.client_names(clients),
        train=part(examples.x, examples.y, owner),
        test=part(examples.x_test, examples.y_test, owner_test),
        task="classification",
        classes=examples.classes,
    )
