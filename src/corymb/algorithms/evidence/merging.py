"""Finds the number of clusters: starts with too many, and merges every two that held-out examples do not keep apart.

    group     local models are grouped (Ward's method) into K_0 groups; there is also `one`, a model for all
    settle    one round within the groups, and two in which clients choose, as in IFCA; `one` is trained throughout
    weigh     all models go to the clients, which choose by training loss, train, and report held-out losses;
              each pair on trial is merged, kept apart, or tried once more; then new pairs are proposed
    train     two rounds: both models of every pair, and their merger, side by side; then weigh again
    split     when no pair is left: each cluster in two, by how training alone changes its model, as new pairs

The search ends when no split is kept, and falls back on `one` unless the clusters beat it. The resulting models are
already trained, which saves rounds later. Clients train on the examples that they do not hold out
(`corymb.local.held_out`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from corymb.algorithms.evidence.rounds import choose, chosen, side_by_side
from corymb.algorithms.evidence.trials import LossReports, Pair, Trials, judge, proposals
from corymb.algorithms.evidence.weighing import publish_change, publish_ridge, train_on_kept
from corymb.algorithms.parts.starts import rows_of
from corymb.algorithms.parts.work import Work
from corymb.clustering.grouping import group_means, ward
from corymb.core.federation import Federation, each
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, serve_assigned
from corymb.objectives.linear_form import linear_form
from corymb.trees import Params, concat, map_tensors, take, tree_map

log = logging.getLogger(__name__)
SETTLE_ROUNDS, TRAIN_ROUNDS = 3, 2
MOST_GROUPED = 1000
"""The most clients whose local models are grouped, since grouping needs n² distances. The others choose a group."""
SPLITS = 3
"""The most times that clusters are split."""


@dataclass(frozen=True, kw_only=True)
class MergeByEvidence:
    """Finds how many models clients need."""

    alone: Descent
    """How clients train the local models that are grouped."""
    work: Work
    """A client's work on a model in a round."""
    participants: int | float | None = None
    """Clients per round: a number, a fraction, or all of them."""
    groups: int = 16
    """K_0, at most half the number of clients; doubled while most groups turn out to be needed."""
    looks: int = 16
    """The most times that models are weighed."""

    serve = serve_assigned
    ends_early = True

    @property
    def planned_rounds(self) -> int:
        """An upper bound; most runs take a third of it."""
        groupings = 1
        while self._more_groups(self.groups * 2 ** (groupings - 1), MOST_GROUPED):
            groupings += 1
        return groupings * (1 + SETTLE_ROUNDS + 1) + SPLITS + (1 + TRAIN_ROUNDS) * self.looks

    def _more_groups(self, groups: int, clients: int) -> bool:
        """Whether the grouped clients are enough for twice as many groups."""
        return 2 * groups <= min(clients, MOST_GROUPED) // 2

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Group and settle, alternate between weighing and training, then split, until nothing changes."""
        steps = {"settle": self._settle, "weigh": self._weigh, "train": self._train, "split": self._split}
        at = start or Snapshot.fresh(fed, 1)
        while at.stage != "found":
            yield (at := steps.get(at.stage, self._group)(fed, at))

    def _group(self, fed: Federation, at: Snapshot) -> Snapshot:
        """Group clients by their local models into more groups than needed; models are the means, `one` that of all."""
        asked = fed.clients.sample(self.participants).sample(MOST_GROUPED).near(_zeros_like(at.models), loose=True)
        if linear_form(fed.objective) is not None:
            replies = asked.map(publish_ridge)
        else:
            replies = asked.map(train_on_kept, take(at.models, 0), alone=self.alone)
        own = replies.value
        wanted = int(at.carry.get("groups", self.groups))
        labels = ward(rows_of(own), max(1, min(wanted, len(replies.clients) // 2)))
        k = int(labels.max()) + 1
        trials = Trials(one={name: value.mean(0) for name, value in own.items()}, groups=k)
        at = at.next(
            models={name: group_means(value, labels.to(value.device), k) for name, value in own.items()},
            labels=replies.clients.put(torch.full_like(at.labels, -1), labels),
            carry=trials.to_carry(),
            notes={"clusters": k},
        )
        return replace(at, stage="settle", round=0)

    def _settle(self, fed: Federation, at: Snapshot) -> Snapshot:
        clients, trials = fed.clients.sample(self.participants), Trials.from_carry(at.carry)
        if at.round == 0:
            at = side_by_side(clients, at, trials, self.work)
        else:
            at = chosen(at, trials, choose(clients, at, trials, self.work))
        return at if at.round < SETTLE_ROUNDS else replace(at, stage="weigh", round=0)

    def _train(self, fed: Federation, at: Snapshot) -> Snapshot:
        at = side_by_side(fed.clients.sample(self.participants), at, Trials.from_carry(at.carry), self.work)
        return at if at.round < TRAIN_ROUNDS else replace(at, stage="weigh", round=0)

    def _weigh(self, fed: Federation, at: Snapshot) -> Snapshot:
        """Judge the pairs on trial, and propose others; or split, or end."""
        trials = Trials.from_carry(at.carry)
        replies = choose(fed.clients.sample(self.participants), at, trials, self.work)
        reported = LossReports.of(replies, at.k)
        trials = replace(trials, looks=trials.looks + 1, skewed=reported.skewed)
        at = chosen(at, trials, replies)
        if trials.looks == 1 and self._more_groups(trials.groups, len(replies.clients)) and reported.all_needed():
            return replace(at, stage="group", round=0, carry={"groups": torch.tensor(2 * trials.groups)})
        last = trials.looks >= self.looks
        decided = judge(at, replace(trials, one=Trials.from_carry(at.carry).one), reported, last=last)
        at, trials, reported = decided.at, decided.trials, decided.reported
        if not last:
            trials = trials.proposing(at, reported, proposals(trials, reported))
        notes = {**at.notes, "pairs": len(trials.pairs), "merged": decided.merged, "label_skew": reported.skew}
        at = replace(at, round=0, carry=trials.to_carry(), notes=notes)
        if trials.pairs:
            return replace(at, stage="train")
        if not last and trials.may_split(at.k, most=SPLITS):
            return replace(at, stage="split")
        return _found(at, trials, reported, capped=last)

    def _split(self, fed: Federation, at: Snapshot) -> Snapshot:
        """Split each cluster in two by how training alone changes its model; the halves become pairs on trial."""
        asked = fed.clients.sample(self.participants).where(at.labels >= 0).sample(MOST_GROUPED)
        loosely = asked.near(_zeros_like(at.models), loose=True)
        replies = loosely.map(publish_change, each(at.models, of=asked.pick(at.labels)), alone=self.alone)
        own = replies.clients.pick(at.labels)
        models, labels = at.models, at.labels
        pairs: list[Pair] = []
        mergers: list[Params] = []
        for cluster in range(at.k):
            members = (own == cluster).nonzero().flatten()
            change = take(replies.value, members)
            halves = ward(rows_of(change), 2)
            if not halves.any():
                continue
            new, parent = at.k + len(pairs), take(models, slice(cluster, cluster + 1))
            # The merger gets the same training as the halves; otherwise it would be worse for that reason alone.
            mergers.append(_moved(parent, change))
            first, second = (_moved(parent, take(change, halves == half)) for half in (0, 1))
            models = concat([take(models, slice(0, cluster)), first, take(models, slice(cluster + 1, None)), second])
            away = members[halves == 1]
            labels = replies.clients[away].put(labels, torch.full_like(away, new))
            pairs.append(Pair(cluster, new, 0))
        trials = Trials.from_carry(at.carry).splitting(at.k, pairs, mergers)
        at = at.next(models=models, labels=labels, carry=trials.to_carry(), notes={"clusters": at.k + len(pairs)})
        return replace(at, stage="train" if pairs else "weigh", round=0)


def search(alone: Descent) -> MergeByEvidence:
    """A search for algorithms without local training per round: a round takes a tenth of the steps of `alone`."""
    local = replace(alone, steps=max(1, (alone.steps or 10) // 10), epochs=None)
    return MergeByEvidence(alone=alone, work=Work(local=local))


def _moved(model: Params, changes: Params) -> Params:
    return tree_map(lambda old, step: old + step.mean(0, keepdim=True), model, changes)


def _found(at: Snapshot, trials: Trials, reported: LossReports, *, capped: bool) -> Snapshot:
    """The final snapshot with the evidence: the clusters, or one model if they do not beat it."""
    evidence = reported.evidence(trials)
    at = replace(at, stage="found", round=0, carry={}, notes={**at.notes, **evidence.notes(), "capped": capped})
    log.info("%s", evidence.headline())
    if evidence.pays:
        return at
    one = {name: value.unsqueeze(0) for name, value in trials.one.items()}
    if evidence.single >= 0:
        one = take(at.models, slice(evidence.single, evidence.single + 1))
    return replace(at, models=one, labels=torch.where(at.labels < 0, -1, 0))


def _zeros_like(models: Params) -> Params:
    """Zeros, for replies that start from no model and are compared only in size."""
    return map_tensors(torch.zeros_like, take(models, slice(0, 1)))
