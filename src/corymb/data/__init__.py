"""The data side: what clients hold, where it comes from, and how it is checked."""

from corymb.data.built_in.digits import digits, digits_iid, digits_inverted
from corymb.data.built_in.images import inverted, rotated
from corymb.data.built_in.sources import FASHION_MNIST, MNIST, DataUnavailable
from corymb.data.built_in.synthetic import (
    mixed_regression,
    mixed_regression_ifca,
    mixed_regression_skewed,
    mixed_regression_unbalanced,
)
from corymb.data.catalogue import NAMES, NamedDataset, load
from corymb.data.dataset import FederatedDataset, Ragged
from corymb.data.doors import as_dataset
from corymb.data.files import from_folder

__all__ = [
    "FASHION_MNIST",
    "MNIST",
    "NAMES",
    "DataUnavailable",
    "FederatedDataset",
    "NamedDataset",
    "Ragged",
    "as_dataset",
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
