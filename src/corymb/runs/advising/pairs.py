"""Paired comparison of what two runs serve clients, on the same held-out examples, with a test of the difference.

A client returns the means of both losses and scores, and the variance of the differences between its examples. No
example leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.clustering.paired import NONE, Difference, difference
from corymb.core.client import Client, ClientFn, Served, on_client
from corymb.core.federation import Federation, each
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.evaluate import score
from corymb.local import loss, point_losses, serve_assigned, served_predictions
from corymb.objectives.measures import METRICS, higher_is_better
from corymb.trees import Params, stack

LOSS = "loss"
"""The metric that decides if none is given."""


class ServedComparison(NamedTuple):
    """A client's reply on the model that it is served (first) and another one (second)."""

    number: Tensor
    """The number of held-out examples."""
    loss: Tensor  # 2
    score: Tensor  # 2
    spread: Tensor
    """The variance of the differences between examples, in loss and in score (2)."""


class HeldOut(NamedTuple):
    """How well a client is served on its held-out examples."""

    loss: Tensor
    number: Tensor


@on_client
def compare_served(
    client: Client,
    models: Params,
    label: Tensor,
    share: Tensor | None,
    others: Params,
    other: Tensor,
    *,
    serve: ClientFn[..., Params | Served],
) -> ServedComparison:
    """Compare the client's served model with that of another run on the same held-out examples."""
    ours, theirs = _one(serve(client, models, label, share)), serve_assigned(client, others, other, None)
    held, objective = client.test, client.objective
    losses = point_losses(client, stack([ours, theirs]), on=held)
    predicted = [served_predictions(client, params, held) for params in (ours, theirs)]
    scores = torch.stack([objective.grade(predictions, held) for predictions in predicted]).to(losses)
    spread = torch.stack([_variance(values[0] - values[1], held.weight) for values in (losses, scores)])
    return ServedComparison(held.weight.sum(), _mean(losses, held.weight), _mean(scores, held.weight), spread)


@on_client
def held_out_loss(
    client: Client, models: Params, label: Tensor, share: Tensor | None, *, serve: ClientFn[..., Params | Served]
) -> HeldOut:
    """The loss of the client's served model on its held-out examples."""
    held = client.test
    return HeldOut(loss(client, _one(serve(client, models, label, share)), held), held.weight.sum())


def _one(served: Params | Served) -> Params:
    assert not isinstance(served, Served)  # no candidate serves mixtures
    return served


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return torch.where(weight > 0, values, 0) @ (weight / weight.sum().clamp_min(1))


def _variance(values: Tensor, weight: Tensor) -> Tensor:
    number = weight.sum()
    square = _mean((values - _mean(values, weight)).square(), weight)
    return square * number / (number - 1).clamp_min(1)


@dataclass(frozen=True)
class Serving:
    """What clients are served: a run's last snapshot, and its clients with their memory."""

    algorithm: Algorithm
    fed: Federation
    at: Snapshot

    def loss(self) -> float:
        """The mean held-out loss over clients; infinite if a client's is missing."""
        clients = self.fed.evaluation().clients
        label = each(clients.pick(self.at.labels))
        replies = clients.map(held_out_loss, self.at.models, label, None, serve=self.algorithm.serve)
        present = replies.value.number > 0
        return float(replies.value.loss[present].double().mean()) if not replies.rejected else math.inf

    def metric(self, name: str) -> Tensor:
        """A metric of every client (n); NaN where it is undefined."""
        return score(self.fed, self.algorithm, self.at).by_client[name].served.double().cpu()


