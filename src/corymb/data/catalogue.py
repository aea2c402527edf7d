"""Data sets by name, each with a line about it. A list of them needs no torch: what makes one is imported then."""

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
"""What may be said of how a data set is dealt to clients, where it takes that."""


@dataclass(frozen=True, kw_only=True)
class NamedDataset:
    """A data set that has a name."""

    name: str
    description: str
    place: str
    """The function that makes it: of a seed, or a partitioner, of the examples of `source`."""
    takes: Mapping[str, str]
    """Which of `DEALT` it takes, and what the function calls them."""
    of: str = ""
    """The name in `corymb.data.built_in.sources` of what is downloaded, if it does not come with the library."""
    partitioned: bool = False
    """Whether the function is a partitioner."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else a partitioner is given."""

    @property
    def source(self) -> Source[Any] | None:
        """What is downloaded for it, if it does not come with the library."""
        return at(f"{BUILT_IN}.sources:{self.of}") if self.of else None

    def __call__(self, seed: int = 0, **dealt: Any) -> FederatedDataset:
        """The data set made with `seed`, dealt to clients as is said: see `DEALT`."""
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
        """Refuse options that this data set does not take."""
        others = [option for option in options if option not in DEALT]
        require(not others, f"{self.name} has columns of its own: {', '.join(others)} is for data of your own.")
        taken = " and ".join(f"{option} (--deal.{option})" for option in self.takes) or "nothing but a seed"
        for option in options:
            require(option in self.takes, f"{self.name} does not take {option}: it takes {taken}.")


IN_CLUSTERS = {"clients": "clients", "per_client": "per_client"}
OF_DIGITS = {"clients": "clients", "per_client": "train"}
BY_SHARES = {"clients": "clients", "alpha": "alpha", "least": "least"}
OF_REGRESSION = {"clients": "n", "per_client": "m"}
OF_PEOPLE = {"clients": "clients", "least": "least"}


def _made(name: str, function: str, description: str, takes: Mapping[str, str], of: str = "") -> NamedDataset:
    """A data set that a function makes of a seed."""
    return NamedDataset(name=name, description=description, place=f"{BUILT_IN}.{function}", takes=takes, of=of)


def _dealt(
    name: str, of: str, function: str, description: str, takes: Mapping[str, str] = IN_CLUSTERS, **options: Any
) -> NamedDataset:
    """A data set that is downloaded and dealt to clients by a partitioner."""
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
    """One source by shares of classes, in different numbers, and with other names of the classes in each cluster."""
    by_shares = f"{title}, classes dealt to 100 clients by Dirichlet shares"
    yield _dealt(f"{prefix}-dirichlet", of, "skews:dirichlet", by_shares, BY_SHARES, flat=flat)
    by_size = f"{title}, dealt to 100 clients in very different numbers"
    yield _dealt(f"{prefix}-skewed", of, "skews:quantity_skew", by_size, BY_SHARES, flat=flat)
    renamed = f"{title}, four clusters of 100 clients x {per_client} call classes by other names"
    yield _dealt(f"{prefix}-shifted", of, "skews:concept_shift", renamed, flat=flat, per_client=per_client)


def _all() -> Iterator[NamedDataset]:
    about = "8 x 8 digits"
    yield _made("digits", "digits:digits", f"{about} in four rotations, 80 clients; comes with the library", OF_DIGITS)
    yield _made(
        "digits-inverted", "digits:digits_inverted", f"{about}, half of 40 clients see them inverted", OF_DIGITS
    )
    yield _made(
        "digits-shifted",
        "digits:digits_shifted",
        f"{about}, four clusters of 40 clients call them by other names",
        OF_DIGITS,
    )
    yield _made(
        "digits-dirichlet",
        "digits:digits_dirichlet",
        f"{about}, classes dealt to 20 clients by Dirichlet shares",
        BY_SHARES,
    )
    yield _made(
        "digits-skewed", "digits:digits_skewed", f"{about}, dealt to 20 clients in very different numbers", BY_SHARES
    )
    yield _made("digits-iid", "digits:digits_iid", f"{about} without groups, 20 clients", OF_DIGITS)
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
        "MNIST, half of 100 clients x 600 see it inverted",
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
        "CIFAR-10, half of 200 clients x 500 see it upside down",
        clients=200,
        per_client=500,
        rotations=2,
    )
    yield _dealt(
        "cifar-labels",
        "CIFAR10",
        "images:label_sets",
        "CIFAR-10, the first seven classes or the last, 16 clients x 4375",
    )
    yield from _dealt_unevenly("cifar", "CIFAR10", "CIFAR-10", 500, flat=False)
    yield _made(
        "femnist",
        "natural:femnist",
        "handwritten characters, a client for each writer with 50 images or more; downloaded once",
        OF_PEOPLE,
        "FEMNIST",
    )
    yield _made(
        "shakespeare",
        "natural:shakespeare",
        "the next character of 80, 50 roles of Shakespeare's plays; downloaded once",
        OF_PEOPLE,
        "SHAKESPEARE",
    )
    yield _made(
        "gaussians",
        "points:gaussians",
        "no labels: examples of four Gaussians at 4 clients x 1000",
        {"per_client": "m"},
    )
    yield _made(
        "subspace",
        "points:subspace",
        "no labels: examples of four subspaces at 4 clients x 1000",
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
