"""FedX + clustering: FedAvg or FedProx for whichever of k models fits a client best.

Su, Xu, Yang: Global Convergence of Federated Learning for Mixed Regression. NeurIPS 2022 (Phase 2). η: `local.lr`,
s: `local.steps`, T': `rounds`, λ_i: `assignment`, w_i = n_i / N: `weights`. The paper's loss is half of the mean
square, and η is a step on that, whether or not the objective has the half.

Each round every client picks the model with the least loss on all its data and refines it: FedAvg with s gradient
steps, FedProx with the minimum of its loss plus ‖θ − θ_old‖² / 2η, in closed form for linear models. In the paper's
average each client returns all k models, those that it did not refine unchanged: θ_j ← Σ_i (m_i / N) θ_ij over all
clients. A non-member's θ_j need not travel: the server knows it.

Departures from the paper:

* Soft assignment: the paper's loss is linear in λ, so that its own minimiser is a hard label. Ours is
  λ_ij ∝ exp(−m_i F_i(θ_j) / `temperature`); a client refines every model, and the fraction λ_ij of it counts (for one
  FedAvg step this is the paper's step on the λ-weighted loss).
* `averaging="members"` is IFCA's form, the mean over a cluster's members; `weights="clients"` counts clients alike.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from corymb.algorithms.parts.alternate import Answers, alternate, ask, begin
from corymb.algorithms.parts.linear import curvature
from corymb.algorithms.parts.work import Weights, Work
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, serve_assigned
from corymb.objectives.regression import LinearRegression
from corymb.settings import require
from corymb.trees import Params, tree_map

log = logging.getLogger(__name__)
Refinement = Literal["fedavg", "fedprox"]


@dataclass(frozen=True, kw_only=True)
class FedX:
    """Alternating choice and refinement from given models, such as moment descent's."""

    k: int | None = None
    """Clusters; without it, as many as the models it starts from."""
    rounds: int = 400
    local: Descent = Descent(lr=0.045, steps=5)
    """FedAvg's local work; FedProx takes only the step size η from it."""
    refinement: Refinement = "fedavg"
    assignment: Literal["hard", "soft"] = "hard"
    temperature: float = 1.0
    """Of soft assignment; towards 0 it becomes hard."""
    averaging: Literal["all", "members"] = "all"
    """Over all clients, those outside a cluster returning its model unchanged (the paper), or over its members."""
    weights: Weights = "examples"
    """How clients count: by their examples (the paper), or alike."""
    participants: int | float | None = None
    """Clients a round: a number, a fraction, or all of them."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        require(self.k is None or self.k >= 1, f"k must be at least 1, got {self.k}.")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")
        require(self.temperature > 0, f"temperature must be positive, got {self.temperature}.")

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Choose, refine and average, round after round."""
        linear = isinstance(fed.objective, LinearRegression)
        require(linear or self.refinement == "fedavg", _NOT_LINEAR)
        soft = self.temperature if self.assignment == "soft" else None

        def refine(at: Snapshot, t: int) -> Answers:
            if t == 0 and linear:
                self._check_step(fed)
            work = Work(local=self._local(fed, t), weights=self.weights, proximal=self.refinement == "fedprox")
            return ask(fed.clients.sample(self.participants), at, work, soft=soft)

        return alternate(begin(fed, self.k, start), self.rounds, refine, self._average, soft=soft)

    def _local(self, fed: Federation, t: int) -> Descent:
        """The step of round t: η is one on half of the mean square, whatever factor c the objective has."""
        local, c = self.local.at(t), fed.objective.squared
        halved = c is not None and self.refinement == "fedavg"
        return replace(local, lr=local.lr * 0.5 / c) if halved and c is not None else local

    def _average(self, models: Params, replies: Answers, t: int) -> Params:
        """The mean over members, or over all that answered: those outside a cluster return its model as it was."""
        mean, weight, answered = replies.value.mean(empty=models), replies.value.weight, replies.clients
        if self.averaging == "members":
            return mean
        whole = int(answered.sizes.sum()) if self.weights == "examples" else len(answered)
        return tree_map(lambda new, old: old + _led(weight, old) / whole * (new - old), mean, models)

    def _check_step(self, fed: Federation) -> None:
        """The theory wants η · max_i ‖φ(x_i)‖² / m_i < 1; above 2 local steps grow without bound."""
        most = self.local.lr * float(fed.clients.map(curvature).value.max())
        if most >= 1 and self.refinement == "fedavg":
            log.warning("the step is long for some client: lr times its largest curvature is %.2f, wanted < 1", most)


_NOT_LINEAR = (
    "FedProx in closed form is for linear regression. For other models, take refinement='fedavg' with local.proximal."
)


def _led(factors: Tensor, like: Tensor) -> Tensor:
    """One factor for each model, to multiply its parameters with."""
    return factors.reshape(-1, *[1] * (like.dim() - 1)).to(like)
