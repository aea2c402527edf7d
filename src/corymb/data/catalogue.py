"""The catalogue of named data sets. Listing them does not import torch: their functions are imported on use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from corymb.lazy import at
from corymb.settings import require

if TYPE_CHECKING:
    from corymb.data.built_in.sources import Source
    from corymb.data.dataset import FederatedDataset

BUILT_IN = "corymb.data.built_in"
DEALT = ("clients", "per_client", "alpha", "least")
"""Options of how a data set is divided among clients, if it supports them."""


@dataclass(frozen=True, kw_only=True)
class NamedDataset:
    """A data set in the catalogue."""

    name: str
    description: str
    place: str
    """The import path of the function that creates it from a seed, or of a partitioner for the examples of `source`."""
    takes: Mapping[str, str]
    """The options in `DEALT` that it supports, with the names of the function's parameters."""
    of: str = ""
    """The name of its download in `corymb.data.built_in.sources`; empty if it comes with the library."""
    partitioned: bool = False
    """Whether the function is a partitioner."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the partitioner."""

    @property
    def source(self) -> Source[Any] | None:
        """Its download; None if it comes with the library."""
        return at(f"{BUILT_IN}.sources:{self.of}") if self.of else None

    def __call__(self, seed: int = 0, **dealt: Any) -> FederatedDataset:
        """Create the data set from a seed, with options from `DEALT`."""
        self._check(dealt)
        given = {self.takes[name]: value for name, value in dealt.items()}
        source, make = self.source, at(self.place)
        made: FederatedDataset
        if self.partitioned and source is not None:
            options = {"name": self.name, "classes": source.classes, **self.options, **given}
            made = make(*source.load(), seed=seed, **options)
        else:
            made = make(seed, **given)
        return made

    def _check(self, options: Mapping[str, Any]) -> None:
        """Reject options that this data set does not support."""
        others = [option for option in options if option not in DEALT]
        require(not others, f"{', '.join(others)} only applies to your own data, not to the built-in {self.name}.")
        taken = " and ".join(f"{option} (--deal.{option})" for option in self.takes) or "only a seed"
        for option in options:
            require(option in self.takes, f"{self.name} does not take {option}: it takes {taken}.")


IN_CLUSTERS = {"clients": "clients", "per_client": "per_client"}
OF_DIGITS = {"clients": "clients", "per_client": "train"}
BY_SHARES = {"clients": "clients", "alpha": "alpha", "least": "least"}
OF_REGRESSION = {"clients": "n", "per_client": "m"}
OF_PEOPLE = {"clients": "clients", "least": "least"}


def _made(name: str, function: str, description: str, takes: Mapping[str, str], of: str = "") -> NamedDataset:
    """A data set that a function creates from a seed."""
    return NamedDataset(name=name, description=description, place=f"{BUILT_IN}.{function}", takes=takes, of=of)


def _dealt(
    name: str, of: str, function: str, description: str, takes: Mapping[str, str] = IN_CLUSTERS, **options: Any
) -> NamedDataset:
    """A data set that is downloaded and divided among clients by a partitioner."""
    return NamedDataset(
        name=name,
        description=f"{description}; downloaded once",
        place=f"{BUILT_IN}.{function}",
        takes=takes,
        of=of,
        partitioned=True,
        options=options,
    )


def _dealt_unevenly(prefix: str, of: str, title: str, per_client: int, flat: bool) -> Iterator[NamedDataset]:
    """The variants of a source with label skew, quantity skew and concept shift."""
    by_shares = f"{title}, classes divided among 100 clients by Dirichlet shares"
    yield _dealt(f"{prefix}-dirichlet", of, "skews:dirichlet", by_shares, BY_SHARES, flat=flat)
    by_size = f"{title}, divided among 100 clients of very different sizes"
    yield _dealt(f"{prefix}-skewed", of, "skews:quantity_skew", by_size, BY_SHARES, flat=flat)
    renamed = f"{title}, 100 clients x {per_client} in four clusters with permuted labels"
    yield _dealt(f"{prefix}-shifted", of, "skews:concept_shift", renamed, flat=flat, per_client=per_client)


