"""Starts for clustering: groups of loss vectors, groups of local models, and how many groups there are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from corymb.algorithms.parts.linear import design
from corymb.algorithms.parts.loss_vectors import DISTINCT, regroup, silhouette_of, vectors
from corymb.algorithms.parts.work import Work, work_on_own
from corymb.clustering.grouping import group_means, k_means
from corymb.core.client import Client, on_client
from corymb.core.federation import Federation, Replies, each
from corymb.core.snapshot import Snapshot
from corymb.keys import Key, fold
from corymb.local import Descent, descend, losses_of, serve_assigned
from corymb.objectives.regression import LinearRegression
from corymb.trees import Params, leaves, take

log = logging.getLogger(__name__)
PROBES, MOST_CLUSTERS = 10, 10


@on_client
def publish_trained(client: Client, model: Params, *, alone: Descent) -> Params:
    """The client's model after training alone from a common start."""
    return descend(client, model, alone)


@on_client
def publish_minimiser(client: Client) -> Params:
    """The least-squares solution on the client's examples; of several the one of least norm."""
    x, y, _ = design(client)
    return {"weight": torch.linalg.pinv(x) @ y}


def local_models(fed: Federation, at: Snapshot, alone: Descent, some: int | None = None) -> Replies[Params]:
    """Clients' own models: a linear model's minimiser, or what training alone from a common start gives."""
    cohort = fed.clients.sample(some)
    if isinstance(fed.objective, LinearRegression):
        return cohort.map(publish_minimiser)
    return cohort.map(publish_trained, take(at.models, 0), alone=alone)


def rows_of(models: Params) -> Tensor:
    """Stacked models as rows of numbers: n d."""
    return torch.cat([leaf.flatten(1) for leaf in leaves(models)], dim=1)


def by_local_models(fed: Federation, k: int, alone: Descent, start: Snapshot | None) -> Iterator[Snapshot]:
    """One round: everybody's own model, k-means on them, and the mean of each group's models."""
    at = start or Snapshot.fresh(fed, 1)
    if at.round:
        return
    replies = local_models(fed, at, alone)
    labels = k_means(rows_of(replies.value), k, fed.key("k-means"))
    found = int(labels.max()) + 1  # fewer than k where local models coincide
    models = {name: group_means(value, labels, found) for name, value in replies.value.items()}
    yield at.next(models=models, labels=(replies.clients, labels))


@dataclass(frozen=True, kw_only=True)
class ByLossVectors:
    """Group clients by their losses on k models, train each group's favourite, and again (the idea of CLoVE, 2026).

    Groups are blurred on random models, and clear after two turns of training.
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
        labels = replies.clients.put(torch.full_like(at.labels, -1), labels)  # others' numbers mean other models now
        return at.next(models=take(at.models, favourites), labels=labels)


@dataclass(frozen=True, kw_only=True)
class ByProbes:
    """Finds k: a few clients' own models as probes, everybody's losses on them, and `work` in the groups."""

    alone: Descent
    """How the few train by themselves."""
    work: Work | None = None
    """What the groups do in a last round; None: no such round."""

    serve = serve_assigned

    @property
    def planned_rounds(self) -> int:
        """Probes, losses, work."""
        return 2 if self.work is None else 3

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """One snapshot for each of the three steps."""
        at = start or Snapshot.fresh(fed, 1)
        if at.round == 0:
            probes = local_models(fed, at, self.alone, PROBES)
            order = probes.clients.pick(fed.name_hashes).argsort()  # independent of the order of clients
            yield (at := at.next(models=take(probes.value, order)))
        if at.round == 1:
            replies = fed.clients.map(losses_of, at.models)
            names = replies.clients.pick(fed.name_hashes)
            k, evidence = number_of_groups(replies.value, fed.key("number of groups"), names)
            labels, favourites = regroup(replies.value, k, fed.key("k-means"), names)
            notes = {"k": k, "silhouette_by_k": evidence}
            at = at.next(models=take(at.models, favourites[:k]), labels=(replies.clients, labels), notes=notes)
            yield at
        if at.round == 2 and self.work is not None:
            yield train_groups(fed, at, self.work)


def number_of_groups(fit: Tensor, key: Key, names: Tensor) -> tuple[int, dict[str, float]]:
    """The k with the best silhouette of clients' loss vectors, or 1 where none shows groups; with the evidence."""
    points = vectors(fit)
    evidence = {}
    for k in range(2, min(MOST_CLUSTERS, len(points) - 1) + 1):
        mine = fold(key, k)
        evidence[str(k)] = silhouette_of(points, k_means(points, k, mine), mine, names)
    best = max(evidence, key=lambda k: evidence[k], default="1")
    if not evidence or evidence[best] < DISTINCT:
        log.warning("clients show no clusters (best silhouette %.2f): one model for all", evidence.get(best, 0.0))
        return 1, evidence
    return int(best), evidence


def train_groups(fed: Federation, at: Snapshot, work: Work) -> Snapshot:
    """One round in which every client with a group works on that group's model."""
    cohort = fed.clients.where(at.labels >= 0)
    own = cohort.pick(at.labels)
    replies = cohort.sum(
        work_on_own, each(at.models, of=own), each(own), k=at.k, work=replace(work, averaging="models")
    )
    models = replies.value.mean(empty=at.models)
    return at.next(models=models, labels=(replies.clients, replies.value.label), notes=dict(at.notes))
