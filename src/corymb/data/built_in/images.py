"""Federations of images in which clusters see them rotated, inverted or restricted to some classes.

The protocol of IFCA (Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", 2020):
each cluster shuffles all training images with its own permutation and divides them among its clients, so that each
image occurs once in every cluster; the test images, in file order, are divided evenly among the cluster's clients.
`disjoint=True` is the protocol of SR-FCA (Vardhan, Ghosh, Mazumdar 2024): one permutation for all clusters, so that no
image belongs to two clients; test images, in file order, are divided among all clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from corymb.core.pixels import MAX_PIXEL
from corymb.data.built_in import views
from corymb.data.built_in.labelled import Labelled, as_images, labelled_images
from corymb.data.clients import Values
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array
from corymb.settings import require


def rotated(
    x: Values,
    y: Values,
    x_test: Values,
    y_test: Values,
    *,
    clients: int = 1200,
    per_client: int = 200,
    rotations: int = 4,
    seed: int = 0,
    flat: bool = False,
    disjoint: bool = False,
    classes: Sequence[str] = (),
    name: str = "rotated",
) -> FederatedDataset:
    """Clusters see the images rotated: by 0, 90, 180 and 270 degrees with 4 rotations, by 0 and 180 with 2.

    Arguments:
        x: Training images, uint8 [N, H, W], [N, C, H, W] or [N, H, W, C]. They stay bytes until a client
            trains on them; it gets floats from 0 to 1 of shape [C, H, W].
        y: Their labels [N]: integers from 0, or names. `x_test` and `y_test` are the test images and labels.
        clients: The number of clients, in equal clusters, with `per_client` training images each.
        rotations: The number of clusters.
        seed: Seed of the permutations, one for each cluster.
        flat: Flatten images to vectors.
        disjoint: Whether clusters have different images.
        classes: Names of the labels.
        name: The name of the data set in reports.
    """
    height, width = (train := as_images(x)).shape[2:]
    require(height == width, f"Images are {height} x {width}: only square ones can be turned.")
    return viewed(
        (train, y, x_test, y_test),
        views.rotations(rotations),
        clients=clients,
        per_client=per_client,
        seed=seed,
        flat=flat,
        disjoint=disjoint,
        classes=classes,
        name=name,
    )


def inverted(
    x: Values,
    y: Values,
    x_test: Values,
    y_test: Values,
    *,
    clients: int = 100,
    per_client: int = 600,
    seed: int = 0,
    flat: bool = False,
    disjoint: bool = False,
    classes: Sequence[str] = (),
    name: str = "inverted",
) -> FederatedDataset:
    """Two clusters, one of which sees 255 minus every pixel; arguments are those of `rotated`."""
    return viewed(
        (x, y, x_test, y_test),
        views.inversions(MAX_PIXEL),
        clients=clients,
        per_client=per_client,
        seed=seed,
        flat=flat,
        disjoint=disjoint,
        classes=classes,
        name=name,
    )


def viewed(
    images: tuple[Values, Values, Values, Values],
    cluster_views: Sequence[views.View],
    *,
    clients: int,
    per_client: int,
    seed: int,
    flat: bool,
    disjoint: bool,
    classes: Sequence[str],
    name: str,
) -> FederatedDataset:
    """A cluster for each view of the images, divided as described in the module's docstring."""
    dealt = labelled_images(*images, classes)
    train = _train_rows(len(dealt.x), clients, per_client, len(cluster_views), seed, disjoint)
    test = _test_rows(len(dealt.x_test), len(cluster_views), disjoint)
    return _federate(dealt, cluster_views, train, test, clients, flat, name)


