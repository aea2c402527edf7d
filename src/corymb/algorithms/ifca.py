"""IFCA, the iterative federated clustering algorithm.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS 2020 and IEEE
Transactions on Information Theory 2022 (Algorithm 2). γ: `local.lr`, τ: `local.steps`, k: `k`, T: `rounds`, M_t: the
clients that `participants` samples.

Each round the server sends all k models; every participant picks the one with the least loss on its training data
(ties: the lowest index) and works on that one alone. Models are averaged within clusters (option II) or take one step
along the gradients of those that chose them (option I).

Departures from the paper: an empty cluster keeps its model, as in the authors' code; `repair`, on by default, regroups
clients when clusters have collapsed (`repair=False` is the paper's algorithm); `init` and `k="auto"` are ours.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from corymb.algorithms.moment_descent import MomentDescent
from corymb.algorithms.parts.repair import repaired
from corymb.algorithms.parts.saving import Saving, sightings
from corymb.algorithms.parts.sharing import Sent, average_shared, pack, tie
from corymb.algorithms.parts.starts import LOSS_VECTOR_ROUNDS, by_local_models, by_loss_vectors, by_probes
from corymb.algorithms.parts.work import Averaging, Weights, Work, work_on_own, work_softly
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Cohort, Federation, Replies, Sums, each
from corymb.core.snapshot import Snapshot, best_of, stages
from corymb.local import Descent, losses, one_hot, serve_assigned
from corymb.settings import require
from corymb.trees import Params, add, count, take

log = logging.getLogger(__name__)


@on_client
def choose_and_work(client: Client, sent: Sent, *, work: Work) -> Share[Tensor]:
    """Work on the model that fits best; the note is every model's loss beforehand."""
    models = sent.models()
    choosing, working = work.parts(client)
    fit = losses(client, models, on=choosing)
    label = fit.argmin()
    value = work.on(client, take(models, label), working)
    return Share(value, weight=one_hot(label, count(models)) * work.weight(client), label=label, note=fit)


@on_client
def least_loss(client: Client, sent: Sent) -> Share[tuple[()]]:
    """The loss of the model that fits best, for the comparison of restarts."""
    fit = losses(client, sent.models())
    return Share({"loss": fit.min()}, weight=one_hot(fit.argmin() * 0, 1))


@dataclass(frozen=True, kw_only=True)
class IFCA:
    """Clusters and models at the same time, by alternating choice and training."""

    k: int | Literal["auto"]
    """Clusters; `auto` finds their number from clients' losses on a few local models."""
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
    init: Literal["random", "loss-vectors", "one-shot", "moment-descent"] = "random"
    """Random models; or from groups found by losses on random models, or by local models; or moment descent's."""
    alone: Descent = Descent(lr=0.1, steps=100)
    """How clients train by themselves for `k="auto"` and `init="one-shot"`."""
    repair: bool = True
    """Regroup clients when clusters have collapsed: no part of the paper."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        require(self.k == "auto" or self.k >= 1, f"k must be at least 1 or 'auto', got {self.k}.")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")
        require(self.restarts >= 1, f"restarts must be at least 1, got {self.restarts}.")
        require(self.soft is None or self.soft > 0, f"soft is a temperature above 0, got {self.soft}.")
        require(not (self.saving and (self.fresh or self.soft)), "saving goes with neither fresh nor soft.")
        require(self.k != "auto" or self.restarts == 1, "k='auto' goes with one run: leave restarts at 1.")

    @property
    def planned_rounds(self) -> int:
        """All restarts, each with its start and the round that scores it."""
        coarse = MomentDescent(then=None).planned_rounds
        starts = {"random": 0, "loss-vectors": LOSS_VECTOR_ROUNDS, "one-shot": 1, "moment-descent": coarse}
        start = 3 if self.k == "auto" else starts[self.init]
        once = start + self.rounds
        return once if self.restarts == 1 else self.restarts * (once + 1)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """The best of `restarts` runs."""
        return best_of(self.restarts, self._once, self._training_loss, fed, start)

    def _once(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        if self.k != "auto" and self.init == "random":
            return self._rounds(fed, start)
        return stages(fed, start, start=self._start, rounds=self._rounds)

    def _start(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        work = Work(local=self.local, weights=self.weights)
        if self.k == "auto":
            return by_probes(fed, self.alone, work, start)
        if self.init == "one-shot":
            return by_local_models(fed, self.k, self.alone, start)
        if self.init == "moment-descent":
            return MomentDescent(k=self.k, then=None).run(fed, start)
        return by_loss_vectors(fed, self.k, work, start)

    def _rounds(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        if self.fresh and int(fed.sizes.min()) < 2 * self.rounds:
            require(False, f"fresh wants {2 * self.rounds} examples a client (2 a round), one has {fed.sizes.min()}.")
        at = start or Snapshot.fresh(fed, int(self.k))
        at = tie(at, self.shared) if at.round == 0 else at
        for t in range(at.round, self.rounds):
            before, replies = at, self._ask(fed, at, t)
            at = at.next(
                models=average_shared(self._moved(fed, at.models, replies.value, t), replies.value, self.shared),
                labels=(replies.clients, replies.value.label),
                carry=sightings(at, replies) if self.saving else {},
                notes={"train_loss": float(replies.value.note.amin(1).mean())},
            )
            if self.repair and at.k > 1 and not (self.fresh or self.soft):
                at = repaired(before, at, replies, fed.key("collapse"))
            yield at

    def _ask(self, fed: Federation, at: Snapshot, t: int) -> Replies[Sums[Tensor]]:
        fresh = (t, self.rounds) if self.fresh else None
        work = Work(local=self.local.at(t), averaging=self.averaging, weights=self.weights, fresh=fresh)
        if "regrouped" in at.carry:
            return self._each_its_own(fed.clients[at.carry["regrouped"][fed.clients.ids]], at, work)
        participants = fed.clients.sample(self.participants)
        if self.saving and self.saving.settled(at, t):
            return self._each_its_own(participants, at, work)
        if self.soft is not None:
            return participants.sum(work_softly, pack(at.models, self.shared), work=work, temperature=self.soft)
        return participants.sum(choose_and_work, pack(at.models, self.shared), work=work)

    def _each_its_own(self, participants: Cohort, at: Snapshot, work: Work) -> Replies[Sums[Tensor]]:
        own = at.labels[participants.ids]
        return participants.sum(work_on_own, each(at.models, of=own), each(own), k=at.k, work=work)

    def _moved(self, fed: Federation, models: Params, sums: Sums[Tensor], t: int) -> Params:
        """Option II: means; option I: a step along the sum of gradients over **all** clients, asked or not."""
        if self.averaging == "models":
            return sums.mean(empty=models)
        everybody = len(fed.clients) if self.weights == "clients" else int(fed.clients.sizes.sum())
        step = self.local.at(t).lr / everybody
        if getattr(fed.objective, "squared", False) and (largest := step * float(sums.weight.max())) >= 1:
            log.warning("lr × the largest cluster's share is %.2g: on squared loss steps of 1 or more diverge", largest)
        return add(models, sums.total, alpha=-step)

    def _training_loss(self, fed: Federation, at: Snapshot) -> float:
        sums = fed.clients.sum(least_loss, pack(at.models, self.shared)).value
        return float(sums.total["loss"] / sums.weight)
