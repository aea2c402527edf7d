"""Score a snapshot at the clients. The only reader of the truth: true clusters and true parameters end here.

What each metric means is told in `docs/metrics.md`. Names say which model, which clients and which data: everything
that starts with `test_` is of the model that a client is served, on that client's own test examples.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from corymb.clustering.agreement import agreement
from corymb.core.client import Client, ClientFn, Examples, Objective, Served, Share, on_client
from corymb.core.federation import Federation, Replies, each
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.local import losses_of, scores, served_loss, served_score
from corymb.settings import InvalidInput
from corymb.trees import Params, count, take

log = logging.getLogger(__name__)
T = TypeVar("T")


class Scored(NamedTuple):
    """What a client says of the model it is served."""

    loss: Tensor
    """Mean over its training examples."""
    score: Tensor
    """Mean over its test examples; 0 where it has none."""
    tested: Tensor
    """How many test examples it has."""


@on_client
def score_served(
    client: Client, models: Params, label: Tensor, share: Tensor | None, *, serve: ClientFn[..., Params | Served]
) -> Scored:
    """The loss, on the client's training examples, and the score, on its test examples, of what it is served."""
    served = serve(client, models, label, share)
    return Scored(served_loss(client, served), served_score(client, served), client.test.weight.sum())


class Evaluation(NamedTuple):
    """A snapshot, scored."""

    metrics: dict[str, float]
    scores: Tensor
    """Each client's test score of what it is served: n, NaN where it has no test examples or gave no answer."""
    not_scored: list[str]
    """The clients whose answer could not be used, a prediction that is not finite, say. One is enough to make every
    mean over clients infinite, on the worse side: no client is left out of a mean unsaid."""
    exploded: list[str]
    """Those of them whose loss or score was not finite."""
    answered_loss: float
    """The mean training loss of those that answered."""


def evaluate(
    fed: Federation,
    algorithm: Algorithm,
    snapshot: Snapshot,
    *,
    truth: Tensor | None = None,
    true_parameters: Params | None = None,
    classes: Sequence[str] = (),
) -> dict[str, float]:
    """Every metric that can be had of a snapshot, by name. Changes nothing: neither the run nor client memory.

    `classes` are the names of examples' labels: the true clusters of an algorithm that clusters examples.
    """
    return score(fed, algorithm, snapshot, truth=truth, true_parameters=true_parameters, classes=classes).metrics


def score(
    fed: Federation,
    algorithm: Algorithm,
    snapshot: Snapshot,
    *,
    truth: Tensor | None = None,
    true_parameters: Params | None = None,
    classes: Sequence[str] = (),
) -> Evaluation:
    """As `evaluate`, with every client's own score: one question to the clients gives both."""
    replies = _ask_served(fed, score_served, algorithm, snapshot)
    rows = Scored(*(row.double().cpu() for row in replies.value))
    metrics = _test_metrics(fed.objective, rows.score[rows.tested > 0], rows.tested[rows.tested > 0])
    metrics["train_loss"] = answered_loss = float(rows.loss.mean())
    not_scored = [fed.names[place] for place in (~replies.clients.mask).nonzero().flatten().tolist()]
    if not_scored:
        metrics = {name: _worst(fed.objective, name) for name in metrics}
    if hasattr(algorithm, "label_points"):
        metrics |= point_metrics(fed, algorithm, snapshot, classes)
    elif truth is not None:
        metrics |= cluster_metrics(snapshot.labels, truth)
    if true_parameters is not None:
        metrics |= parameter_metrics(snapshot.models, true_parameters)
    nothing = torch.full((len(fed.names),), torch.nan, dtype=torch.float64)
    return Evaluation(
        metrics,
        scores=replies.clients.put(nothing, torch.where(rows.tested > 0, rows.score, torch.nan)),
        not_scored=not_scored,
        exploded=[name for name, reason in replies.rejected if "not finite" in reason],
        answered_loss=answered_loss,
    )


