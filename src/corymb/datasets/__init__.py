"""The data side: what clients hold, where it comes from, and how it is checked."""

from corymb.datasets.catalogue import NAMES, Entry, load
from corymb.datasets.digits import digits, digits_iid, digits_inverted
from corymb.datasets.federated import FederatedDataset, Ragged
from corymb.datasets.folder import from_folder
from corymb.datasets.images import inverted, rotated
from corymb.datasets.sources import FASHION_MNIST, MNIST, DataUnavailable
from corymb.datasets.synthetic import (
    mixed_regression,
    mixed_regression_ifca,
    mixed_regression_skewed,
    mixed_regression_unbalanced,
)

__all__ = [
    "FASHION_MNIST",
    "MNIST",
    "NAMES",
    "DataUnavailable",
    "Entry",
    "FederatedDataset",
    "Ragged",
    "digits",
    "digits_iid",
    "digits_inverted",
    "from_folder",
    "inverted",
    "load",
    "mixed_regression",
    "mixed_regression_ifca",
    "mixed_regression_skewed",
    "mixed_regression_unbalanced",
    "rotated",
]
