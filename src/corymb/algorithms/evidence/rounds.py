"""Rounds of training while clusters are on trial: in the clusters, in the mergers, and in one model for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from corymb.algorithms.evidence.trials import Trials
from corymb.algorithms.evidence.weighing import LossReport, choose_and_train, train_side_by_side
from corymb.algorithms.parts.work import Work
from corymb.core.federation import Cohort, NoReplies, Replies, Sums, each
from corymb.core.snapshot import Snapshot
from corymb.trees import Params, part_of, take


def choose(clients: Cohort, at: Snapshot, trials: Trials, work: Work) -> Replies[Sums[LossReport]]:
    """Ask clients to choose a cluster, train, and report the losses of all models, including mergers."""
    mergers = trials.mergers or take(at.models, slice(0, 0))
    return clients.sum(choose_and_train, at.models, mergers, trials.one, work=work, biased=trials.skewed)


def chosen(at: Snapshot, trials: Trials, replies: Replies[Sums[LossReport]]) -> Snapshot:
    """The snapshot after clients chose and trained."""
    models, one = _averaged(at, trials, [replies.value])
    fit = replies.value.note.plain_fit[:, : at.k].amin(1)
    return at.next(
        models=models,
        labels=(replies.clients, replies.value.label),
        carry=replace(trials, one=one).to_carry(),
        notes={"train_loss": float(fit.mean()), "clusters": at.k},
    )


def side_by_side(clients: Cohort, at: Snapshot, trials: Trials, work: Work) -> Snapshot:
    """Every client trains its cluster's model, the candidate merger (if on trial) and the one model for all."""
    clients = clients.where(at.labels >= 0)
    trial = trials.of_clusters(at.k)
    on_trial = torch.where(at.labels < 0, -1, trial[at.labels]) >= 0
    sums, mergers, silent = [], trials.mergers, list[NoReplies]()
    for cohort, merging in ((clients.where(on_trial), True), (clients.where(~on_trial), False)):
        if not len(cohort):
            continue
        labels = cohort.pick(at.labels)
        own, merger = each(at.models, of=labels), each(trials.mergers, of=trial[labels]) if merging else None
        try:
            reply = cohort.sum(
                train_side_by_side, own, merger, trials.one or None, each(labels), k=at.k, work=work
            ).value
        except NoReplies as problem:  # their models stay unchanged, as long as other clients answer
            silent.append(problem)
            continue
        sums.append(reply)
        if merging:
            mergers = _merged(reply, trial, trials.mergers)
    if silent and not sums:
        raise silent[0]
    models, one = _averaged(at, trials, sums)
    notes = {"clusters": at.k, "pairs": len(trials.pairs)}
    return at.next(models=models, carry=replace(trials, one=one, mergers=mergers).to_carry(), notes=notes)


def _averaged(at: Snapshot, trials: Trials, sums: Sequence[Sums[Any]]) -> tuple[Params, Params]:
    """The clusters' models and the one for all, averaged over clients."""
    weight = torch.stack([part.weight for part in sums]).sum(0)
    names = [name for name in sums[0].total if not name.startswith("merger/")]
    total = {name: torch.stack([part.total[name] for part in sums]).sum(0) for name in names}
    models = Sums(part_of(total, "own"), weight, None, ()).mean(at.models)
    if not trials.one:
        return models, {}
    everybody = {name: value.sum(0, keepdim=True) for name, value in part_of(total, "one").items()}
    before = {name: value.unsqueeze(0) for name, value in trials.one.items()}
    return models, take(Sums(everybody, weight.sum(0, keepdim=True), None, ()).mean(before), 0)


def _merged(sums: Sums[Any], trial: Tensor, before: Params) -> Params:
    """The mean of each merger over the clients of both its clusters."""
    into = (trial[None] == torch.arange(int(trial.max()) + 1)[:, None]).to(sums.weight)  # pairs k
    total = {
        name: (into.to(value) @ value.flatten(1)).reshape(len(into), *value.shape[1:])
        for name, value in part_of(sums.total, "merger").items()
    }
    return Sums(total, into @ sums.weight, None, ()).mean(before)
