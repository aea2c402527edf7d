"""The smallest of many numbers, without sorting or holding them all: there may be a million clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

BLOCK = 2**16
"""Numbers that are computed at once."""


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


def smallest_of_each(number_of: Callable[[Tensor], Tensor], rows: Tensor, n: int) -> Tensor:
    """`smallest(number_of(rows), n)`, block by block, so that the memory needed grows with n only.

    >>> smallest_of_each(torch.neg, torch.arange(200_000), 2).tolist()
    [199998, 199999]
    """
    places = numbers = torch.empty(0, dtype=torch.int64)
    done = 0
    for block in rows.split(max(BLOCK, n)):
        numbers = torch.cat([numbers, number_of(block)])
        places = torch.cat([places, torch.arange(done, done + len(block))])
        best, done = smallest(numbers, n), done + len(block)
        numbers, places = numbers[best], places[best]
    return places
