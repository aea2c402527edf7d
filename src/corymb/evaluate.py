"""Scores a snapshot at the clients. Only this module reads the truth: true clusters and true parameters.

Metrics are defined in `docs/metrics.md`. Their names tell the model, the clients and the data: every name that starts
with `test_` is for the model that a client is served, on that client's own test examples.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.clustering.agreement import agreement
from corymb.core.client import Client, ClientFn, Examples, Objective, Served, Share, on_client
from corymb.core.federation import Cohort, Federation, each
from corymb.core.smallest import BLOCK
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.local import losses_of, scores, served_loss, served_predictions, served_score, serving
from corymb.local.reference import weighted_mean
from corymb.objectives.measures import METRICS, higher_is_better, measures_of, metric_names
from corymb.settings import InvalidInput
from corymb.trees import Params, count, take

log = logging.getLogger(__name__)


class Scored(NamedTuple):
    """A client's report on the model it is served."""

    loss: Tensor
    """The mean loss over its training examples."""
    tested: Tensor
    """The number of its test examples."""
    values: Tensor
    """Its metrics, the objective's own score first; 0 if it has no test examples."""
    trivial: Tensor
    """The metrics of the trivial prediction; empty if there is none."""
    defined: Tensor
    """Which metrics are defined for the labels of its test examples."""


@on_client
def describe_labels(client: Client) -> Share[tuple[()]]:
    """The class shares or mean target for the trivial prediction, weighted by the number of training examples."""
    measures = measures_of(client.objective)
    assert measures is not None
    return Share({"labels": measures.labels(client.train)}, weight=client.train.weight.sum().reshape(1))


@on_client
def score_served(
    client: Client,
    models: Params,
    label: Tensor,
    share: Tensor | None,
    trivial: Tensor | None,
    *,
    serve: ClientFn[..., Params | Served],
) -> Share[Scored]:
    """The served model's training loss, and its scores on the client's test examples.

    The client's own metrics are the note; statistics for metrics over all clients' examples are returned as sums only.
    """
    test, objective = _never_empty(client.test, client.train), client.objective
    served = serve(client, models, label, share)
    loss, tested = served_loss(client, served), test.weight.sum()
    measures = measures_of(objective)
    if measures is None or trivial is None:
        own = served_score(client, served, test).reshape(1)
        note = Scored(loss, tested, own, own[:0], torch.ones_like(own, dtype=torch.bool))
        return Share({"tested": tested}, weight=torch.ones(1), note=note)
    predicted = served_predictions(client, served, test)
    both = (predicted, measures.repeated(trivial.to(predicted), len(test.weight)))
    found = [measures.values(predictions, test) for predictions in both]
    own_scores = [weighted_mean(objective.grade(predictions, test), test.weight) for predictions in both]
    rest = [place for place, metric in enumerate(measures.metrics) if metric.name != objective.score_name]
    values, constant = (
        torch.cat([own.reshape(1).to(its.value), its.value[rest]]) for own, its in zip(own_scores, found, strict=True)
    )
    defined = torch.cat([torch.ones_like(found[0].defined[:1]), found[0].defined[rest]])
    sums = {"tested": tested, **measures.sums(predicted, trivial, test)}
    return Share(sums, weight=torch.ones(1), note=Scored(loss, tested, values, constant, defined))


def _never_empty(on: Examples, others: Examples) -> Examples:
    """`on`, or if it is empty one of the `others` with weight 0: not every model takes an empty batch."""
    return on if len(on.weight) else Examples(others.x[:1], others.y[:1], torch.zeros_like(others.weight[:1]))


class ByClient(NamedTuple):
    """Each client's test score of one metric: n, NaN if it has none."""

    served: Tensor
    """The score of what the client is served."""
    trivial: Tensor | None
    """The score of the trivial prediction."""


class Evaluation(NamedTuple):
    """The scores of a snapshot."""

    metrics: dict[str, float]
    scores: Tensor
    """Each client's test score of what it is served: n, NaN if it has no test examples or gave no usable reply."""
    not_scored: list[str]
    """The clients without a usable reply, for example because a prediction is not finite. A single one makes every mean
    over clients infinitely bad: no client is silently left out of a mean."""
    exploded: list[str]
    """The clients among `not_scored` whose loss or score was not finite."""
    too_large: list[str]
    """The clients among `not_scored` whose errors were out of proportion to the others'."""
    answered_loss: float
    """The mean training loss over clients with a usable reply."""
    by_client: dict[str, ByClient]
    """Every metric at every client, by the metric's name."""
    losses: Tensor
    """Each client's training loss of what it is served: n, NaN if it gave no usable reply."""
    points: list[int] | None = None
    """The number of training examples in each cluster, if the algorithm clusters examples."""


