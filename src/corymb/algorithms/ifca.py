"""IFCA, the iterative federated clustering algorithm.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS 2020 and IEEE
Transactions on Information Theory 2022 (Algorithm 2). γ: `local.lr`, τ: `local.steps`, T: `rounds`, M_t: its sample.

In each round the server sends all k models; every participant picks the one with the smallest loss on its training data
(ties: the lowest index) and trains only that one. Models are averaged within clusters (option II) or take one step
along the gradients of those that chose them (option I).

Departures from the paper: an empty cluster keeps its model, as in the authors' code; `repair`, on by default, regroups
clients when clusters have collapsed (`repair=False` is the paper's algorithm); `init` and `k="auto"` are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from corymb.algorithms.parts.alternate import Answers, alternate, ask, begin
from corymb.algorithms.parts.options import Init, after_round, check_options, participants_of, wrapped
from corymb.algorithms.parts.saving import Saving
from corymb.algorithms.parts.scoring import least_loss
from corymb.algorithms.parts.sharing import mean_models, step_along, tie
from corymb.algorithms.parts.work import Averaging, Weights, Work
from corymb.algorithms.privately.rounds import has_budget, private_rounds
from corymb.core.averaging import Aggregate, check_averaging, reduction_of
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.local import Descent, serve_assigned
from corymb.privacy import Privacy
from corymb.settings import check_types, require
from corymb.trees import Params


@dataclass(frozen=True, kw_only=True)
class IFCA:
    """Finds clusters and trains their models at the same time, by alternating choice and training."""

    k: int | Literal["auto"] | None
    """Number of clusters; `auto` finds it with held-out examples, None takes that of the start."""
    rounds: int = 60
    """Rounds of choosing a model and training it; `k = "auto"`, `init` and `restarts` take additional rounds."""
    local: Descent = Descent(lr=0.1, steps=10)
    """Local training of the chosen model; option I uses only its step size."""
    averaging: Averaging = "models"
    """Average clients' `models` after training (option II: fewer rounds), or `gradients`, for one step (option I)."""
    weights: Weights = "clients"
    """Whether all clients have the same weight or are weighted by their examples."""
    participants: int | float | None = None
    """Clients per round: a number, a fraction, or all of them."""
    shared: tuple[str, ...] = ()
    """Patterns of the names of parameters that all clusters share: sent once, averaged over all participants."""
    saving: Saving | None = None
    """Send settled clients only their own model."""
    soft: float | None = None
    """A temperature: train every model, each weighted by how well it fits."""
    restarts: int = 1
    """Number of independent runs; the one with the smallest training loss is kept."""
    init: Init = "random"
    """The start: random models; groups found by losses on random models, or by local models; or moment descent."""
    alone: Descent = Descent(lr=0.1, steps=100)
    """How clients train their local models for `k="auto"` and `init="one-shot"`."""
    aggregate: Aggregate = "mean"
    """How a cluster's models are averaged: the mean, or a robust aggregate that a few bad clients cannot move."""
    clip: float | None = None
    """Updates longer than this are clipped to this length."""
    privacy: Privacy | None = None
    """Differential privacy of clients; participants are then drawn independently, and nothing is repaired."""
    repair: bool = True
    """Regroup clients when clusters have collapsed: not part of the paper."""

    serve = serve_assigned
    last_stage = "rounds"

    def __post_init__(self) -> None:
        check_types(self)
        require(self.k is None or self.k == "auto" or self.k >= 1, f"k must be at least 1 or 'auto', got {self.k}.")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")
        require(self.restarts >= 1, f"restarts must be at least 1, got {self.restarts}.")
        require(self.soft is None or self.soft > 0, f"soft must be a temperature above 0, got {self.soft}.")
        check_averaging(self)
        check_options(self)
        require(self.soft is None or self.aggregate == "mean", "soft needs aggregate='mean' (clip is allowed).")
        require(not (self.saving and self.soft), "saving and soft cannot be combined: leave one of them out.")
        require(self.k != "auto" or self.restarts == 1, "k='auto' cannot be combined with restarts: leave it at 1.")
        require(self.k != "auto" or self.init == "random", "k='auto' finds its own start: leave init out, or give k.")

    @property
    def planned_rounds(self) -> int:
        """T, and whatever `restarts`, `init` and k = "auto" add."""
        outer = wrapped(self)
        return self.rounds if outer is None else planned_rounds(outer)

    @property
    def ends_early(self) -> bool:
        """The search for k has no fixed number of rounds, and a privacy budget may be spent."""
        return self.k == "auto" or has_budget(self.privacy)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Algorithm 2, inside the wrappers that `restarts`, `init` or k = "auto" ask for."""
        fed = fed.averaged_by(reduction_of(self))
        if (outer := wrapped(self)) is not None:
            return outer.run(fed, start)
        assert self.k != "auto"

        def choose(at: Snapshot, t: int) -> Answers:  # lines 4 to 9
            clients, own = participants_of(self, fed, at, t)
            work = Work(local=self.local.at(t), averaging=self.averaging, weights=self.weights)
            return ask(clients, at, work, shared=self.shared, soft=self.soft, own=own)

        def average(models: Params, replies: Answers, t: int) -> Params:  # lines 10 to 14
            if self.averaging == "models":
                return mean_models(models, replies.value, self.shared)
            return step_along(models, replies.value, self.step(fed, t), self.shared)

        at = tie(begin(fed, self.k, start), self.shared)
        if self.privacy is not None:
            return private_rounds(self, fed, at, self.averaging, self.shared, self.step)
        return alternate(at, self.rounds, choose, average, soft=self.soft, after=partial(after_round, self, fed))

    def step(self, fed: Federation, t: int) -> float:
        """Option I: γ / n, where n is the number of **all** clients, asked or not (or of all their examples)."""
        everybody = len(fed.clients) if self.weights == "clients" else int(fed.clients.sizes.sum())
        return self.local.at(t).lr / everybody

    def score(self, fed: Federation, at: Snapshot) -> float:
        """The mean loss of the model that fits each client best; restarts are compared by it."""
        return least_loss(fed, at, self.shared)
