"""Alone: every client trains its own model, which never leaves it.

The local baseline of the papers. The first round sends every client one common start; after that the server receives
only losses. Departures: none known (Ghosh et al. 2022 do not say how long their local models train; set `rounds`).
`keep="best"` is ours: a few examples are soon overfitted, so a client also trains trial models on parts of its
examples, and keeps the real model from the round in which the trial models did best on examples they were not trained
on. `keep="penalised"` is ours too: linear models are not trained but solved for, in one round, with penalties that suit
the client's examples (`corymb.local.penalised`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap

from corymb.algorithms.parts.linear import can_penalise, penalised
from corymb.core.client import Client, on_client
from corymb.core.federation import Cohort, Federation, Replies
from corymb.core.patience import ask_again
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, descend, loss
from corymb.local.held_out import hold_out
from corymb.settings import check_types, first_line, require
from corymb.trees import Params, map_tensors, take, tree_map

log = logging.getLogger(__name__)
Keep = Literal["last", "best", "penalised"]
TRIALS = 4
"""Number of trial models, each with other examples held out: with one, a few examples would decide by chance."""


@on_client
def start_locally(client: Client, model: Params, *, local: Descent, keep: Keep) -> Tensor:
    """Train the common start and keep the result; only the loss before training is sent."""
    client.memory.set("model", descend(client, model, local))
    if keep == "best":
        _try(client, map_tensors(lambda value: value.expand(TRIALS, *value.shape), model), local, first=True)
    return loss(client, model)


@on_client
def continue_locally(client: Client, *, local: Descent, keep: Keep) -> Tensor:
    """Continue to train the kept model; only the loss before training is sent."""
    model: Params = client.memory.get("model")
    client.memory.set("model", descend(client, model, local))
    if keep == "best":
        _try(client, client.memory.get("trials"), local, first=False)
    return loss(client, model)


@on_client
def solve_locally(client: Client, model: Params) -> Tensor:
    """Solve for a linear model and keep it; only the loss of the common start is sent."""
    client.memory.set("model", penalised(client, model))
    return loss(client, model)


def _try(client: Client, trials: Params, local: Descent, *, first: bool) -> None:
    """Train the trial models like the real one, and save the real one if the trial models have never done better."""
    parts = [hold_out(client.train, turn=turn) for turn in range(TRIALS)]
    kept, held = (torch.stack([part[side].weight for part in parts]) for side in (0, 1))

    def train(model: Params, weight: Tensor) -> Params:
        return descend(client, model, local, on=client.train._replace(weight=weight))

    def judge(model: Params, weight: Tensor) -> Tensor:
        return loss(client, model, on=client.train._replace(weight=weight))

    trials, memory = vmap(train)(trials, kept), client.memory
    held_out_loss, model = vmap(judge)(trials, held).mean(), memory.get("model")
    memory.set("trials", trials)
    if first:
        best, least = model, held_out_loss
    else:
        best, least = memory.get("best"), memory.get("least")
        better = held_out_loss < least
        best = tree_map(lambda new, old: torch.where(better, new, old), model, best)
        least = torch.where(better, held_out_loss, least)
    memory.set("best", best)
    memory.set("least", least)


@on_client
def serve_own(client: Client, models: Params, label: Tensor, share: Tensor | None) -> Params:
    """The client's own model, or the common start if it has none yet."""
    own: Params = client.memory.get("model", take(models, 0))
    return client.memory.get("best", own)


@dataclass(frozen=True, kw_only=True)
class Alone:
    """The local baseline: every client trains its own model, which never leaves it."""

    rounds: int = 10
    """Rounds of local training, without averaging; a linear model with `keep = "penalised"` takes one."""
    local: Descent = Descent(lr=0.1, steps=10)
    keep: Keep = "last"
    """Which model to keep: that of the last round; that of the best round, by held-out training examples; or, for a
    linear model, one with penalties chosen by held-out examples, found in one round (other models: as `best`)."""

    serve = serve_own
    keeps_memory = True
    last_stage = ""

    def __post_init__(self) -> None:
        check_types(self)
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")

    @property
    def ends_early(self) -> bool:
        """Whether a run may take a single round: penalised linear models are solved for, not trained."""
        return self.keep == "penalised"

    @staticmethod
    def _solve(clients: Cohort, at: Snapshot) -> Replies[Tensor]:
        return clients.map(solve_locally, take(at.models, 0))

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Every client trains its own model, round after round."""
        at = start or Snapshot.fresh(fed, 1)
        if self.keep == "penalised" and can_penalise(fed):
            if at.round == 0:
                solved = ask_again(fed.clients, self._solve(fed.clients, at), lambda late: self._solve(late, at))
                yield at.next(notes={"train_loss": float(solved.value.mean())})
            return
        keep: Keep = "best" if self.keep == "penalised" else self.keep
        for t in range(at.round, self.rounds):
            started = at.carry.get("begun", torch.zeros_like(at.labels, dtype=torch.bool))
            continuing, others = fed.clients.where(started), fed.clients.where(~started)
            local, replies = self.local.at(t), []
            if len(continuing):
                replies.append(continuing.map(continue_locally, local=local, keep=keep))
            if len(others):  # everybody in the first round; later, clients without an accepted reply so far
                try:
                    late = others.map(start_locally, take(at.models, 0), local=local, keep=keep)
                except Exception as error:  # an in-process engine raises what all of these clients raise
                    if not replies:
                        raise
                    log.warning(
                        "%d clients that join late are left out of this round: %s", len(others), first_line(error)
                    )
                else:
                    if not replies or isinstance(late.value, Tensor):  # a few bad clients may agree on another form
                        replies.append(late)
            started = torch.stack([started, *(reply.clients.mask for reply in replies)]).any(0)
            losses = torch.cat([reply.value.flatten() for reply in replies])
            yield (at := at.next(carry={"begun": started}, notes={"train_loss": float(losses.mean())}))