def evaluate(
    fed: Federation,
    algorithm: Algorithm,
    snapshot: Snapshot,
    *,
    truth: Tensor | None = None,
    true_parameters: Params | None = None,
    classes: Sequence[str] = (),
) -> dict[str, float]:
    """Every metric that can be computed for a snapshot, by name. Changes neither the run nor client memory.

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
    trivial: Tensor | None = None,
    classes: Sequence[str] = (),
) -> Evaluation:
    """Like `evaluate`, with every client's own scores: one call to the clients gives both.

    `trivial` is the result of `trivial_prediction`, which is the same for a whole run; it is computed if not given.
    """
    trivial = trivial_prediction(fed) if trivial is None else trivial
    clients = fed.evaluation().clients
    serve = serving(algorithm.serve, clients.pick(snapshot.labels))
    replies = clients.sum(score_served, *_served_to(clients, snapshot), trivial, serve=serve)
    rows = Scored(*(row.cpu() if row.dtype == torch.bool else row.double().cpu() for row in replies.value.note))
    sums = {name: total[0].double().cpu() for name, total in replies.value.total.items()}
    metrics = _test_metrics(fed.objective, rows, sums, None if trivial is None else trivial.double().cpu())
    metrics["train_loss"] = answered_loss = float(rows.loss.mean())
    not_scored = [fed.names[place] for place in (~replies.clients.mask).nonzero().flatten().tolist()]
    if not_scored:
        metrics = {name: _worst(fed.objective, name) for name in metrics}
    points = count_all(fed, algorithm, snapshot, classes) if hasattr(algorithm, "label_points") else None
    if points is not None:
        metrics |= points.metrics
    elif truth is not None and bool((snapshot.labels >= 0).any()):  # `alone` makes no clusters
        metrics |= cluster_metrics(snapshot.labels, truth)
    if true_parameters is not None:
        metrics |= parameter_metrics(snapshot.models, true_parameters)
    by_client = _by_client(fed, replies.clients, rows)
    return Evaluation(
        metrics,
        scores=by_client[fed.objective.score_name].served,
        not_scored=not_scored,
        exploded=[name for name, reason in replies.rejected if "not finite" in reason],
        too_large=[name for name, reason in replies.rejected if "as long as" in reason],
        answered_loss=answered_loss,
        by_client=by_client,
        losses=replies.clients.put(torch.full((len(fed.names),), torch.nan, dtype=torch.float64), rows.loss),
        points=None if points is None else points.sizes,
    )


def trivial_prediction(fed: Federation) -> Tensor | None:
    """The best constant prediction, from the labels of all clients' training examples; None for custom objectives.

    For classes it is the share of each (which predicts the most frequent class); for numbers, their mean.
    """
    measures = measures_of(fed.objective)
    if measures is None:
        return None
    sums = fed.evaluation().clients.sum(describe_labels).value
    return measures.trivial(sums.total["labels"][0] / sums.weight[0].clamp_min(1))


def clusters_in_use(labels: Tensor) -> int:
    """The number of clusters that have a client.

    >>> clusters_in_use(torch.tensor([3, 3, 0, -1]))
    2
    """
    found = [block[block >= 0].unique() for block in labels.split(BLOCK)]  # there may be a million clients
    return len(torch.cat(found).unique()) if found else 0


# ---- at the clients


def _served_to(clients: Cohort, snapshot: Snapshot) -> tuple[Params, Tensor, Tensor | None]:
    """The arguments of calls about served models: all models, and each client's label and shares."""
    share = None if snapshot.shares is None else each(clients.pick(snapshot.shares))
    return snapshot.models, each(clients.pick(snapshot.labels)), share


def _by_client(fed: Federation, answered: Cohort, rows: Scored) -> dict[str, ByClient]:
    nothing = torch.full((len(fed.names),), torch.nan, dtype=torch.float64)

    def column(table: Tensor, place: int) -> Tensor:
        known = rows.defined[:, place] & (rows.tested > 0)
        return answered.put(nothing, torch.where(known, table[:, place], torch.nan))

    return {
        name: ByClient(column(rows.values, place), column(rows.trivial, place) if rows.trivial.shape[1] else None)
        for place, name in enumerate(metric_names(fed.objective))
    }


