"""Splits a client's training examples into a part to train on and a held-out part to validate on.

Everything that is decided on held-out examples uses this split: when to stop, how many clusters there are, which
settings are better. Test examples are used for the final score only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from corymb.core.objective import Examples
from corymb.keys import bits, fold, root


class Parts(NamedTuple):
    """Two copies of the same rows; in each, the rows of the other part have weight 0."""

    kept: Examples
    """The rows to train on."""
    held: Examples
    """The rows to validate on."""


def hold_out(examples: Examples, share: float = 0.25, turn: int = 0) -> Parts:
    """Hold out `share` of a client's examples, rounded down: at least one, but none of a single example.

    The split depends only on the rows' indices, through fixed random bits, so it is the same in every call and on every
    engine; another `turn` gives another split. Padding is in neither part.
    """
    weight = examples.weight
    real = weight > 0
    number = real.sum(-1)
    wanted = torch.minimum((number * share).long().clamp_min(1), (number - 1).clamp_min(0))
    key = fold(root(0).to(weight.device), "held out", turn)
    draws = (bits(key, (weight.shape[-1],)) >> 1) & (2**62 - 1)
    place = torch.where(real, draws, 2**62).argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
    held = real & (place < wanted.unsqueeze(-1))
    return Parts(
        kept=examples._replace(weight=torch.where(held, 0, weight)),
        held=examples._replace(weight=torch.where(held, weight, 0)),
    )
