"""CFL, clustered federated learning by splitting.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints. IEEE Transactions on Neural Networks and Learning Systems 2021. ε_1: `settled`, ε_2: `apart`,
γ_max: `gamma_max`.

It starts as FedAvg for all clients. When a cluster's mean update has become short while some member's own is still
long, the members pull in different directions. The cluster is cut in two by the cosine similarity of their updates, so
that the largest similarity across the cut, α_cross, is as small as possible; if √((1 − α_cross) / 2) > γ_max, the
halves continue as separate clusters from the same model. Clients keep their updates: only the sum, weighted by their
numbers of examples, and their lengths are sent, until a cluster may be split.

Departures from the paper:

* If several cuts are equally good up to rounding, none is made: the updates do not say which is right.
* Members that did not answer in the round of a split go with the larger half.
* `accept="evidence"`: a clean cut is not enough for a split. Both halves, and the whole cluster as well, train for two
  rounds without their held-out examples, which then decide (`corymb.algorithms.evidence`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.evidence.merging import TRAIN_ROUNDS
from corymb.algorithms.evidence.rounds import side_by_side
from corymb.algorithms.evidence.trials import LossReports, Pair, Trials, judge
from corymb.algorithms.evidence.weighing import report_losses
from corymb.algorithms.parts.work import Work
from corymb.clustering.thresholds import single_linkage, threshold_groups
from corymb.core.averaging import Aggregate, check_averaging, reduction_of
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation, NoReplies, Replies, Sums, each
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, descend_with_loss, one_hot, serve_assigned
from corymb.settings import check_types, require
from corymb.trees import Params, add, concat, count, leaves, map_tensors, take

log = logging.getLogger(__name__)
WAIT = 10
"""Rounds until a cluster that was not split is tried again."""
BLOCK = 2**22
"""Entries of all clients' updates in a block of coordinates."""
TIE = 1e-12
"""Similarities that differ by less are equal up to rounding."""


class Update(NamedTuple):
    """A client's report on its update."""

    length: Tensor
    loss: Tensor
    """The loss of the model it was sent."""


@on_client
def train_and_keep_update(client: Client, model: Params, label: Tensor, *, k: int, local: Descent) -> Share[Update]:
    """The update of the cluster's model by local training; the client keeps a copy."""
    trained, before = descend_with_loss(client, model, local)
    update = add(trained, model, alpha=-1.0)
    client.memory.set("update", update)
    length = torch.stack([value.square().sum() for value in update.values()]).sum().sqrt()
    weight = one_hot(label, k) * client.train.weight.sum()
    return Share(update, weight=weight, label=label, note=Update(length, before))


@on_client
def publish_update(client: Client) -> Params:
    """The update of this round."""
    update: Params = client.memory.get("update")
    return update


