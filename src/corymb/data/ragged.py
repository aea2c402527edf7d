"""The examples of many clients in flat arrays: three tensors, for any number of clients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Ragged(NamedTuple):
    """The examples of all clients, concatenated by client."""

    x: Tensor
    """[rows, ...] features: floating, pixels as bytes (uint8, see `corymb.core.pixels`), or codes (int64)."""
    y: Tensor
    """[rows] classes (int64) or targets (floating)."""
    offsets: Tensor
    """[n + 1] int64 on the CPU: client i owns the rows from offsets[i] up to offsets[i + 1]."""

    @property
    def sizes(self) -> Tensor:
        """The number of examples of each client [n]."""
        return self.offsets.diff()

    def of(self, position: int) -> tuple[Tensor, Tensor]:
        """One client's features and labels, as views."""
        rows = slice(int(self.offsets[position]), int(self.offsets[position + 1]))
        return self.x[rows], self.y[rows]


def offsets_of(sizes: Tensor) -> Tensor:
    """The start of each client's rows, followed by the end of the last client's.

    >>> offsets_of(torch.tensor([2, 0, 3]))
    tensor([0, 2, 2, 5])
    """
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def owners(offsets: Tensor, rows: Tensor) -> Tensor:
    """The client of each of `rows`."""
    return torch.searchsorted(offsets, rows, right=True) - 1


def by_client(x: Tensor, y: Tensor, client: Tensor, n: int) -> Ragged:
    """Group rows by client; each client's rows keep their order."""
    if not len(client):
        return Ragged(x, y, torch.zeros(1, dtype=torch.int64).expand(n + 1))  # one zero for all clients
    offsets = offsets_of(torch.bincount(client, minlength=n))
    if bool((client.diff() >= 0).all()):
        return Ragged(x, y, offsets)
    order = client.argsort(stable=True)
    return Ragged(x[order], y[order], offsets)


def select(examples: Ragged, positions: Tensor) -> Ragged:
    """The examples of the clients at `positions`, in that order."""
    sizes = examples.sizes[positions]
    offsets = offsets_of(sizes)
    shift = examples.offsets[:-1][positions] - offsets[:-1]
    rows = torch.arange(int(offsets[-1])) + shift.repeat_interleave(sizes)
    return Ragged(examples.x[rows], examples.y[rows], offsets)
