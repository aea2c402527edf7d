"""IFCA, the iterative federated clustering algorithm.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS 2020 and IEEE
Transactions on Information Theory 2022 (Algorithm 2). γ: `local.lr`, τ: `local.steps`, k: `k`, T: `rounds`, M_t: the
clients that `participants` samples.

Each round the server sends all k models; every participant picks the one with the least loss on its training data
(ties: the lowest index) and works on that one alone. Models are averaged within clusters (option II) or take one step
along the gradients of those that chose them (option I).

Departures from the paper: an empty cluster keeps its model, as in the authors' code. `saving`, `soft` and `restarts`
are options that the paper mentions or that its authors' code has; all are off by default.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.func import vmap

from corymb.algorithms.sharing import Sent, average_shared, pack, tie
from corymb.algorithms.stability import Saving, sightings
from corymb.client import Client, Examples, Share, Shares, on_client
from corymb.federation import Cohort, Federation, Replies, Sums, each
from corymb.local import Descent, descend, gradient, losses, one_hot, part, serve_assigned
from corymb.settings import require
from corymb.snapshot import Snapshot, best_of
from corymb.trees import Params, add, count, take

log = logging.getLogger(__name__)
Averaging = Literal["models", "gradients"]
Weights = Literal["clients", "examples"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a client does with a model, and how much it counts."""

    local: Descent
    averaging: Averaging = "models"
    weights: Weights = "clients"
    fresh: tuple[int, int] | None = None
    """(t, T): examples are cut into 2T parts; round t chooses on one and works on another."""

    def parts(self, client: Client) -> tuple[Examples, Examples]:
        """The examples to choose on, and those to work on."""
        if self.fresh is None:
            return client.train, client.train
        t, rounds = self.fresh
        return part(client.train, 2 * t, 2 * rounds), part(client.train, 2 * t + 1, 2 * rounds)

    def on(self, client: Client, model: Params, examples: Examples) -> Params:
        """Option II: the model trained on; option I: its gradient."""
        if self.averaging == "models":
            return descend(client, model, self.local, on=examples)
        return gradient(client, model, on=examples)

    def weight(self, client: Client) -> Tensor | float:
        """1, or the client's number of examples."""
        return 1.0 if self.weights == "clients" else client.train.weight.sum()


@on_client
def choose_and_work(client: Client, sent: Sent, *, work: Work) -> Share[Tensor]:
    """Work on the model that fits best; the note is its loss beforehand."""
    models = sent.models()
    choosing, working = work.parts(client)
    fit = losses(client, models, on=choosing)
    label = fit.argmin()
    value = work.on(client, take(models, label), working)
    return Share(value, weight=one_hot(label, count(models)) * work.weight(client), label=label, note=fit[label])


@on_client
def work_on_own(client: Client, model: Params, label: Tensor, *, k: int, work: Work) -> Share[Tensor]:
    """Work on the only model sent, when the cluster is settled."""
    fit = losses(client, {name: value.unsqueeze(0) for name, value in model.items()})[0]
    value = work.on(client, model, client.train)
    return Share(value, weight=one_hot(label, k) * work.weight(client), label=label, note=fit)


@on_client
def work_softly(client: Client, sent: Sent, *, work: Work, temperature: float) -> Shares[Tensor]:
    """Work on every model; each counts by λ_j ∝ exp(−m F(θ_j) / temperature)."""
    models = sent.models()
    choosing, working = work.parts(client)
    fit = losses(client, models, on=choosing)
    shares = (-choosing.weight.sum() * fit / temperature).softmax(0)
    value = vmap(lambda model: work.on(client, model, working))(models)
    return Shares(value, weight=shares * work.weight(client), label=shares.argmax(), note=(shares * fit).sum())


@on_client
def least_loss(client: Client, sent: Sent) -> Share[tuple[()]]:
    """The loss of the model that fits best, for the comparison of restarts."""
    fit = losses(client, sent.models())
    return Share({"loss": fit.min()}, weight=one_hot(fit.argmin() * 0, 1))