def _all() -> Iterator[NamedDataset]:
    about = "8 x 8 digits"
    yield _made("digits", "digits:digits", f"{about} in four rotations, 80 clients; comes with the library", OF_DIGITS)
    yield _made("digits-inverted", "digits:digits_inverted", f"{about}, inverted for half of 40 clients", OF_DIGITS)
    yield _made(
        "digits-shifted",
        "digits:digits_shifted",
        f"{about}, 40 clients in four clusters with permuted labels",
        OF_DIGITS,
    )
    yield _made(
        "digits-dirichlet",
        "digits:digits_dirichlet",
        f"{about}, classes divided among 20 clients by Dirichlet shares",
        BY_SHARES,
    )
    yield _made(
        "digits-skewed", "digits:digits_skewed", f"{about}, divided among 20 clients of very different sizes", BY_SHARES
    )
    yield _made("digits-iid", "digits:digits_iid", f"{about}, 20 clients without groups", OF_DIGITS)
    yield _made(
        "mixed-regression-ifca",
        "synthetic:mixed_regression_ifca",
        "mixed linear regression of Ghosh et al. 2020 (IFCA), 100 clients in 2 clusters",
        OF_REGRESSION,
    )
    yield _made(
        "mixed-regression",
        "synthetic:mixed_regression",
        "mixed linear regression of Su, Xu, Yang 2022, 200 clients x 50",
        OF_REGRESSION,
    )
    yield _made(
        "mixed-regression-unbalanced",
        "synthetic:mixed_regression_unbalanced",
        "the same with 900 clients x 10 and 20 x 50",
        {},
    )
    yield _made(
        "mixed-regression-skewed",
        "synthetic:mixed_regression_skewed",
        "the same, with clusters of 20, 30 and 50 % of the clients",
        {},
    )
    yield _dealt("mnist-rotated", "MNIST", "images:rotated", "MNIST in four rotations, 1200 clients x 200", flat=True)
    yield _dealt(  # no two clients share an image, as in the experiments of Vardhan et al. 2024 (SR-FCA)
        "mnist-inverted",
        "MNIST",
        "images:inverted",
        "MNIST, 100 clients x 600, inverted for half of them",
        flat=True,
        disjoint=True,
    )
    yield from _dealt_unevenly("mnist", "MNIST", "MNIST", 600, flat=True)
    yield _dealt(
        "fashion-rotated",
        "FASHION_MNIST",
        "images:rotated",
        "Fashion-MNIST in four rotations, 1200 clients x 200",
        flat=True,
    )
    yield from _dealt_unevenly("fashion", "FASHION_MNIST", "Fashion-MNIST", 600, flat=True)
    yield _dealt(  # as in Ghosh et al. 2020 (IFCA)
        "cifar-rotated",
        "CIFAR10",
        "images:rotated",
        "CIFAR-10, 200 clients x 500, upside down for half of them",
        clients=200,
        per_client=500,
        rotations=2,
    )
    yield _dealt(
        "cifar-labels",
        "CIFAR10",
        "images:label_sets",
        "CIFAR-10, 16 clients x 4375 with the first or the last seven classes",
    )
    yield from _dealt_unevenly("cifar", "CIFAR10", "CIFAR-10", 500, flat=False)
    yield _made(
        "femnist",
        "natural:femnist",
        "handwritten characters, one client per writer with at least 50 images; downloaded once",
        OF_PEOPLE,
        "FEMNIST",
    )
    yield _made(
        "shakespeare",
        "natural:shakespeare",
        "next-character prediction (80 characters), 50 roles of Shakespeare's plays; downloaded once",
        OF_PEOPLE,
        "SHAKESPEARE",
    )
    yield _made(
        "gaussians",
        "points:gaussians",
        "no labels: examples from four Gaussians, 4 clients x 1000",
        {"per_client": "m"},
    )
    yield _made(
        "subspace",
        "points:subspace",
        "no labels: examples from four subspaces, 4 clients x 1000",
        {"per_client": "m"},
    )
    yield _made(
        "mnist-digits",
        "points:mnist_digits",
        "no labels: MNIST, clusters by digit, 10 clients; downloaded once",
        {},
        "MNIST",
    )
    yield _made(
        "mnist-rotation-points",
        "points:mnist_rotation_points",
        "no labels: MNIST's threes in four rotations, 4 clients; downloaded once",
        {},
        "MNIST",
    )


NAMES: Mapping[str, NamedDataset] = MappingProxyType({one.name: one for one in _all()})
