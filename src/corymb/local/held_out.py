"""The part of a client's training examples that is kept back to judge what the others taught.

One function for everything that is decided by held-out examples: when to stop, how many clusters there are, which
settings are better. Test examples decide nothing; they are for the final score.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from corymb.core.objective import Examples
from corymb.keys import bits, fold, root


class Parts(NamedTuple):
    """The same rows twice; in each part, those of the other weigh nothing."""

    kept: Examples
    """What may be trained on."""
    held: Examples
    """What may only be judged on."""


def hold_out(examples: Examples, share: float = 0.25, turn: int = 0) -> Parts:
    """Keep back `share` of a client's examples, rounded down: at least one, and none of a single example.

    Which ones depends on their places only, through random bits, so the split is the same in every call and on every
    engine; `turn` gives another one. Padding is in neither part.
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
