"""Alone: every client trains for itself, and no model ever leaves it.

The local baseline of the papers. The first round sends everybody one common start; after that the server only hears
how large the loss is. Departures: none known (Ghosh et al. 2022 do not say how long their
local models train; set `rounds`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.core.client import Client, on_client
from corymb.core.federation import Federation, TooFewReplies
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, descend, loss
from corymb.settings import require
from corymb.trees import Params, take


@on_client
def begin_at_home(client: Client, model: Params, *, local: Descent) -> Tensor:
    """Train the common start and keep it; the loss beforehand is all that leaves."""
    client.memory.set("model", descend(client, model, local))
    return loss(client, model)


@on_client
def go_on_at_home(client: Client, *, local: Descent) -> Tensor:
    """Train the kept model on; the loss beforehand is all that leaves."""
    model: Params = client.memory.get("model")
    client.memory.set("model", descend(client, model, local))
    return loss(client, model)


@on_client
def serve_own(client: Client, models: Params, label: Tensor, share: Tensor | None) -> Params:
    """The client's own model; before it has one, the common start."""
    return client.memory.get("model", take(models, 0))


@dataclass(frozen=True, kw_only=True)
class Alone:
    """The local baseline."""

    rounds: int = 10
    local: Descent = Descent(lr=0.1, steps=10)

    serve = serve_own
    keeps_memory = True

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Everybody trains at home, round after round."""
        at = start or Snapshot.fresh(fed, 1)
        for t in range(at.round, self.rounds):
            begun = at.carry.get("begun", torch.zeros_like(at.labels, dtype=torch.bool))
            going_on, others = fed.clients.where(begun), fed.clients.where(~begun)
            local, replies = self.local.at(t), []
            if len(going_on):
                replies.append(going_on.map(go_on_at_home, local=local))
            if len(others):  # in the first round, and after one in which somebody's reply did not count
                with suppress(TooFewReplies) if replies else nullcontext():  # the others continue without them
                    replies.append(others.map(begin_at_home, take(at.models, 0), local=local))
            begun = torch.stack([begun, *(some.clients.mask for some in replies)]).any(0)
            losses = torch.cat([some.value for some in replies])
            yield (at := at.next(carry={"begun": begun}, notes={"train_loss": float(losses.mean())}))
