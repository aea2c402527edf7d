"""Federated data: data sets, their sources and their validation. Modules are imported on first use."""

from typing import TYPE_CHECKING

from corymb.lazy import lazily

if TYPE_CHECKING:
    from corymb.data.built_in.digits import (
        digits,
        digits_dirichlet,
        digits_iid,
        digits_inverted,
        digits_shifted,
        digits_skewed,
    )
    from corymb.data.built_in.images import inverted, label_sets, rotated
    from corymb.data.built_in.roles import Roles, by_role
    from corymb.data.built_in.skews import concept_shift, dirichlet, quantity_skew
    from corymb.data.built_in.sources import CIFAR10, FASHION_MNIST, FEMNIST, MNIST, SHAKESPEARE, DataUnavailable
    from corymb.data.built_in.synthetic import (
        mixed_regression,
        mixed_regression_ifca,
        mixed_regression_skewed,
        mixed_regression_unbalanced,
    )
    from corymb.data.built_in.writers import Writers, by_writer
    from corymb.data.catalogue import NAMES, NamedDataset
    from corymb.data.dataset import FederatedDataset, Ragged
    from corymb.data.files import from_folder
    from corymb.data.loading import as_dataset, load
    from corymb.data.partitions import from_flwr_datasets

__all__ = [
    "CIFAR10",
    "FASHION_MNIST",
    "FEMNIST",
    "MNIST",
    "NAMES",
    "SHAKESPEARE",
    "DataUnavailable",
    "FederatedDataset",
    "NamedDataset",
    "Ragged",
    "Roles",
    "Writers",
    "as_dataset",
    "by_role",
    "by_writer",
    "concept_shift",
    "digits",
    "digits_dirichlet",
    "digits_iid",
    "digits_inverted",
    "digits_shifted",
    "digits_skewed",
    "dirichlet",
    "from_flwr_datasets",
    "from_folder",
    "inverted",
    "label_sets",
    "load",
    "mixed_regression",
    "mixed_regression_ifca",
    "mixed_regression_skewed",
    "mixed_regression_unbalanced",
    "quantity_skew",
    "rotated",
]
_HOMES = {
    "corymb.data.built_in.digits": [
        "digits",
        "digits_dirichlet",
        "digits_iid",
        "digits_inverted",
        "digits_shifted",
        "digits_skewed",
    ],
    "corymb.data.built_in.images": ["inverted", "label_sets", "rotated"],
    "corymb.data.built_in.roles": ["Roles", "by_role"],
    "corymb.data.built_in.skews": ["concept_shift", "dirichlet", "quantity_skew"],
    "corymb.data.built_in.sources": ["CIFAR10", "FASHION_MNIST", "FEMNIST", "MNIST", "SHAKESPEARE", "DataUnavailable"],
    "corymb.data.built_in.synthetic": [
        "mixed_regression",
        "mixed_regression_ifca",
        "mixed_regression_skewed",
        "mixed_regression_unbalanced",
    ],
    "corymb.data.built_in.writers": ["Writers", "by_writer"],
    "corymb.data.catalogue": ["NAMES", "NamedDataset"],
    "corymb.data.dataset": ["FederatedDataset", "Ragged"],
    "corymb.data.loading": ["as_dataset", "load"],
    "corymb.data.files": ["from_folder"],
    "corymb.data.partitions": ["from_flwr_datasets"],
}
__getattr__ = lazily(__name__, {name: home for home, names in _HOMES.items() for name in names})
