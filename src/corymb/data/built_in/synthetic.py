"""Mixed linear regression: every client's targets are y = x . theta + noise, with its cluster's theta.

Two generators, of Ghosh et al. 2020 (`mixed_regression_ifca`) and of Su, Xu, Yang 2022 (`mixed_regression`, with the
three settings of their Figures 1 to 3). Training examples have their own random stream, so that `test` does not
change them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from corymb.data.built_in.views import client_names
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array
from corymb.data.ragged import Ragged, offsets_of
from corymb.settings import InvalidInput, require

Generator = np.random.Generator


def mixed_regression_ifca(
    seed: int = 0,
    *,
    n: int = 100,
    m: int = 100,
    d: int = 50,
    k: int = 2,
    sigma: float = 0.1,
    scale: float = 1.0,
    separation: float | None = None,
    test: int = 50,
) -> FederatedDataset:
    """IFCA's synthetic data: 0/1 parameters times `scale`, standard normal features, clusters of neighbouring clients.

    Arguments:
        n: The number of clients, in k consecutive clusters of (nearly) equal size.
        m: Training examples of each client.
        d: The number of features; 1000 in the paper.
        k: The number of clusters.
        sigma: The standard deviation of the noise.
        scale: The paper's R. Its text scales each parameter vector to norm R; its code, and this function, multiply
            the 0s and 1s.
        separation: If given, all parameters are scaled so that the two nearest are this far apart.
        test: Test examples of each client.
    """
    _check_counts(n=n, m=m, d=d, k=k, clients_a_cluster=n // max(k, 1))
    parameters, _, train, held = _streams(seed)
    weight = parameters.integers(0, 2, size=(k, d)) * float(scale)
    if separation is not None:
        weight = _stretch(weight, separation)
    truth = np.arange(n) * k // n
    return _federate(
        "mixed-regression-ifca", weight, weight[truth], truth, np.full(n, m), test, sigma, None, (train, held)
    )


def _stretch(weight: Array, separation: float) -> Array:
    """Scale all parameters by one factor, so that the two nearest are `separation` apart."""
    one, other = np.triu_indices(len(weight), k=1)
    nearest = np.linalg.norm(weight[one] - weight[other], axis=1).min(initial=np.inf)
    require(
        nearest > 0,
        "Two clusters drew the same parameters, which no factor can separate: use a larger d or another seed.",
    )
    return weight if np.isinf(nearest) else weight * (separation / nearest)


def mixed_regression(
    seed: int = 0,
    *,
    n: int | None = None,
    m: int | Sequence[tuple[int, int]] = 50,
    d: int = 100,
    k: int = 3,
    shares: Sequence[float] | None = None,
    sigma: float = 0.2,
    covariances: Sequence[Array] | None = None,
    within: float = 0.0,
    test: int = 20,
    name: str = "mixed-regression",
) -> FederatedDataset:
    """Moment descent's synthetic data: parameters N(0, I/d), each client's cluster drawn by `shares` (default: even).

    The defaults are the setting of Figure 1: 200 clients with 50 examples.

    Arguments:
        n: The number of clients; by default 200.
        m: Training examples of each client, or pairs (clients, examples), which also determine n.
        d: The number of features.
        k: The number of clusters.
        shares: The probability of each cluster.
        sigma: The standard deviation of the noise.
        covariances: The covariance S_j of each cluster's features, d × d; by default the identity.
        within: SR-FCA's epsilon_1: each client's parameter is at half this distance from its cluster's, in a random
            direction, so that no two in a cluster are farther apart than this.
        test: Test examples of each client.
        name: The name of the data set in reports.

    >>> data = mixed_regression(n=20, m=10, d=5)
    >>> data.clients, tuple(data.train.x.shape), tuple(data.true_parameters["weight"].shape)
    (20, (200, 5), (3, 5))
    """
    sizes = _sizes(n, m)
    _check_counts(n=len(sizes), m=int(sizes.min(initial=1)), d=d, k=k)
    parameters, clusters, train, held = _streams(seed)
    weight = parameters.standard_normal((k, d)) / np.sqrt(d)
    truth = clusters.choice(k, size=len(sizes), p=_probabilities(shares, k))
    direction = clusters.standard_normal((len(sizes), d))
    own = weight[truth] + within / 2 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    return _federate(name, weight, own, truth, sizes, test, sigma, _roots(covariances, k, d), (train, held))


_UNBALANCED = ((900, 10), (20, 50))


def mixed_regression_unbalanced(seed: int = 0) -> FederatedDataset:
    """Figure 2 of Su, Xu, Yang 2022: 900 clients with 10 examples and 20 with 50."""
    return mixed_regression(seed, m=_UNBALANCED, name="mixed-regression-unbalanced")


def mixed_regression_skewed(seed: int = 0) -> FederatedDataset:
    """Figure 3 of Su, Xu, Yang 2022: as Figure 2, with clusters of a fifth, three tenths and half of the clients."""
    return mixed_regression(seed, m=_UNBALANCED, shares=(0.2, 0.3, 0.5), name="mixed-regression-skewed")


def _streams(seed: int) -> list[Generator]:
    """Independent generators for parameters, clusters, training and test examples."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(4)]


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        require(count >= 1, f"{name.replace('_', ' ')} is {count}: wanted 1 or more.")


