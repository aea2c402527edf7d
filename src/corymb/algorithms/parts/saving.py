"""Communication saving: clients whose cluster no longer changes are sent only their own model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.core.federation import Replies, Sums
from corymb.core.snapshot import Snapshot
from corymb.settings import check_types, require


@dataclass(frozen=True, kw_only=True)
class Saving:
    """When to stop sending all models, and how often to check again."""

    stable_rounds: int = 3
    """Settled: every client was seen this many times in a row with the same label."""
    recheck_every: int = 10
    """Every this many rounds, all models are sent anyway."""

    def __post_init__(self) -> None:
        check_types(self)
        require(self.stable_rounds >= 1, f"stable_rounds must be at least 1, got {self.stable_rounds}.")
        require(self.recheck_every >= 1, f"recheck_every must be at least 1, got {self.recheck_every}.")

    def settled(self, at: Snapshot, t: int) -> bool:
        """Whether round t may send each client its own model only."""
        seen = at.carry.get("same_label")
        return seen is not None and bool((seen >= self.stable_rounds).all()) and t % self.recheck_every != 0


def sightings(at: Snapshot, replies: Replies[Sums[Tensor]]) -> dict[str, Tensor]:
    """How many times in a row each client was seen with its current label: 0 if it was never seen."""
    seen = at.carry.get("same_label", torch.zeros_like(at.labels))
    label = replies.value.label
    assert label is not None
    before = replies.clients.pick(seen)
    same = replies.clients.pick(at.labels) == label.to(at.labels)
    return {"same_label": replies.clients.put(seen, torch.where(same, before + 1, 1))}