def label_sets(
    x: Values,
    y: Values,
    x_test: Values,
    y_test: Values,
    *,
    sets: Sequence[Sequence[int]] = (range(7), range(3, 10)),
    clients: int = 16,
    per_client: int | None = None,
    seed: int = 0,
    flat: bool = False,
    classes: Sequence[str] = (),
    name: str = "label-sets",
) -> FederatedDataset:
    """Clusters see only some classes: the first 7 and the last 7 of ten, as in Vardhan, Ghosh, Mazumdar 2024 (SR-FCA).

    Each cluster shuffles the images of its classes with its own permutation and divides them among its clients; labels
    keep their meaning. Test images of these classes, in file order, are divided evenly.

    Arguments:
        x: Images; `x`, `y`, `x_test` and `y_test` are as for `rotated`.
        sets: The classes of each cluster.
        clients: The number of clients, in equal clusters.
        per_client: Training images of each client; by default all images are divided evenly.
    """
    k, dealt = len(_checked(sets)), labelled_images(x, y, x_test, y_test, classes)
    have = [np.flatnonzero(np.isin(dealt.y, list(chosen))) for chosen in sets]
    least = min(map(len, have))
    each = max(1, least * k // max(1, clients)) if per_client is None else per_client
    _check_clients(clients, each, k)
    wanted = clients // k * each
    require(
        wanted <= least,
        f"clients={clients}, per_client={each}: that takes {wanted} images of the {least} in the smallest set of "
        "classes; ask for less.",
    )
    rng = np.random.default_rng(seed)
    train = [rng.permutation(rows)[:wanted] for rows in have]
    test = [np.flatnonzero(np.isin(dealt.y_test, list(chosen))) for chosen in sets]
    data = _federate(dealt, [views.unchanged] * k, train, test, clients, flat, name)
    absent = sorted({label for chosen in sets for label in chosen} - set(np.unique(dealt.y).tolist()))
    note = f"sets name classes without a training image: {', '.join(map(str, absent))}"
    return replace(data, notes=(note,)) if absent else data


def _checked(sets: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Validate the classes of each cluster."""
    lists = all(isinstance(chosen, (Sequence, np.ndarray)) and not isinstance(chosen, str) for chosen in sets)
    numbers = lists and all(isinstance(label, (int, np.integer)) for chosen in sets for label in chosen)
    require(numbers, f"sets={sets!r}: wanted a list of classes, as numbers, for every cluster: [[0, 1], [2, 3]].")
    some = len(sets) >= 1 and all(len(chosen) for chosen in sets)
    require(some, f"sets={sets!r}: wanted some classes for every cluster.")
    return sets


def _train_rows(rows: int, clients: int, per_client: int, k: int, seed: int, disjoint: bool) -> list[Array]:
    """The training images of each cluster, in consecutive groups of `per_client` for its clients."""
    _check_clients(clients, per_client, k)
    wanted = clients // k * per_client
    used = wanted * k if disjoint else wanted
    require(
        used <= rows,
        f"clients={clients}, per_client={per_client}: that takes {used} images of the {rows} there are; ask for less.",
    )
    rng = np.random.default_rng(seed)
    if disjoint:
        return np.split(rng.permutation(rows)[:used], k)
    return [rng.permutation(rows)[:wanted] for _ in range(k)]


def _check_clients(clients: int, per_client: int, k: int) -> None:
    views.check_whole("clients", clients)
    views.check_whole("per_client", per_client)
    require(clients % k == 0, f"clients={clients}: wanted a multiple of the {k} clusters.")


def _test_rows(rows: int, k: int, disjoint: bool) -> list[Array]:
    """The test images of each cluster, in file order."""
    return np.array_split(np.arange(rows), k) if disjoint else [np.arange(rows)] * k


def _shares(rows: Sequence[Array], each: int) -> torch.Tensor:
    """The sizes of `each` nearly equal shares of each cluster's images, which differ by at most one."""
    cuts = [np.diff(np.arange(each + 1) * len(chosen) // each) for chosen in rows]
    return torch.from_numpy(np.concatenate(cuts))


def _federate(
    dealt: Labelled,
    cluster_views: Sequence[views.View],
    train: Sequence[Array],
    test: Sequence[Array],
    clients: int,
    flat: bool,
    name: str,
) -> FederatedDataset:
    each = clients // len(cluster_views)
    return FederatedDataset(
        name=name,
        names=views.client_names(clients),
        train=views.apply_views(dealt.x, dealt.y, train, _shares(train, each), cluster_views, flat=flat),
        test=views.apply_views(dealt.x_test, dealt.y_test, test, _shares(test, each), cluster_views, flat=flat),
        task="classification",
        classes=dealt.classes,
        truth=torch.arange(len(cluster_views)).repeat_interleave(each),
    )