@dataclass(frozen=True, kw_only=True)
class IFCA:
    """Clusters and models at the same time, by alternating choice and training."""

    k: int
    """Clusters."""
    rounds: int = 60
    local: Descent = Descent(lr=0.1, steps=10)
    """What a client does with the model it chose; option I takes only the step size from it."""
    averaging: Averaging = "models"
    """Option II or option I."""
    weights: Weights = "clients"
    """Whether clients count alike or by their examples."""
    participants: int | float | None = None
    """Clients a round: a number, a fraction, or all of them."""
    shared: tuple[str, ...] = ()
    """Patterns of the names of parameters that all clusters share: sent once, averaged over all participants."""
    saving: Saving | None = None
    """Send settled clients their own model only."""
    fresh: bool = False
    """New examples each round, for choosing and for working, as in the paper's theory."""
    soft: float | None = None
    """A temperature: work on every model, each weighted by how well it fits."""
    restarts: int = 1
    """Independent runs; the one with the least training loss is kept."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        require(self.k >= 1, f"k must be at least 1, got {self.k}.")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")
        require(self.restarts >= 1, f"restarts must be at least 1, got {self.restarts}.")
        require(self.soft is None or self.soft > 0, f"soft is a temperature above 0, got {self.soft}.")
        require(not (self.saving and (self.fresh or self.soft)), "saving goes with neither fresh nor soft.")

    @property
    def planned_rounds(self) -> int:
        """All restarts, each with the round that scores it."""
        return self.rounds if self.restarts == 1 else self.restarts * (self.rounds + 1)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """The best of `restarts` runs."""
        return best_of(self.restarts, self._once, self._training_loss, fed, start)

    def _once(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        if self.fresh and int(fed.sizes.min()) < 2 * self.rounds:
            require(False, f"fresh wants {2 * self.rounds} examples a client (2 a round), one has {fed.sizes.min()}.")
        at = start or tie(Snapshot.fresh(fed, self.k), self.shared)
        for t in range(at.round, self.rounds):
            replies = self._ask(fed.clients.sample(self.participants), at, t)
            at = at.next(
                models=average_shared(self._moved(fed, at.models, replies.value, t), replies.value, self.shared),
                labels=(replies.clients, replies.value.label),
                carry=sightings(at, replies) if self.saving else {},
                notes={"train_loss": float(replies.value.note.mean())},
            )
            yield at

    def _ask(self, participants: Cohort, at: Snapshot, t: int) -> Replies[Sums[Tensor]]:
        fresh = (t, self.rounds) if self.fresh else None
        work = Work(local=self.local.at(t), averaging=self.averaging, weights=self.weights, fresh=fresh)
        if self.saving and self.saving.settled(at, t):
            own = at.labels[participants.ids]
            return participants.sum(work_on_own, each(at.models, of=own), each(own), k=self.k, work=work)
        if self.soft is not None:
            return participants.sum(work_softly, pack(at.models, self.shared), work=work, temperature=self.soft)
        return participants.sum(choose_and_work, pack(at.models, self.shared), work=work)

    def _moved(self, fed: Federation, models: Params, sums: Sums[Tensor], t: int) -> Params:
        """Option II: means; option I: a step along the sum of gradients over **all** clients, asked or not."""
        if self.averaging == "models":
            return sums.mean(empty=models)
        everybody = len(fed.clients) if self.weights == "clients" else int(fed.clients.sizes.sum())
        step = self.local.at(t).lr / everybody
        if getattr(fed.objective, "squared", False) and step * float(sums.weight.max()) >= 1:
            log.warning(
                "lr × the largest cluster's share is %.2g: on squared loss this diverges from 1 on",
                step * float(sums.weight.max()),
            )
        return add(models, sums.total, alpha=-step)

    def _training_loss(self, fed: Federation, at: Snapshot) -> float:
        sums = fed.clients.sum(least_loss, pack(at.models, self.shared)).value
        return float(sums.total["loss"] / sums.weight)
