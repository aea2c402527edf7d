"""Split each client's examples into training and test examples, independently of all other clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from corymb import keys
from corymb.core.names import ClientNames
from corymb.data.ragged import offsets_of
from corymb.settings import require


def held_out(client: Tensor, names: Sequence[str], share: float, seed: int) -> Tensor:
    """A mask of the test rows: `share` of each client's rows, rounded, but never all of them.

    Every row has a key from the seed, its client's name and its number among that client's rows; the rows with the
    lowest keys are held out. So adding, removing or reordering clients does not change the split of the others.
    """
    number = isinstance(share, (int, float)) and not isinstance(share, bool)
    wanted = "give a number in [0, 1)"
    require(number and 0 <= share < 1, f"test={share!r} is not a share of the examples: {wanted}.")
    sizes = torch.bincount(client, minlength=len(names))
    tested = torch.minimum((sizes * share + 0.5).long(), (sizes - 1).clamp(min=0))
    order = _by_client_and_key(client, names, offsets_of(sizes), seed)
    mask = torch.zeros(len(client), dtype=torch.bool)
    mask[order] = _places(sizes) < tested.repeat_interleave(sizes)
    return mask


def _by_client_and_key(client: Tensor, names: Sequence[str], offsets: Tensor, seed: int) -> Tensor:
    """All rows grouped by client, each client's rows sorted by key."""
    order = client.argsort(stable=True)
    number = torch.empty_like(order)
    number[order] = _places(offsets.diff())
    key = keys.fold(keys.root(seed), "held out", ClientNames.of(names).hashes[client], number)
    order = key.argsort(stable=True)
    return order[client[order].argsort(stable=True)]


def _places(sizes: Tensor) -> Tensor:
    """0, 1, ... for each client's rows in turn."""
    starts = offsets_of(sizes)[:-1]
    return torch.arange(int(sizes.sum())) - starts.repeat_interleave(sizes)
