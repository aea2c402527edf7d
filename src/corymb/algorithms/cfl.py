"""CFL, clustered federated learning by splitting.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints. IEEE Transactions on Neural Networks and Learning Systems 2021. ε_1: `settled`, ε_2: `apart`.

FedAvg for everybody at first. Where a cluster's mean update has become short while some member's own is still long, the
members pull in different directions: the cluster is split in two by the cosine similarity of their updates, and each
half goes on from its model. Clients keep their updates; only the sum and their lengths leave them, until a split.

Departures from the paper:

* The split is complete linkage on the cosine distance, as in public implementations; the paper's own minimises the
  largest similarity across.
* No check that the split is clean enough (the paper's γ_max).
* Members that did not answer in the round of a split go with the larger half.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.clustering.grouping import complete_linkage
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation, Replies, Sums, each
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, descend, loss, one_hot, serve_assigned
from corymb.settings import require
from corymb.trees import Params, add, concat, count, leaves, map_tensors, take


class Said(NamedTuple):
    """What a client says of its update."""

    length: Tensor
    loss: Tensor
    """Of the model it was sent."""


@on_client
def train_and_keep_update(client: Client, model: Params, label: Tensor, *, k: int, local: Descent) -> Share[Said]:
    """The difference that training makes to the cluster's model; kept at home as well."""
    update = add(descend(client, model, local), model, alpha=-1.0)
    client.memory.set("update", update)
    length = torch.stack([value.square().sum() for value in update.values()]).sum().sqrt()
    return Share(update, weight=one_hot(label, k), label=label, note=Said(length, loss(client, model)))


@on_client
def publish_update(client: Client) -> Params:
    """The update of this round."""
    update: Params = client.memory.get("update")
    return update


@dataclass(frozen=True, kw_only=True)
class CFL:
    """FedAvg that splits clusters whose members pull in different directions. Their number is found."""

    settled: float = 0.4
    """Split where the mean update is shorter than this, ..."""
    apart: float = 1.6
    """... and some member's is longer than that."""
    rounds: int = 60
    local: Descent = Descent(lr=0.1, steps=10)
    least: int = 3
    """The smallest cluster that may be split."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        require(self.settled > 0, f"settled must be positive, got {self.settled}.")
        require(self.apart > 0, f"apart must be positive, got {self.apart}.")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")
        require(self.least >= 3, f"least must be at least 3, got {self.least}.")

    @property
    def planned_rounds(self) -> int:
        """One snapshot a round; a split's updates are fetched in the round that asks for it."""
        return self.rounds

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Train in clusters and split them, round after round."""
        at = start or Snapshot.fresh(fed, 1)
        at = replace(at, labels=at.labels.clamp_min(0))
        for t in range(at.round, self.rounds):
            own = at.labels[fed.clients.ids]
            replies = fed.clients.sum(
                train_and_keep_update, each(at.models, of=own), each(own), k=at.k, local=self.local.at(t)
            )
            mean = replies.value.mean(empty=map_tensors(torch.zeros_like, at.models))
            due, notes = self._due(replies, mean)
            at = at.next(models=add(at.models, mean), notes=notes)
            yield (at := self._split(at, replies, due) if due else at)

    def _due(self, replies: Replies[Sums[Said]], mean: Params) -> tuple[list[int], dict[str, object]]:
        """The clusters to be split."""
        label, said = replies.value.label, replies.value.note
        assert label is not None
        k = len(replies.value.weight)
        means = torch.stack([value.reshape(k, -1).square().sum(1) for value in mean.values()]).sum(0).sqrt().tolist()
        longest = [float(said.length[label == c].amax()) if (label == c).any() else 0.0 for c in range(k)]
        large = [int((label == c).sum()) >= self.least for c in range(k)]
        due = [c for c in range(k) if large[c] and means[c] < self.settled and longest[c] > self.apart]
        notes = {"train_loss": float(said.loss.mean()), "clusters": k, "mean_update": means, "longest_update": longest}
        return due, notes | {"split": due}

    def _split(self, at: Snapshot, replies: Replies[Sums[Said]], due: list[int]) -> Snapshot:
        """Cut each of these clusters in two; one part keeps the number, both keep the model."""
        member = torch.isin(at.labels[replies.clients.ids], torch.tensor(due))
        updates = replies.clients[member].map(publish_update)
        rows = torch.cat([leaf.flatten(1) for leaf in leaves(updates.value)], dim=1).double().cpu()
        directions = rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        labels, models, before = at.labels.clone(), at.models, at.labels[updates.clients.ids]
        for c in due:
            ids = updates.clients.ids[before == c]  # places in the matrix are not the clients' own
            # On the unit sphere Euclidean distance rises with cosine distance: complete linkage is the same.
            second = complete_linkage(directions[before == c], most=2).labels == 1
            rest = second.double().mean() > 0.5
            labels[at.labels == c] = torch.where(rest, count(models), c)
            labels[ids] = torch.where(second, count(models), c)
            models = concat([models, take(at.models, slice(c, c + 1))])
        return replace(at, models=models, labels=labels)
