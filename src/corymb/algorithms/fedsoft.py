"""FedSoft: every client's data are a mixture of k clusters.

Ruan, Joe-Wong: FedSoft: Soft Clustered Federated Learning with Proximal Local Updating. AAAI 2022. S: `k`, u_ks:
`Snapshot.shares`, σ: `floor`, τ: `every`, K: `draws`, λ: `pull`, c_s: the k models.

The importance u_ij is the share of client i's examples whose lowest loss is under model j; it is estimated again every
few rounds. Each model draws clients in proportion to it. A client that is drawn, by however many models, minimises
F_i(w) + (λ/2) Σ_j u_ij ‖w − c_j‖² once; each model becomes the mean of its draws.

Departures from the paper:

* The k proximal terms are combined into one of strength λ around the importance-weighted mean: the same except for
  Σ_j u_ij, which `floor` makes larger than 1 by at most k − 1 times itself. Local training starts at that mean.
* Clients are drawn without replacement and in proportion to u_ij; the paper's also to their examples
  (`weights="examples"`).
* A client is served all models, mixed by its importance; its label is the cluster of its largest importance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from corymb.algorithms.parts.alternate import begin
from corymb.algorithms.parts.work import Weights
from corymb.core.averaging import Aggregate, check_averaging, reduction_of
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation, each
from corymb.core.snapshot import Snapshot
from corymb.keys import fold, uniform
from corymb.local import Descent, descend_with_loss, point_losses, serve_mixture
from corymb.settings import check_types, require
from corymb.trees import Params, count


@on_client
def estimate_importance(client: Client, models: Params, *, floor: float) -> Tensor:
    """The share of the client's examples that each model fits best (ties: lowest number), at least `floor`: k."""
    k, weight = count(models), client.train.weight
    best = point_losses(client, models).argmin(0) == torch.arange(k, device=weight.device)[:, None]
    return (torch.where(best, weight, 0).sum(1) / weight.sum().clamp_min(1)).clamp_min(floor)


@on_client
def train_between(
    client: Client, models: Params, importance: Tensor, drawn: Tensor, *, local: Descent
) -> Share[Tensor]:
    """Train from the importance-weighted mean of the models, pulled towards it; the note is the loss at that mean."""
    portion = importance / importance.sum()
    centre = {name: torch.tensordot(portion.to(value), value, dims=1) for name, value in models.items()}
    value, before = descend_with_loss(client, centre, local)
    return Share(value, weight=drawn.to(client.train.weight), note=before)


@dataclass(frozen=True, kw_only=True)
class FedSoft:
    """Soft clusters: models draw clients by how much of their data they fit; clients are pulled towards all models."""

    k: int
    """Number of clusters."""
    rounds: int = 60
    """Rounds: in each, the clients drawn for a cluster train, and its model becomes the mean of theirs."""
    every: int = 2
    """Rounds from one estimate of importance to the next."""
    draws: int | None = None
    """Clients that each model draws in a round; by default n / k."""
    pull: float = 0.1
    """Strength of the pull towards the models."""
    local: Descent = Descent(lr=0.1, steps=10)
    weights: Weights = "clients"
    """Whether clients are drawn by importance alone, or by importance times number of examples."""
    floor: float = 1e-4
    """The smallest importance."""
    aggregate: Aggregate = "mean"
    """How a cluster's models are averaged: the mean, or a robust aggregate that a few bad clients cannot move."""
    clip: float | None = None
    """Updates longer than this are clipped to this length."""

    serve = serve_mixture

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("k", "rounds", "every", "draws"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, got {value}.")
        check_averaging(self)
        require(self.pull >= 0, f"pull must not be negative, got {self.pull}.")
        require(0 < self.floor < 1, f"floor must be between 0 and 1, got {self.floor}.")
        require(self.local.proximal == 0, "FedSoft takes its proximal term from pull: leave local.proximal at 0.")

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Estimate, draw, train, average."""
        at, fed = begin(fed, self.k, start), fed.averaged_by(reduction_of(self))
        for t in range(at.round, self.rounds):
            if t % self.every == 0:
                at = self._estimate(fed, at)
            assert at.shares is not None
            shares = at.shares.cpu()
            drawn = self._draw(fed, shares)  # n k
            cohort = fed.clients.where(drawn.any(1))
            local = replace(self.local.at(t), proximal=self.pull)
            rows = each(cohort.pick(shares)), each(cohort.pick(drawn))
            replies = cohort.near(at.models, by=cohort.pick(shares)).sum(train_between, at.models, *rows, local=local)
            notes = {"train_loss": float(replies.value.note.mean())}
            yield (at := at.next(models=replies.value.mean(empty=at.models), notes=notes))

    def _estimate(self, fed: Federation, at: Snapshot) -> Snapshot:
        replies = fed.clients.map(estimate_importance, at.models, floor=self.floor)
        new = replies.value.cpu()
        before = new.new_zeros(len(at.labels), at.k)
        if at.shares is not None and at.round:  # after a handover, shares belong to another algorithm
            before = at.shares.cpu()
        shares, labels = replies.clients.put((before, at.labels), (new, new.argmax(1)))
        return replace(at, shares=shares, labels=labels)

    def _draw(self, fed: Federation, shares: Tensor) -> Tensor:
        """Each model's clients, drawn without replacement in proportion to their weights (exponential races)."""
        n, k = len(fed.clients), shares.shape[1]
        weight = shares.double() * (fed.sizes[:, None] if self.weights == "examples" else 1)
        weight[~fed.clients.mask] = 0
        keys = fold(fed.key("draws"), fed.name_hashes)[:, None]
        time = -uniform(fold(keys, torch.arange(k)), dtype=torch.float64).log() / weight  # inf for weight 0
        place = time.argsort(dim=0, stable=True).argsort(dim=0)
        return (place < (self.draws or -(-n // k))) & torch.isfinite(time)
