"""The smallest of many numbers, without sorting them all: there may be a million clients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def smallest(numbers: Tensor, n: int) -> Tensor:
    """The places of the n smallest numbers (all, if there are no more), in ascending order; of equal ones, the first.

    >>> smallest(torch.tensor([5, 1, 3, 1, 3, 3]), 4).tolist()
    [1, 2, 3, 4]
    """
    if n >= len(numbers):
        return torch.arange(len(numbers))
    largest = np.partition(numbers.numpy(), n - 1)[n - 1]
    below = (numbers < int(largest)).nonzero().flatten()
    equal = (numbers == int(largest)).nonzero().flatten()[: n - len(below)]
    return torch.cat([below, equal]).sort().values