# ---- over clients and over examples


SERVED = ("test_{}", "test_{}_examples", "worst_decile_{}")
TRIVIAL = ("trivial_{}", "trivial_{}_examples", "trivial_worst_decile_{}")
"""The names of a metric's means over clients, over all examples, and over the worst tenth of clients."""


def _test_metrics(objective: Objective, rows: Scored, sums: Params, trivial: Tensor | None) -> dict[str, float]:
    """Every metric of what clients are served, and of the trivial prediction."""
    rows = Scored(*(row[rows.tested > 0] for row in rows))
    if not len(rows.tested):
        return {}
    names, measures = metric_names(objective), measures_of(objective)
    tables = [(SERVED, rows.values), *([(TRIVIAL, rows.trivial)] if rows.trivial.shape[1] else [])]
    pooled = [_means_over_examples(names, table, rows.tested) for _, table in tables]
    if measures is not None and trivial is not None:
        means, constant = pooled[0].copy(), pooled[1].copy()
        pooled[0] |= measures.over_examples(sums, means, constant)
        pooled[1] |= measures.over_examples(measures.if_constant(sums, trivial), constant, constant)
    metrics: dict[str, float] = {}
    for place, name in enumerate(names):
        here = rows.defined[:, place]
        for (keys, table), examples in zip(tables, pooled, strict=True):
            of_clients = {} if not here.any() else _over_clients(table[here, place], higher_is_better(objective, name))
            summary = {**of_clients, **({1: examples[name]} if name in examples else {})}
            metrics |= {keys[place].format(name): summary[place] for place in sorted(summary)}
        if not here.all():
            metrics[f"undefined_{name}"] = float((~here).sum())
    details = {name: value for name, value in pooled[0].items() if name not in names}
    return metrics | {f"test_{name}_examples": value for name, value in details.items()}


def _means_over_examples(names: Sequence[str], table: Tensor, tested: Tensor) -> dict[str, float]:
    """The means over all clients' examples, for the metrics that are means over a client's examples."""
    means = (table * tested[:, None]).sum(0) / tested.sum()
    return {
        name: float(mean)
        for place, (name, mean) in enumerate(zip(names, means, strict=True))
        if place == 0 or METRICS[name].of_examples
    }


