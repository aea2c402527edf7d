"""The smallest of many numbers, without sorting or holding them all: there may be a million clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

BLOCK = 2**15
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


def blocks_of(rows: Tensor | int, length: int) -> Iterator[Tensor | slice]:
    """Rows, or slices of all rows from 0 up to a number, in blocks of at most this length.

    >>> list(blocks_of(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    if isinstance(rows, Tensor):
        yield from rows.split(length)
        return
    for start in range(0, rows, length):
        yield slice(start, min(rows, start + length))


def smallest_of_each(number_of: Callable[[Tensor | slice], Tensor], rows: Tensor | int, n: int) -> Tensor:
    """`smallest(number_of(rows), n)`, block by block, so that the memory needed grows with n only.

    A number of rows stands for all rows from 0 on.

    >>> numbers = -torch.arange(200_000)
    >>> smallest_of_each(numbers.__getitem__, 200_000, 2).tolist()
    [199998, 199999]
    """
    places = numbers = torch.empty(0, dtype=torch.int64)
    done = 0
    for block in blocks_of(rows, max(BLOCK, n)):
        more = number_of(block)
        below = int(numbers.max()) if len(numbers) == n else None  # of equal numbers, the first stay
        found = torch.arange(len(more)) if below is None else (more < below).nonzero().flatten()
        numbers, places = torch.cat([numbers, more[found]]), torch.cat([places, found + done])
        best, done = smallest(numbers, n), done + len(more)
        numbers, places = numbers[best], places[best]
    return places
