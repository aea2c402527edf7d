"""The data side: what clients hold, where it comes from, and how it is checked."""

from corymb.data.built_in.digits import digits, digits_iid, digits_inverted
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
from corymb.data.catalogue import NAMES, NamedDataset, load
from corymb.data.dataset import FederatedDataset, Ragged
from corymb.data.doors import as_dataset
from corymb.data.files import from_folder
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
    "digits_iid",
    "digits_inverted",
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
