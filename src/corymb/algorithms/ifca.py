"""IFCA, the iterative federated clustering algorithm.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS 2020 and IEEE
Transactions on Information Theory 2022 (Algorithm 2). γ: `local.lr`, τ: `local.steps`, k: `k`, T: `rounds`, M_t: the
clients that `participants` samples.

Each round the server sends all k models; every participant picks the one with the least loss on its training data
(ties: the lowest index) and works on that one alone. Models are averaged within clusters (option II) or take one step
along the gradients of those that chose them (option I).

Departures from the paper: none known. An empty cluster keeps its model, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from corymb.client import Client, Share, on_client
from corymb.federation import Federation, Replies, Sums
from corymb.local import Descent, descend, gradient, losses, one_hot, serve_assigned
from corymb.settings import require
from corymb.snapshot import Snapshot, best_of
from corymb.trees import Params, add, count, take


@on_client
def choose_and_train(client: Client, models: Params, *, local: Descent) -> Share[Tensor]:
    """Option II: the model that fits best, trained on; with its loss before training as the note."""
    fit = losses(client, models)
    label = fit.argmin()
    model = descend(client, take(models, label), local)
    return Share(model, weight=one_hot(label, count(models)), label=label, note=fit[label])


@on_client
def choose_and_differentiate(client: Client, models: Params) -> Share[Tensor]:
    """Option I: the gradient of the model that fits best; with its loss as the note."""
    fit = losses(client, models)
    label = fit.argmin()
    return Share(
        gradient(client, take(models, label)), weight=one_hot(label, count(models)), label=label, note=fit[label]
    )


@on_client
def least_loss(client: Client, models: Params) -> Share[Tensor]:
    """The loss of the model that fits best, for the comparison of restarts."""
    fit = losses(client, models)
    return Share({"loss": fit.min()}, weight=one_hot(fit.argmin() * 0, 1))


@dataclass(frozen=True, kw_only=True)
class IFCA:
    """Clusters and models at the same time, by alternating choice and training."""

    k: int
    """Clusters."""
    rounds: int = 60
    local: Descent = Descent(lr=0.1, steps=10)
    """What a client does with the model it chose; option I takes only the step size from it."""
    averaging: Literal["models", "gradients"] = "models"
    """Option II or option I."""
    participants: int | float | None = None
    """Clients a round: a number, a fraction, or all of them."""
    restarts: int = 1
    """Independent runs; the one with the least training loss is kept."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        require(self.k >= 1, f"k must be at least 1, got {self.k}.")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")
        require(self.restarts >= 1, f"restarts must be at least 1, got {self.restarts}.")

    @property
    def planned_rounds(self) -> int:
        """All restarts, each with the round that scores it."""
        return self.rounds if self.restarts == 1 else self.restarts * (self.rounds + 1)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """The best of `restarts` runs."""
        return best_of(self.restarts, self._once, self._training_loss, fed, start)

    def _once(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        at = start or Snapshot.fresh(fed, self.k)
        for t in range(at.round, self.rounds):
            participants = fed.clients.sample(self.participants)
            local = self.local.at(t)
            if self.averaging == "models":
                replies = participants.sum(choose_and_train, at.models, local=local)
                models = replies.value.mean(empty=at.models)
            else:
                replies = participants.sum(choose_and_differentiate, at.models)
                models = add(at.models, replies.value.total, alpha=-local.lr / len(fed.clients))
            yield (at := at.next(models=models, labels=(replies.clients, replies.value.label), notes=noted(replies)))

    def _training_loss(self, fed: Federation, at: Snapshot) -> float:
        sums = fed.clients.sum(least_loss, at.models).value
        return float(sums.total["loss"] / sums.weight)


def noted(replies: Replies[Sums[Tensor]]) -> dict[str, float]:
    """The mean of the losses that clients noted."""
    return {"train_loss": float(replies.value.note.mean())}