class Paired(NamedTuple):
    """Two servings at every client (n rows), ours first. `number` is 0 for a client without a reply."""

    number: Tensor
    loss: Tensor
    score: Tensor
    spread: Tensor
    metric: Tensor
    """The metric given by the user, if it differs from the objective's score; else NaN."""

    def gain(self, judge: Judge) -> Difference:
        """How much better ours is by a metric, tested over clients."""
        if judge.name == LOSS or judge.of_objective:
            column, values = (0, self.loss) if judge.name == LOSS else (1, self.score)
            gains = judge.better(values[:, 0], values[:, 1])
            return difference(gains, self.spread[:, column], self.number, judge.base(values[:, 1]))
        return _over_clients(judge.better(*self.metric.mT), judge.base(self.metric[:, 1]))

    def values(self, judge: Judge) -> tuple[float, float]:
        """The means over clients of ours and theirs."""
        values = self.loss if judge.name == LOSS else self.score if judge.of_objective else self.metric
        known = values[(self.number > 0) & values.isfinite().all(1)]
        return float(known[:, 0].mean()), float(known[:, 1].mean())


class Judge(NamedTuple):
    """The criterion that decides: the held-out loss, or a metric."""

    name: str
    higher: bool
    """Whether higher is better."""
    of_objective: bool
    """Whether it is the objective's own score, whose variance between examples the clients return."""

    @staticmethod
    def named(name: str | None, objective: object) -> Judge:
        """The judge for a metric's name, or the loss for None."""
        if name is None:
            return Judge(LOSS, higher=False, of_objective=False)
        own = getattr(objective, "score_name", None) == name
        return Judge(name, higher_is_better(objective, name), own)  # type: ignore[arg-type]

    def better(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """How much better ours is."""
        return ours - theirs if self.higher else theirs - ours

    def base(self, theirs: Tensor) -> Tensor:
        """The reference for relative gains: a loss or error itself; for a score of at most 1, its distance from 1."""
        if not self.higher:
            return theirs
        return 1 - theirs if self.name in METRICS else theirs.abs()


def compare(ours: Serving, theirs: Serving, metric: str | None) -> Paired:
    """Compare both at the clients of `ours`; `theirs` must be served by cluster, so that its models can be sent."""
    clients, at = ours.fed.evaluation().clients, ours.at
    labels = (each(clients.pick(at.labels)), each(clients.pick(theirs.at.labels)))
    replies = clients.map(
        compare_served, at.models, labels[0], None, theirs.at.models, labels[1], serve=ours.algorithm.serve
    )
    n = len(ours.fed.names)
    rows = [replies.clients.put(_zeros(n, row), row.double().cpu()) for row in replies.value]
    values = torch.full((n, 2), torch.nan, dtype=torch.float64)
    if metric is not None and metric != ours.fed.objective.score_name:
        values = torch.stack([serving.metric(metric) for serving in (ours, theirs)], dim=1)
    return Paired._make([*rows, values])


def combined(pairs: Sequence[Paired]) -> Paired:
    """Combine a comparison over seeds: each client's means over the seeds in which it replied.

    Held-out examples of different splits overlap, so a client counts with the information of a single split.
    """
    present = torch.stack([pair.number > 0 for pair in pairs]).double()
    weight = present / present.sum(0).clamp_min(1)
    means = [torch.einsum("sn,sn...->n...", weight, torch.stack(rows)) for rows in list(zip(*pairs, strict=True))[:4]]
    return Paired._make([*means, torch.stack([pair.metric for pair in pairs]).nanmean(0)])


def _zeros(n: int, like: Tensor) -> Tensor:
    return torch.zeros(n, *like.shape[1:], dtype=torch.float64)


def _over_clients(gains: Tensor, base: Tensor) -> Difference:
    """A t-test over equally weighted clients, for metrics that are not means over examples."""
    from scipy.stats import t as student

    known = gains.isfinite() & base.isfinite()
    gains, base = gains[known], base[known]
    n = len(gains)
    if n < 2:
        return NONE
    mean, error = float(gains.mean()), float(gains.std() / math.sqrt(n))
    p = float(student.sf(mean / error, n - 1)) if error else 0.5 if mean == 0 else float(mean < 0)
    return Difference(mean, error, p, mean / max(float(base.mean()), 1e-12), n, float((gains > 0).double().mean()))