@dataclass(frozen=True, kw_only=True)
class CFL:
    """FedAvg that splits clusters whose members pull in different directions; finds the number of clusters."""

    settled: float = 0.4
    """Split a cluster if its mean update is shorter than this, ..."""
    apart: float = 1.6
    """... and some member's update is longer than this."""
    rounds: int = 60
    """Total rounds, before and after splits."""
    local: Descent = Descent(lr=0.1, steps=10)
    least: int = 3
    """The smallest cluster that may be split."""
    gamma_max: float = 0.0
    """A split must be this clean: √((1 − α_cross) / 2) above it, where α_cross is the largest similarity across."""
    accept: Literal["gamma", "evidence"] = "gamma"
    """What a split must pass: only γ_max, or also a test on held-out examples."""
    aggregate: Aggregate = "mean"
    """How a cluster's updates are averaged: the mean, or a robust aggregate that a few bad clients cannot move."""
    clip: float | None = None
    """Updates longer than this are clipped to this length."""

    serve = serve_assigned
    keeps_memory = True

    def __post_init__(self) -> None:
        check_types(self)
        check_averaging(self)
        require(self.settled > 0, f"settled must be positive, got {self.settled}.")
        require(self.apart > 0, f"apart must be positive, got {self.apart}.")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")
        require(self.least >= 3, f"least must be at least 3, got {self.least}.")
        require(0 <= self.gamma_max < 1, f"gamma_max must be at least 0 and below 1, got {self.gamma_max}.")

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Train in clusters and split them, round after round."""
        at, fed = start or Snapshot.fresh(fed, 1), fed.averaged_by(reduction_of(self))
        at = replace(at, labels=at.labels.clamp_min(0))
        for t in range(at.round, self.rounds):
            if at.stage == "trial":
                yield (at := self._tried(fed, at))
                continue
            own = fed.clients.pick(at.labels)
            still = map_tensors(torch.zeros_like, at.models)  # clients send updates, so replies are near zero
            replies = fed.clients.near(still).sum(
                train_and_keep_update, each(at.models, of=own), each(own), k=at.k, local=self.local.at(t)
            )
            mean = replies.value.mean(empty=still)
            due, notes = self._due(replies, mean)
            at = at.next(models=add(at.models, mean), notes=notes)
            due = [c for c in due if self._may_try(at, c)] if self.accept == "evidence" else due
            yield (at := self._split(fed, at, replies, due) if due else at)

    def _may_try(self, at: Snapshot, cluster: int) -> bool:
        """Whether enough rounds are left for a trial, and these clients' last trial was not too recent."""
        tried = at.carry["tried"][at.labels == cluster] if "tried" in at.carry else torch.tensor([-WAIT])
        return at.round + TRAIN_ROUNDS + 1 <= self.rounds and at.round - int(tried.max()) >= WAIT

    def _tried(self, fed: Federation, at: Snapshot) -> Snapshot:
        """A round of a trial. If none of the clients on trial answers, the trial ends and the split stands."""
        try:
            return self._trial(fed, at)
        except NoReplies as problem:
            halves = torch.isin(at.labels, at.carry["halves"])
            if bool(halves.all()):
                raise
            log.warning("the trial of a split is abandoned and the split kept: %s", problem)
            tried = torch.where(halves, at.round, torch.tensor(-WAIT))
            return replace(at.next(), stage="", carry={"tried": tried}, notes={"clusters": at.k, "split": []})

    def _trial(self, fed: Federation, at: Snapshot) -> Snapshot:
        """A round of a trial: halves and whole clusters train side by side; in the last, held-out losses decide."""
        trials, halves = Trials.from_carry(at.carry), at.carry["halves"]
        members = fed.clients.where(torch.isin(at.labels, halves))
        if trials.looks < TRAIN_ROUNDS:
            trials = replace(trials, looks=trials.looks + 1)
            work = Work(local=self.local.at(at.round), weights="examples")
            at = side_by_side(members, at, trials, work)
            return replace(at, carry={**at.carry, "halves": halves})
        replies = members.map(report_losses, concat([at.models, trials.mergers]))
        decided = judge(
            at.next(),
            trials,
            LossReports.by(replies.value, replies.clients.pick(at.labels), at.k),
            last=True,
            only=halves,
        )
        tried = torch.where(torch.isin(at.labels, halves), at.round, torch.tensor(-WAIT))
        notes = {"clusters": decided.at.k, "split": [], "accepted": len(trials.pairs) - decided.merged}
        return replace(decided.at, stage="", carry={"tried": tried}, notes=notes)

    def _due(self, replies: Replies[Sums[Update]], mean: Params) -> tuple[list[int], dict[str, object]]:
        """The clusters that meet both conditions for a split, and the notes of the round."""
        label, update = replies.value.label, replies.value.note
        assert label is not None
        k = len(replies.value.weight)
        means = torch.stack([value.reshape(k, -1).square().sum(1) for value in mean.values()]).sum(0).sqrt().tolist()
        longest = [float(update.length[label == c].amax()) if (label == c).any() else 0.0 for c in range(k)]
        large = [int((label == c).sum()) >= self.least for c in range(k)]
        due = [c for c in range(k) if large[c] and means[c] < self.settled and longest[c] > self.apart]
        notes = {
            "train_loss": float(update.loss.mean()),
            "clusters": k,
            "mean_update": means,
            "longest_update": longest,
        }
        return due, notes | {"split": []}

    def _split(self, fed: Federation, at: Snapshot, replies: Replies[Sums[Update]], due: list[int]) -> Snapshot:
        """Cut these clusters in two if the cut is clean enough; one part keeps the number, both keep the model."""
        still = map_tensors(torch.zeros_like, at.models)
        members = replies.clients.where(torch.isin(at.labels, torch.tensor(due)))
        try:
            updates = members.near(still, loose=True).map(publish_update)
        except NoReplies as problem:
            if len(members) == len(fed.clients):
                raise
            log.warning("clusters %s are not split: %s", due, problem)
            return at
        labels, models, split = at.labels.clone(), at.models, []
        pairs: list[Pair] = []
        for c in due:
            member = updates.clients.pick(at.labels) == c
            clients = updates.clients[member]  # translates rows of the similarity matrix to clients
            cut = bipartition(cosines(updates.value, member), clients.pick(fed.name_hashes))
            if cut is None or math.sqrt(max(0.0, 1 - cut.across) / 2) <= self.gamma_max:
                continue
            rest = cut.second.double().mean() > 0.5
            labels[at.labels == c] = torch.where(rest, count(models), c)
            labels = clients.put(labels, torch.where(cut.second, count(models), c))
            pairs.append(Pair(c, count(models), 0))
            models = concat([models, take(at.models, slice(c, c + 1))])
            split.append(c)
        at = replace(at, models=models, labels=labels, notes={**at.notes, "split": split})
        if self.accept == "gamma" or not split:
            return at
        trials = Trials(pairs=tuple(pairs), mergers=take(models, torch.tensor(split)))
        halves = torch.tensor([cluster for pair in pairs for cluster in (pair.a, pair.b)])
        return replace(at, stage="trial", carry={**trials.to_carry(), "halves": halves})


def cosines(updates: Params, which: Tensor) -> Tensor:
    """The cosine similarities between some of the updates, in double precision but block by block of coordinates: n n.

    A copy of all updates in double precision would take twice the memory of the updates themselves.
    """
    places = which.nonzero().flatten()
    products = torch.zeros(len(places), len(places), dtype=torch.float64)
    for leaf in leaves(updates):
        for block in leaf.reshape(len(leaf), -1).split(max(1, BLOCK // len(leaf)), dim=1):
            rows = block[places.to(block.device)].double().cpu()
            products.addmm_(rows, rows.T)
    length = products.diagonal().sqrt().clamp_min(torch.finfo(products.dtype).tiny)
    return products / length[:, None] / length


class Cut(NamedTuple):
    """A cluster cut in two parts."""

    second: Tensor  # n: a mask of the second part
    across: float  # the largest similarity between members of different parts


def bipartition(similarity: Tensor, order: Tensor) -> Cut | None:
    """The cut whose largest similarity across is smallest; None if several are equally good.

    Single linkage on 1 − similarity solves this exactly: its last merge is the cut. The first part has the client that
    comes first in `order`, n numbers.
    """
    heights = [0.0, *(merge.height for merge in single_linkage(1 - similarity))]
    if len(heights) < 2 or heights[-1] - heights[-2] <= TIE:
        return None
    labels = threshold_groups(1 - similarity, (heights[-1] + heights[-2]) / 2, order=order)
    return Cut(labels == 1, 1 - heights[-1])
