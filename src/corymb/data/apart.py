"""A data set to try things on: what is held out of the training examples takes the place of the test examples."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from corymb.core.objective import Examples
from corymb.data.dataset import FederatedDataset
from corymb.data.ragged import Ragged, offsets_of
from corymb.local.held_out import hold_out
from corymb.settings import require


def held_apart(data: FederatedDataset, turn: int = 0) -> FederatedDataset:
    """The same clients, who train on what they keep and are tested on what they hold out; `turn` is another split.

    Test examples take no part: those of the data set are not in it.
    """
    kept, held = (torch.cat(masks) for masks in zip(*(_split(m, turn) for m in data.sizes.tolist()), strict=True))
    require(bool(held.any()), "No client has two training examples: none can be held out to judge by.")
    return replace(data, train=_where(data.train, kept), test=_where(data.train, held))


def _split(m: int, turn: int) -> tuple[Tensor, Tensor]:
    """Which of m examples are kept, and which are held out."""
    rows = torch.zeros(m)
    parts = hold_out(Examples(rows, rows, torch.ones(m)), turn=turn)
    return parts.kept.weight > 0, parts.held.weight > 0


def _where(examples: Ragged, mask: Tensor) -> Ragged:
    before = offsets_of(mask.long())  # how many of the first rows are chosen
    return Ragged(examples.x[mask], examples.y[mask], before[examples.offsets])
