"""Runs an algorithm inside each of several given clusters, all in step, round by round."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from corymb.core.federation import Cohort, Federation, NoReplies
from corymb.core.snapshot import Algorithm, Snapshot, planned_rounds
from corymb.settings import InvalidInput
from corymb.trees import concat, count, take

log = logging.getLogger(__name__)


def within(fed: Federation, groups: Tensor, inner: Algorithm, start: Snapshot | None) -> Iterator[Snapshot]:
    """Run `inner` in every group of clients; their models are concatenated.

    `groups` has the group of each of the federation's n clients, from 0; clients of group -1 take no part. Groups that
    end sooner keep their last snapshot. A group in which no client answers keeps its model for a round, as long as
    other groups do answer.
    """
    members = [fed.clients.where(groups == group) for group in range(int(groups.max()) + 1)]
    at = _cut(start, members) if start else [None] * len(members)
    runs = [inner.run(fed.only(cohort), begin) for cohort, begin in zip(members, at, strict=True)]
    while True:
        news, silent = _next_of_each(runs)
        if not any(news) and not silent:
            return
        for group, problem in silent.items():
            others = [new for new in news if new is not None]
            if not others or not _only_rounds(inner):
                raise problem  # the round is abandoned
            before = at[group] or Snapshot.fresh(fed.only(members[group]), others[0].k)
            log.warning("cluster %d keeps its model for a round: %s", group, problem)
            news[group] = replace(before, round=before.round + 1, notes={})
            runs[group] = inner.run(fed.only(members[group]), news[group])
        at = [new or old for new, old in zip(news, at, strict=True)]
        yield _join(at, members)


def _next_of_each(runs: list[Iterator[Snapshot]]) -> tuple[list[Snapshot | None], dict[int, NoReplies]]:
    """The next snapshot of each run (None if it has ended), and the errors of runs in which no client answered."""
    news: list[Snapshot | None] = []
    silent: dict[int, NoReplies] = {}
    for group, run in enumerate(runs):
        try:
            news.append(next(run, None))
        except NoReplies as problem:
            news.append(None)
            silent[group] = problem
    return news, silent


def _only_rounds(inner: Algorithm) -> bool:
    """Whether all rounds of an algorithm are alike, so that one may be skipped: no stages, restarts or search."""
    return planned_rounds(inner) == getattr(inner, "rounds", None)


def trained_on(fed: Federation, inner: Algorithm, start: Snapshot | None) -> Iterator[Snapshot]:
    """Run `inner` in every cluster of `start`; the clusters are kept in the carry under `groups`."""
    assert start is not None  # the clusters come from the stage before
    groups = start.carry.get("groups", start.labels)
    for at in within(fed, groups, inner, start):
        yield replace(at, carry={**at.carry, "groups": groups})


def _join(parts: list[Snapshot | None], members: list[Cohort]) -> Snapshot:
    """One snapshot of all groups; each group's own round and carry are stored in the carry under its number."""
    done = [part for part in parts if part is not None]
    labels, first = torch.full_like(done[0].labels, -1), 0
    carry: dict[str, Tensor] = {}
    for group, (part, cohort) in enumerate(zip(done, members, strict=True)):
        own = cohort.pick(part.labels)
        labels = cohort.put(labels, torch.where(own < 0, own, own + first))
        first += part.k
        carry |= {f"{group}/{name}": value for name, value in part.carry.items()}
        carry[f"{group}/models"] = torch.tensor(part.k)
        carry[f"{group}/round"] = torch.tensor(part.round)
    noted = [(part, cohort) for part, cohort in zip(done, members, strict=True) if "train_loss" in part.notes]
    losses = [part.notes["train_loss"] for part, _ in noted]
    sizes = torch.tensor([len(cohort) for _, cohort in noted], dtype=torch.float64)
    notes = {"train_loss": float(torch.tensor(losses, dtype=torch.float64) @ sizes / sizes.sum())} if losses else {}
    stages = [part.stage for part in done]
    return replace(
        max(done, key=lambda part: part.round),
        models=concat([part.models for part in done]),
        labels=labels,
        shares=_join_shares(done, members),
        stage=stages[0] if len(set(stages)) == 1 else "|".join(stages),
        carry=carry,
        notes=notes,
    )


def _join_shares(parts: list[Snapshot], members: list[Cohort]) -> Tensor | None:
    """The shares of all clients in the models of all groups; 0 for models of other groups."""
    rows = []
    for part, cohort in zip(parts, members, strict=True):
        if part.shares is None:
            return None
        rows.append(torch.where(cohort.mask.to(part.shares.device)[:, None], part.shares, 0))
    return torch.cat(rows, dim=1)


def _cut(at: Snapshot, members: list[Cohort]) -> list[Snapshot | None]:
    """Split a joint snapshot into the groups' own; after a handover it has one model for each group."""
    parts: list[Snapshot | None] = []
    first, stages = 0, at.stage.split("|") if "|" in at.stage else [at.stage] * len(members)
    for group, (cohort, stage) in enumerate(zip(members, stages, strict=True)):
        k = int(at.carry.get(f"{group}/models", 1))
        own = cohort.pick(at.labels)
        carry = {
            name.removeprefix(f"{group}/"): value
            for name, value in at.carry.items()
            if name.startswith(f"{group}/") and name not in (f"{group}/models", f"{group}/round")
        }
        part = replace(
            at,
            models=take(at.models, slice(first, first + k)),
            labels=cohort.put(torch.full_like(at.labels, -1), torch.where(own < 0, own, own - first)),
            shares=None if at.shares is None else at.shares[:, first : first + k],
            stage=stage,
            round=int(at.carry.get(f"{group}/round", at.round)),
            carry=carry,
        )
        parts.append(part)
        first += k
    if first != count(at.models):
        raise InvalidInput(
            f"The start has {count(at.models)} models for {len(members)} groups: give one for each group."
        )
    return parts
