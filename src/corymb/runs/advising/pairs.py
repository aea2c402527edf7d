"""Two ways to serve clients, compared client by client on the same held-out examples, and the test of the difference.

A client tells the means of both losses and scores, and how much the differences vary between its examples; no example
leaves it.
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
"""The judge where no metric was named."""


class Told(NamedTuple):
    """What a client says of the model that it is served (first) and of another one (second)."""

    number: Tensor
    """How many held-out examples it has."""
    loss: Tensor  # 2
    score: Tensor  # 2
    spread: Tensor
    """2: the variance of the differences between examples, in loss and in score."""


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
) -> Told:
    """Compares the client's served model with that of another run, on the same held-out examples."""
    ours, theirs = _one(serve(client, models, label, share)), serve_assigned(client, others, other, None)
    held, objective = client.test, client.objective
    losses = point_losses(client, stack([ours, theirs]), on=held)
    said = [served_predictions(client, params, held) for params in (ours, theirs)]
    scores = torch.stack([objective.grade(predictions, held) for predictions in said]).to(losses)
    spread = torch.stack([_variance(values[0] - values[1], held.weight) for values in (losses, scores)])
    return Told(held.weight.sum(), _mean(losses, held.weight), _mean(scores, held.weight), spread)


@on_client
def held_out_loss(
    client: Client, models: Params, label: Tensor, share: Tensor | None, *, serve: ClientFn[..., Params | Served]
) -> HeldOut:
    """The loss of the client's served model on its held-out examples."""
    held = client.test
    return HeldOut(loss(client, _one(serve(client, models, label, share)), held), held.weight.sum())


def _one(served: Params | Served) -> Params:
    assert not isinstance(served, Served)  # no way that is tried serves mixtures
    return served


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return torch.where(weight > 0, values, 0) @ (weight / weight.sum().clamp_min(1))


def _variance(values: Tensor, weight: Tensor) -> Tensor:
    number = weight.sum()
    square = _mean((values - _mean(values, weight)).square(), weight)
    return square * number / (number - 1).clamp_min(1)


@dataclass(frozen=True)
class Way:
    """A way to serve clients: a run's last snapshot, and its clients with what they remember."""

    algorithm: Algorithm
    fed: Federation
    at: Snapshot

    def loss(self) -> float:
        """The mean over clients of their held-out losses; infinite where one could not be had."""
        clients = self.fed.evaluation().clients
        label = each(clients.pick(self.at.labels))
        replies = clients.map(held_out_loss, self.at.models, label, None, serve=self.algorithm.serve)
        there = replies.value.number > 0
        return float(replies.value.loss[there].double().mean()) if not replies.rejected else math.inf

    def metric(self, name: str) -> Tensor:
        """A metric of every client, n; NaN where it is not defined."""
        return score(self.fed, self.algorithm, self.at).by_client[name].served.double().cpu()


class Paired(NamedTuple):
    """Two ways at every client, n rows: ours first, theirs second. No examples, no answer: number 0."""

    number: Tensor
    loss: Tensor
    score: Tensor
    spread: Tensor
    metric: Tensor
    """The metric that was named, where it is another one than the objective's score; else NaN."""

    def gain(self, judge: Judge) -> Difference:
        """How much better ours is, by a judge: tested over clients."""
        if judge.name == LOSS or judge.of_objective:
            column, values = (0, self.loss) if judge.name == LOSS else (1, self.score)
            apart = judge.better(values[:, 0], values[:, 1])
            return difference(apart, self.spread[:, column], self.number, judge.base(values[:, 1]))
        return _over_clients(judge.better(*self.metric.mT), judge.base(self.metric[:, 1]))

    def values(self, judge: Judge) -> tuple[float, float]:
        """The means over clients of ours and of theirs."""
        values = self.loss if judge.name == LOSS else self.score if judge.of_objective else self.metric
        known = values[(self.number > 0) & values.isfinite().all(1)]
        return float(known[:, 0].mean()), float(known[:, 1].mean())


class Judge(NamedTuple):
    """What decides: the held-out loss, or a metric."""

    name: str
    higher: bool
    """Whether more is better."""
    of_objective: bool
    """Whether it is the objective's own score, of which clients tell the variance between examples."""

    @staticmethod
    def named(name: str | None, objective: object) -> Judge:
        """The metric of that name; the loss, where there is none."""
        if name is None:
            return Judge(LOSS, higher=False, of_objective=False)
        own = getattr(objective, "score_name", None) == name
        return Judge(name, higher_is_better(objective, name), own)  # type: ignore[arg-type]

    def better(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """How much better ours is."""
        return ours - theirs if self.higher else theirs - ours

    def base(self, theirs: Tensor) -> Tensor:
        """What gains are shares of: of a loss or an error, all of it; of a score of at most 1, what is missing."""
        if not self.higher:
            return theirs
        return 1 - theirs if self.name in METRICS else theirs.abs()


def compare(ours: Way, theirs: Way, metric: str | None) -> Paired:
    """Ask ours's clients about both; theirs must be served by cluster, so that its models can be sent."""
    clients, at = ours.fed.evaluation().clients, ours.at
    labels = (each(clients.pick(at.labels)), each(clients.pick(theirs.at.labels)))
    replies = clients.map(
        compare_served, at.models, labels[0], None, theirs.at.models, labels[1], serve=ours.algorithm.serve
    )
    n = len(ours.fed.names)
    told = [replies.clients.put(_zeros(n, row), row.double().cpu()) for row in replies.value]
    values = torch.full((n, 2), torch.nan, dtype=torch.float64)
    if metric is not None and metric != ours.fed.objective.score_name:
        values = torch.stack([way.metric(metric) for way in (ours, theirs)], dim=1)
    return Paired._make([*told, values])


def combined(pairs: Sequence[Paired]) -> Paired:
    """The same comparison with several seeds: each client's means over those in which it answered.

    Held-out examples of several splits overlap, so a client is taken to know no more than from one of them.
    """
    there = torch.stack([pair.number > 0 for pair in pairs]).double()
    weight = there / there.sum(0).clamp_min(1)
    means = [torch.einsum("sn,sn...->n...", weight, torch.stack(rows)) for rows in list(zip(*pairs, strict=True))[:4]]
    return Paired._make([*means, torch.stack([pair.metric for pair in pairs]).nanmean(0)])


def _zeros(n: int, like: Tensor) -> Tensor:
    return torch.zeros(n, *like.shape[1:], dtype=torch.float64)


def _over_clients(apart: Tensor, base: Tensor) -> Difference:
    """A t-test over clients, for metrics that are no means over examples: every client counts alike."""
    from scipy.stats import t as student

    known = apart.isfinite() & base.isfinite()
    apart, base = apart[known], base[known]
    n = len(apart)
    if n < 2:
        return NONE
    mean, error = float(apart.mean()), float(apart.std() / math.sqrt(n))
    p = float(student.sf(mean / error, n - 1)) if error else 0.5 if mean == 0 else float(mean < 0)
    return Difference(mean, error, p, mean / max(float(base.mean()), 1e-12), n, float((apart > 0).double().mean()))
