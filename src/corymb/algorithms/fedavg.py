"""FedAvg: one model for all clients.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data. AISTATS 2017.

Departures from the paper: all clients have the same weight by default, so that IFCA with k = 1 is the same algorithm;
`weights="examples"` is the paper's mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.algorithms.parts.work import Weights, Work
from corymb.algorithms.privately.rounds import check_private, has_budget, private_rounds
from corymb.core.averaging import Aggregate, check_averaging, reduction_of
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, one_hot, serve_assigned
from corymb.privacy import Privacy
from corymb.settings import check_types, require
from corymb.trees import Params, take


@on_client
def train(client: Client, models: Params, *, work: Work) -> Share[Tensor]:
    """The model after local training; the note is its loss before training."""
    value, before = work.with_loss(client, take(models, 0))
    label = torch.zeros((), dtype=torch.int64, device=client.train.weight.device)
    weight = one_hot(label, 1) * work.weight(client)
    return Share(value, weight=weight, label=label, note=before)


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """The global baseline: the mean of the clients' models after local training."""

    rounds: int = 60
    """Rounds: in each, clients train the model on their examples, and the results are averaged."""
    local: Descent = Descent(lr=0.1, steps=10)
    weights: Weights = "clients"
    """Whether all clients have the same weight or are weighted by their examples."""
    participants: int | float | None = None
    """Clients per round: a number, a fraction, or all of them."""
    aggregate: Aggregate = "mean"
    """How clients' models are averaged: the mean, or a robust aggregate that a few bad clients cannot move."""
    clip: float | None = None
    """Updates longer than this are clipped to this length."""
    privacy: Privacy | None = None
    """Differential privacy of clients; participants are then drawn independently."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        check_types(self)
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")
        check_averaging(self)
        check_private(self)

    @property
    def ends_early(self) -> bool:
        """A privacy budget may be spent before the rounds are done."""
        return has_budget(self.privacy)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Train and average, round after round."""
        at, fed = start or Snapshot.fresh(fed, 1), fed.averaged_by(reduction_of(self))
        if self.privacy is not None:
            yield from private_rounds(self, fed, at)
            return
        for t in range(at.round, self.rounds):
            work = Work(local=self.local.at(t), weights=self.weights)
            replies = fed.clients.sample(self.participants).near(at.models).sum(train, at.models, work=work)
            models = replies.value.mean(empty=at.models)
            notes = {"train_loss": float(replies.value.note.mean())}
            yield (at := at.next(models=models, labels=(replies.clients, replies.value.label), notes=notes))
