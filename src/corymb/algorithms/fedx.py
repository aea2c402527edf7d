"""FedX + clustering: FedAvg or FedProx for whichever of k models fits a client best.

Su, Xu, Yang: Global Convergence of Federated Learning for Mixed Regression. NeurIPS 2022 (Phase 2). η: `local.lr`,
s: `local.steps`, T': `rounds`, λ_i: `assignment`, w_i = n_i / N: `weights`. The paper's loss is half of the mean
squared error; η and `temperature` refer to that, whether or not the objective has the half.

In each round every client picks the model with the smallest loss on all its data and refines it: FedAvg with s gradient
steps, FedProx with the minimum of its loss plus ‖θ − θ_old‖² / 2η, in closed form for linear models. In the paper's
average each client returns all k models, those that it did not refine unchanged: θ_j ← Σ_i (m_i / N) θ_ij over all
clients. A non-member's θ_j need not be sent: the server knows it.

Departures from the paper:

* Soft assignment: the paper's loss is linear in λ, so that its own minimiser is a hard label. Ours is
  λ_ij ∝ exp(−m_i F_i(θ_j) / `temperature`); a client refines every model, and the fraction λ_ij of it counts (for one
  FedAvg step this is the paper's step on the λ-weighted loss).
* `averaging="members"` is IFCA's form, the mean over a cluster's members; `weights="clients"` gives equal weights.
* `refinement="whitened"`, for linear models: FedAvg with s = 1 in coordinates in which the second moment of all
  clients' features is I, so that η = 1 is right whatever the units. A cluster's part of that moment is at most the
  whole of it, so with `averaging="all"` this step never diverges. Clients return gradients; the server knows the
  coordinates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from corymb.algorithms.parts.alternate import Answers, alternate, ask, begin
from corymb.algorithms.parts.linear import curvature, linear_or_refuse
from corymb.algorithms.parts.regression.whitening import whitening_of
from corymb.algorithms.parts.work import Weights, Work
from corymb.core.averaging import Aggregate, check_averaging, reduction_of
from corymb.core.federation import Federation
from corymb.core.patience import ask_again
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, serve_assigned
from corymb.objectives.linear_form import linear_form
from corymb.settings import check_types, require
from corymb.trees import Params, align_leading, tree_map

log = logging.getLogger(__name__)
Refinement = Literal["fedavg", "fedprox", "whitened"]


@dataclass(frozen=True, kw_only=True)
class FedX:
    """Alternating choice and refinement from given models, such as moment descent's."""

    k: int | None = None
    """Number of clusters; by default as many as the models it starts from."""
    rounds: int = 400
    """Rounds: in each, clients choose among the models and train the one they chose."""
    local: Descent = Descent(lr=0.045, steps=5)
    """FedAvg's local work; FedProx takes only the step size η from it, "whitened" takes nothing."""
    refinement: Refinement = "fedavg"
    """FedAvg, FedProx, or one gradient step of length 1 in coordinates in which features have second moment I."""
    assignment: Literal["hard", "soft"] = "hard"
    temperature: float = 1.0
    """Temperature of soft assignment; towards 0 it becomes hard."""
    averaging: Literal["all", "members"] = "all"
    """Whom a model is averaged over: `all` counts clients outside the cluster as if they returned it unchanged (the
    paper; small clusters then learn slowly), `members` counts only those that chose it."""
    weights: Weights = "examples"
    """Weights of clients: by their examples (the paper), or equal."""
    participants: int | float | None = None
    """Clients per round: a number, a fraction, or all of them."""
    aggregate: Aggregate = "mean"
    """How a cluster's models are averaged: the mean, or a robust aggregate that a few bad clients cannot move."""
    clip: float | None = None
    """Updates longer than this are clipped to this length."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        check_types(self)
        require(self.k is None or self.k >= 1, f"k must be at least 1, got {self.k}.")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")
        check_averaging(self)
        hard = self.assignment == "hard" or self.aggregate == "mean"
        require(hard, "assignment='soft' needs aggregate='mean' (clip is allowed).")
        require(self.temperature > 0, f"temperature must be positive, got {self.temperature}.")

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Choose, refine and average, round after round."""
        fed = fed.averaged_by(reduction_of(self))
        if self.refinement != "fedavg":
            linear_or_refuse(fed, _NAMES[self.refinement], ", or refinement='fedavg' (with local.proximal)")
        half = 1.0 if fed.objective.squared is None else 2 * fed.objective.squared  # our loss over the paper's
        soft = self.temperature * half if self.assignment == "soft" else None
        at, whitened = begin(fed, self.k, start), self.refinement == "whitened"
        inverse: list[Tensor] = [at.carry["inverse"]] if "inverse" in at.carry else []  # Σ⁻¹, once known
        stability: dict[str, float] = {}

        def refine(at: Snapshot, t: int) -> Answers:
            if t == 0 and not whitened and linear_form(fed.objective) is not None:
                stability["kappa"] = self._kappa(fed)
            if whitened and not inverse:
                inverse.append(self._inverse(fed, at))
            work = Work(
                local=self._local(fed, t),
                weights=self.weights,
                averaging="gradients" if whitened else "models",
                proximal=self.refinement == "fedprox",
            )
            return ask(fed.clients.sample(self.participants), at, work, soft=soft)

        def average(models: Params, replies: Answers, t: int) -> Params:
            return self._average(models, self._refined(fed, models, replies, inverse), replies)

        def keep(before: Snapshot, at: Snapshot, replies: Answers) -> Snapshot:
            notes = {**at.notes, **stability} if before.round == 0 else at.notes
            return replace(at, carry={"inverse": inverse[0]} if whitened else {}, notes=notes)

        return alternate(at, self.rounds, refine, average, soft=soft, after=keep)

    def _local(self, fed: Federation, t: int) -> Descent:
        """Local training in round t, with η converted from half the mean squared error to the objective's factor c."""
        local, c = self.local.at(t), fed.objective.squared
        halved = c is not None and self.refinement == "fedavg"
        return replace(local, lr=local.lr * 0.5 / c) if halved and c is not None else local

    def _inverse(self, fed: Federation, at: Snapshot) -> Tensor:
        theta = linear_or_refuse(fed, "this").coefficients(at.models)
        root = whitening_of(fed, theta[0], weights=self.weights).root
        return root @ root

    def _refined(self, fed: Federation, models: Params, replies: Answers, inverse: list[Tensor]) -> Params:
        """The mean of the models that members return, or the models after one step along their mean gradients."""
        mean = replies.value.mean(empty=tree_map(lambda old: old * 0, models) if inverse else models)
        if not inverse:
            return mean
        form, c = linear_or_refuse(fed, "this"), fed.objective.squared
        assert c is not None
        return form.parameters(form.coefficients(models) - form.coefficients(mean) / (2 * c) @ inverse[0])

    def _average(self, models: Params, refined: Params, replies: Answers) -> Params:
        """The mean over members, or over all that answered, with the model unchanged at clients outside its cluster."""
        weight, answered = replies.value.weight, replies.clients
        if self.averaging == "members":
            return refined
        whole = int(answered.sizes.sum()) if self.weights == "examples" else len(answered)
        return tree_map(
            lambda new, old: old + align_leading(weight, old).to(old) / whole * (new - old), refined, models
        )

    def _kappa(self, fed: Federation) -> float:
        """κ of the theory, which wants γ = η · max_i ‖φ(x_i)‖² / m_i < 1; above 2 local steps grow without bound."""
        curvatures = ask_again(fed.clients, fed.clients.map(curvature), lambda late: late.map(curvature))
        gamma = self.local.lr * float(curvatures.value.max())
        if self.refinement == "fedprox":
            return 1 + gamma
        if gamma >= 1 and not self.local.safe:  # `safe` shortens steps that are too long
            log.warning("lr times the largest curvature of a client is %.2f, wanted below 1: lower local.lr", gamma)
        steps = self.local.steps or 1
        left = (1 - gamma) ** steps if gamma < 1 else 0.0
        return gamma * steps / (1 - left) if gamma > 0 else 1.0


_NAMES = {"fedprox": "FedProx in closed form", "whitened": "The whitened refinement"}
