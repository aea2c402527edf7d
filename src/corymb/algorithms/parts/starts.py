"""Starts for clustering: groups of loss vectors, and groups of local models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from corymb.algorithms.parts.linear import design
from corymb.algorithms.parts.loss_vectors import regroup
from corymb.algorithms.parts.work import Work, work_on_own
from corymb.clustering.grouping import group_means, k_means
from corymb.clustering.trimmed import Trimmed, trimmed_k_means
from corymb.core.client import Client, on_client
from corymb.core.federation import Cohort, Federation, Replies, TooFewReplies, each
from corymb.core.patience import ask_again_near
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, descend, losses_of, serve_assigned
from corymb.objectives.regression import LinearRegression
from corymb.trees import Params, leaves, map_tensors, take


@on_client
def publish_trained(client: Client, model: Params, *, alone: Descent) -> Params:
    """The client's model after training alone from a common start."""
    return descend(client, model, alone)


@on_client
def publish_minimiser(client: Client) -> Params:
    """The least-squares solution on the client's examples, with minimum norm if there are several."""
    x, y, _ = design(client)
    return {"weight": torch.linalg.pinv(x) @ y}


def local_models(fed: Federation, at: Snapshot, alone: Descent) -> Replies[Params]:
    """Clients' own models: the minimiser for linear regression, else the result of training from a common start."""
    first, linear = take(at.models, 0), isinstance(fed.objective, LinearRegression)

    def ask(clients: Cohort) -> Replies[Params]:
        return clients.map(publish_minimiser) if linear else clients.map(publish_trained, first, alone=alone)

    return ask_again_near(fed.clients, _starts(fed, at, 1), ask, loose=linear)


def _starts(fed: Federation, at: Snapshot, k: int) -> Params:
    """The start of local models, repeated k times: zeros for minimisers, which have none."""
    linear = isinstance(fed.objective, LinearRegression)
    first = map_tensors(torch.zeros_like, at.models) if linear else at.models
    return map_tensors(lambda leaf: leaf[:1].expand(k, *leaf.shape[1:]), first)


def rows_of(models: Params) -> Tensor:
    """Stacked models as rows of numbers: n d."""
    return torch.cat([leaf.flatten(1) for leaf in leaves(models)], dim=1)


Compare = Literal["models", "directions"]
"""What k-means compares: local models, or only their directions from the common start."""


def by_local_models(
    fed: Federation, k: int, alone: Descent, start: Snapshot | None, compare: Compare = "models"
) -> Iterator[Snapshot]:
    """One round: local models, k-means on them, and the mean (or other reduction) of each group's models."""
    at = start or Snapshot.fresh(fed, 1)
    if at.round:
        return
    replies = local_models(fed, at, alone)
    if k <= len(fed.clients) and len(replies.clients) < k:  # the driver retries the round
        raise TooFewReplies(f"{len(replies.clients)} clients gave a usable reply, wanted at least k = {k}")
    rows = rows_of(replies.value)
    if compare == "directions":
        moved = rows - rows_of(_starts(fed, at, 1)).to(rows)
        rows = moved / moved.norm(dim=1, keepdim=True).clamp_min(torch.finfo(moved.dtype).tiny)
    labels, kept = _grouped(fed, rows, k)
    found = int(labels.max()) + 1  # fewer than k if local models coincide
    if fed.reduction.by_rows:
        models = fed.reduction.within(take(replies.value, kept), labels[kept], _starts(fed, at, found))
    else:
        models = {name: group_means(value, labels, found) for name, value in replies.value.items()}
    yield at.next(models=models, labels=(replies.clients, labels))


def _grouped(fed: Federation, rows: Tensor, k: int) -> Trimmed:
    """k-means of the rows; with a robust reduction, trimmed k-means: outliers would otherwise get their own group."""
    key, reduction = fed.key("k-means"), fed.reduction
    if reduction.aggregate != "mean":
        return trimmed_k_means(rows, k, key, trim=reduction.tolerated)
    return Trimmed(k_means(rows, k, key), torch.ones(len(rows), dtype=torch.bool))


@dataclass(frozen=True, kw_only=True)
class ByLossVectors:
    """Alternate between grouping clients by their losses on k models and training each group's best model.

    The idea is that of CLoVE (2026). Groups are blurred on random models, and clear after two turns of training.
    """

    k: int
    work: Work
    participants: int | float | None = None
    """Clients that are grouped, and then trained, in a turn."""

    serve = serve_assigned
    planned_rounds = 6  # three turns of grouping and training

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Group and train by turns."""
        at = start or Snapshot.fresh(fed, self.k)
        for turn in range(at.round, self.planned_rounds):
            yield (at := self._group(fed, at) if turn % 2 == 0 else train_groups(fed, at, self.work))

    def _group(self, fed: Federation, at: Snapshot) -> Snapshot:
        replies = fed.clients.sample(self.participants).map(losses_of, at.models)
        names = replies.clients.pick(fed.name_hashes)
        labels, favourites = regroup(replies.value, self.k, fed.key("k-means"), names)
        # Other clients lose their labels, since models are renumbered.
        labels = replies.clients.put(torch.full_like(at.labels, -1), labels)
        return at.next(models=take(at.models, favourites), labels=labels)


def train_groups(fed: Federation, at: Snapshot, work: Work) -> Snapshot:
    """One round in which every client with a group works on that group's model."""
    cohort = fed.clients.where(at.labels >= 0)
    own = cohort.pick(at.labels)
    replies = cohort.near(at.models).sum(
        work_on_own, each(at.models, of=own), each(own), k=at.k, work=replace(work, averaging="models")
    )
    models = replies.value.mean(empty=at.models)
    return at.next(models=models, labels=(replies.clients, replies.value.label), notes=dict(at.notes))
