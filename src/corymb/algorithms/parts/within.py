"""An algorithm inside each of several given clusters, all of them round by round at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from corymb.core.federation import Federation
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.trees import concat, count, take


def within(fed: Federation, groups: Tensor, inner: Algorithm, start: Snapshot | None) -> Iterator[Snapshot]:
    """Run `inner` in every group of clients; models of all groups stand one after another.

    `groups` names each client's group from 0 up; clients of group -1 take no part. Groups that end sooner wait.
    """
    members = [fed.clients[groups == group] for group in range(int(groups.max()) + 1)]
    at = _cut(start, [cohort.ids for cohort in members]) if start else [None] * len(members)
    runs = [inner.run(fed.only(cohort), begin) for cohort, begin in zip(members, at, strict=True)]
    while True:
        news = [next(run, None) for run in runs]
        if not any(news):
            return
        at = [new or old for new, old in zip(news, at, strict=True)]
        yield _join(at, [cohort.ids for cohort in members], len(groups))


def _join(parts: list[Snapshot | None], ids: list[Tensor], n: int) -> Snapshot:
    """One snapshot of all groups; each group's own round, stage and carry go into the carry under its number."""
    done = [part for part in parts if part is not None]
    labels, first = torch.full((n,), -1), 0
    carry: dict[str, Tensor] = {}
    for group, (part, mine) in enumerate(zip(done, ids, strict=True)):
        own = part.labels[mine]
        labels[mine] = torch.where(own < 0, own, own + first)
        first += part.k
        carry |= {f"{group}/{name}": value for name, value in part.carry.items()}
        carry[f"{group}/models"] = torch.tensor(part.k)
        carry[f"{group}/round"] = torch.tensor(part.round)
    losses = [part.notes["train_loss"] for part in done if "train_loss" in part.notes]
    sizes = torch.tensor([len(mine) for mine in ids], dtype=torch.float64)
    notes = {"train_loss": float(torch.tensor(losses, dtype=torch.float64) @ sizes / sizes.sum())} if losses else {}
    ahead = max(done, key=lambda part: part.round)
    return replace(ahead, models=concat([p.models for p in done]), labels=labels, carry=carry, notes=notes)


def _cut(at: Snapshot, ids: list[Tensor]) -> list[Snapshot | None]:
    """The groups' own snapshots back out of a joint one; one handed over has a model a group and nothing else."""
    parts: list[Snapshot | None] = []
    first = 0
    for group, mine in enumerate(ids):
        k = int(at.carry.get(f"{group}/models", 1))
        own = at.labels[mine]
        labels = torch.full_like(at.labels, -1)
        labels[mine] = torch.where(own < 0, own, own - first)
        carry = {
            name.removeprefix(f"{group}/"): value
            for name, value in at.carry.items()
            if name.startswith(f"{group}/") and name not in (f"{group}/models", f"{group}/round")
        }
        rows = take(at.models, slice(first, first + k))
        round_of = int(at.carry.get(f"{group}/round", at.round))
        parts.append(replace(at, models=rows, labels=labels, carry=carry, round=round_of))
        first += k
    if first != count(at.models):
        raise ValueError(f"the start has {count(at.models)} models for {len(ids)} groups: give one a group")
    return parts
