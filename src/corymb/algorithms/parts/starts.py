"""Where clustering starts from: groups by loss vectors, local models grouped once, and the number of groups itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from corymb.algorithms.fedx import linear_features
from corymb.algorithms.parts.repair import DISTINCT, regroup, silhouette_of, vectors
from corymb.algorithms.parts.work import Work, work_on_own
from corymb.clustering.grouping import group_means, k_means
from corymb.core.client import Client, on_client
from corymb.core.federation import Federation, Replies, each
from corymb.core.snapshot import Snapshot
from corymb.keys import fold
from corymb.local import Descent, descend, losses_of
from corymb.objectives.regression import LinearRegression
from corymb.trees import Params, leaves, take

log = logging.getLogger(__name__)
PROBES, MOST_CLUSTERS = 10, 10
LOSS_VECTOR_ROUNDS = 6  # three times grouping and training


@on_client
def publish_trained(client: Client, model: Params, *, alone: Descent) -> Params:
    """The client's model after training alone from a common start."""
    return descend(client, model, alone)


@on_client
def publish_minimiser(client: Client) -> Params:
    """The least-squares solution on the client's examples; of several the one of least norm."""
    features, real = linear_features(client)
    return {"weight": torch.linalg.pinv(features * real.unsqueeze(-1)) @ (client.train.y * real)}


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


def by_loss_vectors(fed: Federation, k: int, work: Work, start: Snapshot | None) -> Iterator[Snapshot]:
    """Group clients by their losses on k models, train each group's favourite, and again (CLoVE, 2026).

    On random models groups are blurred; after two turns of training they are not.
    """
    at = start or Snapshot.fresh(fed, k)
    for turn in range(at.round, LOSS_VECTOR_ROUNDS):
        if turn % 2 == 0:
            replies = fed.clients.map(losses_of, at.models)
            labels, favourites = regroup(replies.value, k, fed.key("k-means"))
            at = at.next(models=take(at.models, favourites), labels=(replies.clients, labels))
        else:
            at = train_groups(fed, at, work)
        yield at


def by_probes(fed: Federation, alone: Descent, work: Work | None, start: Snapshot | None) -> Iterator[Snapshot]:
    """Rounds that find k: a few clients' own models as probes, everybody's losses on them, and `work` in the groups."""
    at = start or Snapshot.fresh(fed, 1)
    if at.round == 0:
        probes = local_models(fed, at, alone, PROBES)
        order = fed.name_hashes[probes.clients.ids].argsort()  # whatever order the clients stand in
        at = at.next(models=take(probes.value, order))
        yield at
    if at.round == 1:
        replies = fed.clients.map(losses_of, at.models)
        k, evidence = number_of_groups(replies.value, fed)
        labels, favourites = regroup(replies.value, k, fed.key("k-means"))
        notes = {"k": k, "silhouette_by_k": evidence}
        at = at.next(models=take(at.models, favourites[:k]), labels=(replies.clients, labels), notes=notes)
        yield at
    if at.round == 2 and work is not None:
        yield train_groups(fed, at, work)


def number_of_groups(fit: Tensor, fed: Federation) -> tuple[int, dict[str, float]]:
    """The k with the best silhouette of clients' loss vectors, or 1 where none shows groups; with the evidence."""
    points = vectors(fit)
    evidence = {}
    for k in range(2, min(MOST_CLUSTERS, len(points) - 1) + 1):
        key = fold(fed.key("number of groups"), k)
        evidence[str(k)] = silhouette_of(points, k_means(points, k, key), key)
    best = max(evidence, key=lambda k: evidence[k], default="1")
    if not evidence or evidence[best] < DISTINCT:
        log.warning("clients show no clusters (best silhouette %.2f): one model for all", evidence.get(best, 0.0))
        return 1, evidence
    return int(best), evidence


def train_groups(fed: Federation, at: Snapshot, work: Work) -> Snapshot:
    """One round in which every client with a group works on that group's model."""
    cohort = fed.clients[at.labels[fed.clients.ids] >= 0]
    own = at.labels[cohort.ids]
    replies = cohort.sum(
        work_on_own, each(at.models, of=own), each(own), k=at.k, work=replace(work, averaging="models")
    )
    models = replies.value.mean(empty=at.models)
    return at.next(models=models, labels=(replies.clients, replies.value.label), notes=dict(at.notes))
