"""Any examples dealt unevenly to clients: of some classes more, to some clients more, or with other labels by cluster.

Nothing is drawn until it fits: what is asked for is given exactly, or refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heapreplace

import numpy as np
import torch

from corymb.data.built_in import images, views
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array, as_features
from corymb.data.prepare.pictures import channels_first
from corymb.data.ragged import Ragged, offsets_of
from corymb.settings import require

Generator = np.random.Generator
_LEAST_ALPHA, _MOST_ALPHA = 1e-3, 1e9
"""Below, shares are not numbers any more; above, they are all alike."""


def dirichlet(
    x: Array,
    y: Array,
    x_test: Array,
    y_test: Array,
    *,
    clients: int = 100,
    alpha: float = 0.5,
    least: int = 1,
    seed: int = 0,
    flat: bool = False,
    classes: Sequence[str] = (),
    name: str = "dirichlet",
) -> FederatedDataset:
    """Every class is dealt by shares drawn from a Dirichlet distribution: small `alpha`, few classes at a client.

    As in Yurochkin et al. 2019, but nothing is drawn again where a client has too few: one with fewer than `least`
    training examples is given some by the client with the most. Each example has one owner; test examples are dealt by
    the same shares. There are no true clusters.

    Arguments:
        x: Training examples, with a row for each; bytes are taken for pixels.
        y: Their classes, whole numbers from 0. `x_test` and `y_test` are those to test on.
        clients: How many.
        alpha: The concentration of the Dirichlet distribution.
        least: Training examples that every client has.
    """
    _check(x, y, x_test, y_test, clients, least, alpha)
    rng = np.random.default_rng(seed)
    labels = np.union1d(y, y_test)
    shares = rng.dirichlet(np.full(clients, alpha), len(labels))
    owner, owner_test = (np.empty(len(part), dtype=np.int64) for part in (y, y_test))
    for label, share in zip(labels, shares, strict=True):
        for part, owners in ((y, owner), (y_test, owner_test)):
            rows = rng.permutation(np.flatnonzero(part == label))
            owners[rows] = np.repeat(np.arange(clients), _counts(len(rows), share))
    _raise_to(least, owner, clients)
    return _dealt((x, y, x_test, y_test), owner, owner_test, clients, flat, classes, name)


def quantity_skew(
    x: Array,
    y: Array,
    x_test: Array,
    y_test: Array,
    *,
    alpha: float = 0.5,
    clients: int = 100,
    least: int = 1,
    seed: int = 0,
    flat: bool = False,
    classes: Sequence[str] = (),
    name: str = "quantity-skew",
) -> FederatedDataset:
    """Clients with examples of one kind and very different numbers: `least` each, the rest by Dirichlet shares.

    Each example has one owner; test examples are dealt by the same shares. There are no true clusters. Arguments are
    those of `dirichlet`.
    """
    _check(x, y, x_test, y_test, clients, least, alpha)
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(clients, alpha))
    sizes = least + _counts(len(y) - clients * least, share)
    owner = rng.permutation(np.repeat(np.arange(clients), sizes))
    owner_test = rng.permutation(np.repeat(np.arange(clients), _counts(len(y_test), share)))
    return _dealt((x, y, x_test, y_test), owner, owner_test, clients, flat, classes, name)


def concept_shift(
    x: Array,
    y: Array,
    x_test: Array,
    y_test: Array,
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
    """Clusters see the same images and call them by other names: labels are permuted, otherwise as `rotated`.

    The first cluster keeps them; any two clusters differ in every class, since each moves the classes further along
    one cyclic order, drawn by `seed`. `clusters` is how many there are, at most as many as classes; the other arguments
    are those of `rotated`.
    """
    images.check_images(x, y)
    require(len(y) > 0, "There are no training images: wanted some.")
    kinds = max(int(y.max()), int(y_test.max()) if len(y_test) else 0, len(classes) - 1) + 1
    require(1 <= clusters <= kinds, f"clusters={clusters}: there are {kinds} classes, for as many clusters at most.")
    data = images.viewed(
        (x, y, x_test, y_test),
        [views.unchanged] * clusters,
        clients=clients,
        per_client=per_client,
        seed=seed,
        flat=flat,
        disjoint=disjoint,
        classes=classes,
        name=name,
    )
    order = np.random.default_rng([seed, 1]).permutation(kinds)
    renamed = np.empty((clusters, kinds), dtype=np.int64)
    for cluster in range(clusters):
        renamed[cluster, order] = np.roll(order, -cluster)
    table, truth = torch.from_numpy(renamed), data.truth
    assert truth is not None

    def part(rows: Ragged) -> Ragged:
        return rows._replace(y=table[truth.repeat_interleave(rows.sizes), rows.y])

    return replace(data, train=part(data.train), test=part(data.test))


def _check(x: Array, y: Array, x_test: Array, y_test: Array, clients: int, least: int, alpha: float) -> None:
    bounds = f"alpha={alpha}: wanted {_LEAST_ALPHA} to {_MOST_ALPHA:g}."
    require(_LEAST_ALPHA <= alpha <= _MOST_ALPHA, bounds)
    for what, value in (("clients", clients), ("least", least)):
        views.check_whole(what, value)
    for part, labels in ((x, y), (x_test, y_test)):
        right = part.ndim >= 2 and labels.shape == part.shape[:1] and labels.dtype.kind in "iu"
        require(
            right,
            f"Examples are {list(part.shape)} with labels {labels.dtype} {list(labels.shape)}: wanted rows with one "
            "whole number for each.",
        )
    negative = min(int(labels.min()) for labels in (y, y_test) if len(labels)) if len(y) else -1
    require(negative >= 0, "Labels are positions among the classes: wanted training examples, and no label below 0.")
    require(
        clients * least <= len(y),
        f"clients={clients}, least={least}: that takes {clients * least} training examples of the {len(y)} there are; "
        "ask for less.",
    )


def _counts(total: int, share: Array) -> Array:
    """Whole numbers that add up to `total`, as near to its shares as can be: the largest remainders are rounded up."""
    exact = share / share.sum() * total
    counts: Array = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]] += 1
    return counts


def _raise_to(least: int, owner: Array, clients: int) -> None:
    """Give clients with fewer than `least` rows some of whoever has most, in place."""
    sizes = np.bincount(owner, minlength=clients)
    rows, last = (
        np.argsort(owner, kind="stable"),
        np.cumsum(sizes) - 1,
    )  # of each client: its rows in turn, its last one
    richest = [(-int(sizes[client]), int(client)) for client in np.flatnonzero(sizes > least)]
    heapify(richest)
    for client in np.flatnonzero(sizes < least):
        for _ in range(least - int(sizes[client])):
            size, donor = richest[0]
            owner[rows[last[donor]]] = client
            last[donor] -= 1
            heapreplace(richest, (size + 1, donor))


def _dealt(
    examples: tuple[Array, Array, Array, Array],
    owner: Array,
    owner_test: Array,
    clients: int,
    flat: bool,
    classes: Sequence[str],
    name: str,
) -> FederatedDataset:
    x, y, x_test, y_test = examples
    top = max(int(labels.max()) for labels in (y, y_test) if len(labels))

    def part(rows: Array, labels: Array, owners: Array) -> Ragged:
        order = np.argsort(owners, kind="stable")
        chosen = rows[order] if rows.ndim == 2 else channels_first(rows[order])
        held = torch.from_numpy(chosen) if chosen.dtype == np.uint8 else as_features(chosen)
        sizes = torch.from_numpy(np.bincount(owners, minlength=clients))
        return Ragged(
            held.flatten(1) if flat else held, torch.from_numpy(labels[order].astype(np.int64)), offsets_of(sizes)
        )

    return FederatedDataset(
        name=name,
        names=views.client_names(clients),
        train=part(x, y, owner),
        test=part(x_test, y_test, owner_test),
        task="classification",
        classes=tuple(classes) or tuple(str(label) for label in range(top + 1)),
    )