def clusters_in_use(labels: Tensor) -> int:
    """How many clusters have a client.

    >>> clusters_in_use(torch.tensor([3, 3, 0, -1]))
    2
    """
    return len(labels[labels >= 0].unique())


# ---- at the clients


def _ask_served(fed: Federation, fn: ClientFn[..., T], algorithm: Algorithm, snapshot: Snapshot) -> Replies[T]:
    """Ask every client a question about what it is served."""
    clients = fed.evaluation().clients
    share = None if snapshot.shares is None else each(clients.pick(snapshot.shares))
    return clients.map(fn, snapshot.models, each(clients.pick(snapshot.labels)), share, serve=algorithm.serve)


def _test_metrics(objective: Objective, scores: Tensor, tested: Tensor) -> dict[str, float]:
    if not len(scores):
        return {}
    name = objective.score_name
    worst = scores.sort(descending=not objective.higher_is_better).values[: -(-len(scores) // 10)]
    return {
        f"test_{name}": float(scores.mean()),
        f"test_{name}_examples": float((scores * tested).sum() / tested.sum()),
        f"worst_decile_{name}": float(worst.mean()),
    }


def _worst(objective: Objective, name: str) -> float:
    """The worst value that a metric can have."""
    return -math.inf if objective.higher_is_better and name != "train_loss" else math.inf


def every_loss(fed: Federation, models: Params) -> Tensor:
    """n k: the training loss of every model at every client, NaN for clients that gave none. Changes nothing."""
    replies = fed.evaluation().clients.map(losses_of, models)
    return replies.clients.put(torch.full((len(fed.names), count(models)), torch.nan), replies.value.cpu())


# ---- every example's cluster against its true one


@on_client
def count_points(
    client: Client, models: Params, *, label: ClientFn[..., Tensor], prior: bool, classes: int
) -> Share[tuple[()]]:
    """How many training and test examples are in each pair of cluster and true cluster."""
    return Share(
        {
            part: _pairs_of(label(client, models, on, prior=prior), on, count(models), classes)
            for part, on in (("train", client.train), ("test", client.test))
        },
        weight=client.train.weight.new_ones(1),
    )


def _pairs_of(labels: Tensor, on: Examples, k: int, classes: int) -> Tensor:
    cluster = labels == torch.arange(k, device=labels.device)[:, None]  # k m
    true = on.y == torch.arange(classes, device=labels.device)[:, None]
    return (cluster * on.weight) @ true.to(on.weight).mT


def point_metrics(fed: Federation, algorithm: Any, snapshot: Snapshot, classes: Sequence[str]) -> dict[str, float]:
    """How well examples' clusters agree with their classes; nothing where they have none."""
    if not classes:
        return {}
    options = {"label": algorithm.label_points, "prior": algorithm.prior, "classes": len(classes)}
    tables = fed.evaluation().clients.sum(count_points, snapshot.models, **options).value.total
    metrics = agreement(tables["train"][0].double().cpu(), classes)
    tested = tables["test"][0].double().cpu()
    return metrics | (agreement(tested, classes, "test_") if float(tested.sum()) else {})


# ---- against true clusters


def cluster_metrics(labels: Tensor, truth: Tensor) -> dict[str, float]:
    """How well labels agree with true clusters, whatever the clusters are called; a client without one is wrong."""
    labels, truth = labels.cpu(), truth.cpu()
    table = _contingency(labels, truth)[int((labels < 0).any()) :]  # the first row is that of label -1
    metrics = {"ari": adjusted_rand_index(labels, truth), "purity": float(table.max(1).values.sum()) / len(truth)}
    matched = _match(-table)
    if matched is not None:
        right = float(table[matched].sum()) / len(truth)
        metrics |= {"identity_accuracy": right, "misclustering": 1 - right}
    return metrics


def adjusted_rand_index(labels: Tensor, truth: Tensor) -> float:
    """Agreement of two groupings: 1 if they are the same, about 0 by chance. Label -1 is one more group.

    >>> adjusted_rand_index(torch.tensor([1, 1, 0, 0]), torch.tensor([0, 0, 1, 1]))
    1.0
    """
    table = _contingency(labels, truth)
    together = float(_pairs(table).sum())
    by_label, by_truth = float(_pairs(table.sum(1)).sum()), float(_pairs(table.sum(0)).sum())
    chance = by_label * by_truth / max(float(_pairs(table.sum())), 1)
    most = (by_label + by_truth) / 2
    return 1.0 if most == chance else (together - chance) / (most - chance)


def _pairs(count: Tensor) -> Tensor:
    return count * (count - 1) / 2


def _contingency(labels: Tensor, truth: Tensor) -> Tensor:
    """How many clients have each pair of label and true cluster."""
    rows, columns = (values.unique(return_inverse=True) for values in (labels, truth))
    shape = len(rows[0]), len(columns[0])
    counts = torch.bincount(rows[1] * shape[1] + columns[1], minlength=shape[0] * shape[1])
    return counts.reshape(shape).double()


# ---- against true parameters


def parameter_metrics(models: Params, truth: Params) -> dict[str, float]:
    """Euclidean distances between models and true parameters; nothing where they are of different kinds."""
    if not comparable(models, truth):
        return {}
    distance = torch.cdist(_flat(models), _flat(truth), compute_mode="donot_use_mm_for_euclid_dist")  # k models, truths
    metrics = {"parameter_error_nearest": float(distance.amin(1).mean())}
    if distance.shape[0] == distance.shape[1]:
        metrics["parameter_error_by_index"] = float(distance.diagonal().mean())
    matched = _match(distance)
    if matched is not None:
        own = distance.amin(0)  # a true cluster without a model of its own counts with the nearest
        own[torch.as_tensor(matched[1])] = distance[matched]
        metrics["parameter_error"] = float(own.max())
    return metrics


def comparable(models: Params, truth: Params) -> bool:
    """Whether models have the same parameters as the truth."""
    return set(models) == set(truth) and all(models[name].shape[1:] == truth[name].shape[1:] for name in truth)


def _flat(models: Params) -> Tensor:
    return torch.cat([models[name].double().cpu().flatten(1) for name in sorted(models)], dim=1)


def _match(cost: Tensor) -> tuple[Sequence[int], Sequence[int]] | None:
    """The cheapest one-to-one matching of rows to columns, or None where scipy is not installed."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        log.warning("scipy is not installed: metrics that match clusters to true ones are left out")
        return None
    rows, columns = linear_sum_assignment(cost.nan_to_num(posinf=1e300).numpy())
    return rows.tolist(), columns.tolist()


# ---- the test protocol of IFCA's local baseline


@on_client
def publish_served(
    client: Client, models: Params, label: Tensor, share: Tensor | None, *, serve: ClientFn[..., Params | Served]
) -> Params | Served:
    """What the client is served: its own model for a local baseline."""
    return serve(client, models, label, share)


@on_client
def right_of(client: Client, models: Params) -> Share[tuple[()]]:
    """The score of each model on the client's test examples, by their number."""
    return Share(
        {"score": scores(client, models) * client.test.weight.sum(), "tested": client.test.weight.sum()},
        weight=torch.ones(1),
    )


def local_models_on_cluster(
    fed: Federation, algorithm: Algorithm, snapshot: Snapshot, truth: Tensor, *, at_once: int = 64
) -> float:
    """Each client's model on **all** test examples of its own true cluster, mean over models: Ghosh et al. 2022."""
    view = fed.evaluation()
    own = _ask_served(fed, publish_served, algorithm, snapshot)
    if isinstance(own.value, Served):
        raise InvalidInput("Clients are served several models at once: there is none to test alone.")
    cluster_of = own.clients.pick(truth)
    means = []
    for cluster in cluster_of.unique():
        models = take(own.value, cluster_of == cluster)
        members = view.clients.where(truth == cluster)
        for first in range(0, count(models), at_once):
            sums = members.sum(right_of, take(models, slice(first, first + at_once))).value
            means.append((sums.total["score"][0] / sums.total["tested"][0]).double().cpu())
    return float(torch.cat(means).mean())