def _sizes(n: int | None, m: int | Sequence[tuple[int, int]]) -> Array:
    if isinstance(m, int):
        return np.full(200 if n is None else n, m)
    sizes = np.repeat([points for _, points in m], [clients for clients, _ in m])
    require(n is None or n == len(sizes), f"n={n}, but the pairs in m make {len(sizes)} clients: leave out n.")
    return sizes


def _probabilities(shares: Sequence[float] | None, k: int) -> Array:
    p = np.full(k, 1 / k) if shares is None else np.asarray(shares, dtype=float)
    right = p.shape == (k,) and bool((p >= 0).all()) and abs(p.sum() - 1) < 1e-9
    require(right, f"shares={shares}: wanted {k} non-negative numbers that sum to 1.")
    return p


def _roots(covariances: Sequence[Array] | None, k: int, d: int) -> list[Array] | None:
    if covariances is None:
        return None
    shapes = [np.shape(one) for one in covariances]
    require(shapes == [(d, d)] * k, f"covariances have the shapes {shapes}: wanted {k} matrices of {d} x {d}.")
    try:
        return [np.linalg.cholesky(one) for one in covariances]
    except np.linalg.LinAlgError:
        raise InvalidInput(
            "A covariance is not positive definite: give symmetric matrices with positive eigenvalues."
        ) from None


def _federate(
    name: str,
    weight: Array,
    own: Array,
    truth: Array,
    sizes: Array,
    test: int,
    sigma: float,
    roots: Sequence[Array] | None,
    streams: tuple[Generator, Generator],
) -> FederatedDataset:
    require(test >= 0 and sigma >= 0, f"test={test}, sigma={sigma}: neither can be negative.")
    return FederatedDataset(
        name=name,
        names=client_names(len(sizes)),
        train=_examples(own, truth, sizes, sigma, roots, streams[0]),
        test=_examples(own, truth, np.full(len(sizes), test), sigma, roots, streams[1]),
        task="regression",
        truth=torch.from_numpy(truth.astype(np.int64)),
        true_parameters={"weight": torch.from_numpy(weight.astype(np.float32))},
    )


def _examples(
    own: Array, truth: Array, sizes: Array, sigma: float, roots: Sequence[Array] | None, rng: Generator
) -> Ragged:
    """Each client's examples, from its own parameter and its cluster's covariance."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.standard_normal((len(owner), own.shape[1]))
    for cluster, root in enumerate(roots or ()):
        rows = truth[owner] == cluster
        x[rows] = x[rows] @ root.T
    y = np.einsum("rd,rd->r", x, own[owner]) + sigma * rng.standard_normal(len(owner))
    offsets = offsets_of(torch.from_numpy(sizes.astype(np.int64)))
    return Ragged(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32)), offsets)
