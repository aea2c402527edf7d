"""Algorithms for tests: one that makes much use of client memory, and one whose rounds can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.keys import integers, uniform
from corymb.local import Descent, descend, gradient, losses, one_hot, serve_assigned
from corymb.trees import Params, add, count, map_tensors, take


@on_client
def train_with_momentum(client: Client, models: Params, *, lr: float) -> Share[Tensor]:
    """A step with momentum; the velocity and the counts of uses of examples and of calls are kept in client memory."""
    memory, weight = client.memory, client.train.weight
    label = losses(client, models).argmin()
    model = take(models, label)
    seen: Tensor = memory.get("seen", torch.zeros_like(weight))
    velocity = memory.get("velocity", map_tensors(torch.zeros_like, model))
    asked = memory.get("asked", torch.tensor(0)) + 1
    on = client.train._replace(weight=weight / (1 + seen))
    velocity = add(gradient(client, model, on=on), velocity, alpha=0.5)
    looked = uniform(client.key("look"), weight.shape, weight.dtype) < 0.5
    memory.set("seen", seen + looked, along="train")
    memory.set("velocity", velocity)
    memory.set("asked", asked)
    moved = descend(client, add(model, velocity, alpha=-lr), Descent(lr=lr, epochs=1, batch=3))
    return Share(moved, one_hot(label, count(models)), label, (seen * weight).sum() + asked)


@on_client
def forget_sometimes(client: Client) -> Tensor:
    """Reset the velocity of about half of the clients, by their own draws."""
    stay = integers(client.key("forget"), 2)
    velocity = client.memory.get("velocity")
    client.memory.set("velocity", map_tensors(lambda v: v * stay, velocity))
    return stay


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """Asks some clients per round, and in every second round makes a second call at the same clock."""

    k: int = 2
    rounds: int = 4
    lr: float = 0.03

    serve = serve_assigned
    keeps_memory = True

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        at = start or Snapshot.fresh(fed, self.k)
        for t in range(at.round, self.rounds):
            replies = fed.clients.sample(0.7).sum(train_with_momentum, at.models, lr=self.lr)
            stay = replies.clients.map(forget_sometimes).value if t % 2 else torch.tensor([0])
            yield (
                at := at.next(
                    models=replies.value.mean(empty=at.models),
                    labels=(replies.clients, replies.value.label),
                    carry={"note": at.carry.get("note", torch.zeros(1).double()) + replies.value.note.sum().cpu()},
                    notes={"stay": int(stay.sum())},
                )
            )


@on_client
def count_visits(client: Client, models: Params) -> Share[Tensor]:
    """How often the client was asked, counted in its memory."""
    visits = client.memory.get("visits", torch.zeros((), dtype=torch.float64)) + 1
    client.memory.set("visits", visits)
    return Share(take(models, 0), torch.ones(1), torch.tensor(0), visits)


@on_client
def pass_on(client: Client, number: float) -> Tensor:
    """Return the number it was sent."""
    return client.train.weight.sum() * 0 + number


@dataclass(frozen=True, kw_only=True)
class Fragile:
    """Rounds of two calls; at the clocks in `bad`, the second gets no usable reply after the first wrote memory."""

    rounds: int = 3
    bad: tuple[int, ...] = ()

    serve = serve_assigned

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        at = start or Snapshot.fresh(fed, 1)
        for _ in range(at.round, self.rounds):
            replies = fed.clients.sum(count_visits, at.models)
            fed.clients.map(pass_on, float("nan") if fed.clock in self.bad else 0.0)
            notes = {"visits": replies.value.note.tolist(), "draw": int(fed.key("a draw"))}
            yield (at := at.next(labels=(replies.clients, replies.value.label), notes=notes))