def _over_clients(values: Tensor, larger_is_better: bool) -> dict[int, float]:
    """The mean over clients (0), and that over the worst tenth of them (2), by their indices in `SERVED`."""
    worst = values.sort(descending=not larger_is_better).values[: -(-len(values) // 10)]
    return {0: float(values.mean()), 2: float(worst.mean())}


def _worst(objective: Objective, name: str) -> float:
    """The worst value of a metric of the served models; NaN for other metrics, which are then unknown."""
    for metric in metric_names(objective):
        if name in [key.format(metric) for key in SERVED]:
            return -math.inf if higher_is_better(objective, metric) else math.inf
    return math.inf if name == "train_loss" else math.nan


def every_loss(fed: Federation, models: Params) -> Tensor:
    """The training loss of every model at every client: n k, NaN without a usable reply. Changes nothing."""
    replies = fed.evaluation().clients.map(losses_of, models)
    return replies.clients.put(torch.full((len(fed.names), count(models)), torch.nan), replies.value.cpu())


# ---- every example's cluster against its true one


@on_client
def count_points(
    client: Client, models: Params, *, label: ClientFn[..., Tensor], prior: bool, k: int, classes: int
) -> Share[tuple[()]]:
    """How many training and test examples are in each pair of cluster and true cluster (one, without classes)."""
    return Share(
        {
            part: _pairs_of(label(client, models, on, prior=prior), on, k, classes)
            for part, on in (("train", client.train), ("test", client.test))
        },
        weight=client.train.weight.new_ones(1),
    )


def _pairs_of(labels: Tensor, on: Examples, k: int, classes: int) -> Tensor:
    cluster = labels == torch.arange(k, device=labels.device)[:, None]  # k m
    true = on.y == torch.arange(classes, device=labels.device)[:, None] if classes else torch.ones_like(on.y)[None]
    return (cluster * on.weight) @ true.to(on.weight).mT


class Points(NamedTuple):
    """The examples by cluster, for an algorithm that clusters examples."""

    sizes: list[int]
    """The number of training examples in each cluster."""
    metrics: dict[str, float]
    """How well examples' clusters agree with their classes; empty if they have no classes."""


def count_all(fed: Federation, algorithm: Any, snapshot: Snapshot, classes: Sequence[str]) -> Points:
    """Count all clients' examples by cluster: only sums of counts leave the clients."""
    options = {"label": algorithm.label_points, "prior": algorithm.prior, "k": algorithm.k, "classes": len(classes)}
    tables = fed.evaluation().clients.sum(count_points, snapshot.models, **options).value.total
    trained, tested = (tables[part][0].double().cpu() for part in ("train", "test"))
    metrics = agreement(trained, classes) if classes else {}
    metrics |= agreement(tested, classes, "test_") if classes and float(tested.sum()) else {}
    return Points(trained.sum(1).long().tolist(), metrics)


# ---- against true clusters


def cluster_metrics(labels: Tensor, truth: Tensor) -> dict[str, float]:
    """How well labels agree with true clusters up to renumbering; a client without a label counts as wrong."""
    labels, truth = labels.cpu(), truth.cpu()
    table = _contingency(labels, truth)[int((labels < 0).any()) :]  # drop the row of label -1
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
    """The number of clients for each pair of label and true cluster."""
    rows, columns = (values.unique(return_inverse=True) for values in (labels, truth))
    shape = len(rows[0]), len(columns[0])
    counts = torch.bincount(rows[1] * shape[1] + columns[1], minlength=shape[0] * shape[1])
    return counts.reshape(shape).double()


# ---- against true parameters


def parameter_metrics(models: Params, truth: Params) -> dict[str, float]:
    """Euclidean distances between models and true parameters; empty if their shapes differ."""
    if not comparable(models, truth):
        return {}
    distance = torch.cdist(_flat(models), _flat(truth), compute_mode="donot_use_mm_for_euclid_dist")  # k models, truths
    metrics = {"parameter_error_nearest": float(distance.amin(1).mean())}
    if distance.shape[0] == distance.shape[1]:
        metrics["parameter_error_by_index"] = float(distance.diagonal().mean())
    matched = _match(distance)
    if matched is not None:
        own = distance.amin(0)  # a true cluster without a matching model counts with the nearest
        own[torch.as_tensor(matched[1])] = distance[matched]
        metrics["parameter_error"] = float(own.max())
    return metrics


def comparable(models: Params, truth: Params) -> bool:
    """Whether models have the same parameters as the truth."""
    return set(models) == set(truth) and all(models[name].shape[1:] == truth[name].shape[1:] for name in truth)


def _flat(models: Params) -> Tensor:
    return torch.cat([models[name].double().cpu().flatten(1) for name in sorted(models)], dim=1)


def _match(cost: Tensor) -> tuple[Sequence[int], Sequence[int]] | None:
    """The cheapest one-to-one matching of rows to columns, or None if scipy is not installed."""
    if not cost.numel():  # no client has a cluster
        return [], []
    if 1 in cost.shape:  # avoids importing scipy, which takes longer than a small run
        place = int(cost.flatten().nan_to_num(posinf=1e300).argmin())
        return ([place], [0]) if cost.shape[1] == 1 else ([0], [place])
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
    """The model or models that the client is served; for a local baseline, its own model."""
    return serve(client, models, label, share)


@on_client
def right_of(client: Client, models: Params) -> Share[tuple[()]]:
    """The score of each model on the client's test examples, weighted by their number."""
    return Share(
        {"score": scores(client, models) * client.test.weight.sum(), "tested": client.test.weight.sum()},
        weight=torch.ones(1),
    )


def local_models_on_cluster(
    fed: Federation, algorithm: Algorithm, snapshot: Snapshot, truth: Tensor, *, at_once: int = 64
) -> float:
    """Each client's model on **all** test examples of its own true cluster, mean over models: Ghosh et al. 2022."""
    view = fed.evaluation()
    own = view.clients.map(publish_served, *_served_to(view.clients, snapshot), serve=algorithm.serve)
    if isinstance(own.value, Served):
        raise InvalidInput("Clients are served mixtures of several models: this test needs one model per client.")
    cluster_of = own.clients.pick(truth)
    means = []
    for cluster in cluster_of.unique():
        models = take(own.value, cluster_of == cluster)
        members = view.clients.where(truth == cluster)
        for first in range(0, count(models), at_once):
            sums = members.sum(right_of, take(models, slice(first, first + at_once))).value
            means.append((sums.total["score"][0] / sums.total["tested"][0]).double().cpu())
    return float(torch.cat(means).mean())
