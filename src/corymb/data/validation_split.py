"""Data sets for validation: some training examples are held out and replace the test examples."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from corymb.core.objective import Examples
from corymb.data.dataset import FederatedDataset
from corymb.data.ragged import Ragged, offsets_of
from corymb.local.held_out import hold_out
from corymb.settings import require


def validation_split(data: FederatedDataset, turn: int = 0) -> FederatedDataset:
    """Split the training examples of each client into training and held-out ones; `turn` selects the split.

    The original test examples are dropped.
    """
    kept, held = (torch.cat(masks) for masks in zip(*(_split(m, turn) for m in data.sizes.tolist()), strict=True))
    require(bool(held.any()), "No client has two training examples, so none can be held out.")
    return replace(data, train=_where(data.train, kept), test=_where(data.train, held))


def _split(m: int, turn: int) -> tuple[Tensor, Tensor]:
    """Which of m examples are kept, and which are held out."""
    rows = torch.zeros(m)
    parts = hold_out(Examples(rows, rows, torch.ones(m)), turn=turn)
    return parts.kept.weight > 0, parts.held.weight > 0


def _where(examples: Ragged, mask: Tensor) -> Ragged:
    before = offsets_of(mask.long())  # the number of chosen rows before each row
    return Ragged(examples.x[mask], examples.y[mask], before[examples.offsets])
