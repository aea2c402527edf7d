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

import torch
from torch import Tensor

from corymb.core.client import Client, Share, Shares, on_client
from corymb.core.federation import Cohort, Federation
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, descend, losses, one_hot, serve_assigned
from corymb.objectives.regression import LinearRegression
from corymb.settings import InvalidInput, require
from corymb.trees import Params, count, stack, take, tree_map

log = logging.getLogger(__name__)
Refinement = Literal["fedavg", "fedprox"]
Weights = Literal["examples", "clients"]


@on_client
def choose_and_refine(
    client: Client, models: Params, *, local: Descent, refinement: Refinement, weights: Weights
) -> Share[Tensor]:
    """The model that fits best, refined; with its loss before that as the note."""
    fit = losses(client, models)
    label = fit.argmin()
    weight = one_hot(label, count(models)) * _size(client, weights)
    return Share(_refine(client, take(models, label), local, refinement), weight=weight, label=label, note=fit[label])


@on_client
def weigh_and_refine(
    client: Client, models: Params, *, local: Descent, refinement: Refinement, weights: Weights, temperature: float
) -> Shares[tuple[Tensor, Tensor]]:
    """Every model, refined, by how likely it is to be the client's; with the least loss and the λ as notes."""
    fit = losses(client, models)
    likely = torch.softmax(-fit * _size(client, "examples") / temperature, 0)
    refined = stack([_refine(client, take(models, j), local, refinement) for j in range(count(models))])
    return Shares(refined, weight=likely * _size(client, weights), label=fit.argmin(), note=(fit.min(), likely))


@on_client
def curvature(client: Client) -> Tensor:
    """‖φ(x)‖² / m, the largest eigenvalue of the client's second moment of features."""
    x, real = linear_features(client)
    norm: Tensor = torch.linalg.matrix_norm(torch.where(real[:, None], x, 0), 2)
    return norm.square() / real.sum().clamp_min(1)


def linear_features(client: Client) -> tuple[Tensor, Tensor]:
    """φ(x) of the client's training examples (m d), and which rows are not padding (m)."""
    objective = client.objective
    assert isinstance(objective, LinearRegression)
    x = client.train.x if objective.features is None else objective.features(client.train.x)
    return x, client.train.weight > 0


def _size(client: Client, weights: Weights) -> Tensor:
    m = (client.train.weight > 0).sum()
    return m if weights == "examples" else torch.ones_like(m)


def _refine(client: Client, model: Params, local: Descent, refinement: Refinement) -> Params:
    if refinement == "fedprox":
        return _proximal(client, model, local.lr)
    objective = client.objective
    twice = getattr(objective, "squared", False) and not getattr(objective, "half", False)  # the paper's loss
    return descend(client, model, replace(local, lr=local.lr / 2) if twice else local)


def _proximal(client: Client, model: Params, lr: float) -> Params:
    """argmin of ‖y − xθ‖² / 2m + ‖θ − θ_old‖² / 2η: θ_old − c xᵀ (I + c x xᵀ)⁻¹ (x θ_old − y), where c = η / m."""
    x, real = linear_features(client)
    c = lr / real.sum().clamp_min(1).to(x.dtype)
    x = torch.where(real[:, None], x, 0)
    residual = torch.where(real, x @ model["weight"] - client.train.y, 0)
    m, d = x.shape
    if m <= d:
        step = x.mT @ torch.linalg.solve(torch.eye(m).to(x) + c * (x @ x.mT), residual)
    else:
        step = torch.linalg.solve(torch.eye(d).to(x) + c * (x.mT @ x), x.mT @ residual)
    return {"weight": model["weight"] - c * step}


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

    @property
    def planned_rounds(self) -> int:
        """One snapshot a round."""
        return self.rounds

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Choose, refine and average, round after round."""
        at = start or self._fresh(fed)
        linear = isinstance(fed.objective, LinearRegression)
        require(linear or self.refinement == "fedavg", _NOT_LINEAR)
        for t in range(at.round, self.rounds):
            if t == 0 and linear:
                self._check_step(fed)
            yield (at := self._round(fed.clients.sample(self.participants), at, self.local.at(t)))

    def _fresh(self, fed: Federation) -> Snapshot:
        if self.k is None:
            raise InvalidInput("FedX has no models to start from and no k: give k, or start it from another's result.")
        return Snapshot.fresh(fed, self.k)

    def _round(self, clients: Cohort, at: Snapshot, local: Descent) -> Snapshot:
        of, weights, shares = self.refinement, self.weights, None
        if self.assignment == "hard":
            hard = clients.sum(choose_and_refine, at.models, local=local, refinement=of, weights=weights)
            mean, weight, label, loss = hard.value.mean(empty=at.models), *hard.value[1:]
            answered = hard.clients
        else:
            soft = clients.sum(
                weigh_and_refine,
                at.models,
                local=local,
                refinement=of,
                weights=weights,
                temperature=self.temperature,
            )
            mean, weight, label, (loss, likely) = soft.value.mean(empty=at.models), *soft.value[1:]
            answered = soft.clients
            before = likely.new_zeros(len(at.labels), at.k) if at.shares is None else at.shares
            shares = before.index_copy(0, answered.ids.to(likely.device), likely)
        if self.averaging == "all":
            whole = int(answered.sizes.sum()) if weights == "examples" else len(answered)
            mean = tree_map(lambda new, old: old + _led(weight, old) / whole * (new - old), mean, at.models)
        notes = {"train_loss": float(loss.mean())}
        return at.next(models=mean, labels=(answered, label), shares=shares, notes=notes)

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
