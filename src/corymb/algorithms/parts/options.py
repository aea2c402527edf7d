"""Combines IFCA's options beyond Algorithm 2, which are implemented in separate modules.

`restarts`, `init` and k = "auto" are wrappers around it; `saving` and `repair` decide which clients are asked for what,
and inspect each finished round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from corymb.algorithms.evidence.merging import MergeByEvidence
from corymb.algorithms.local_kmeans import LocalKMeans
from corymb.algorithms.moment_descent import MomentDescent
from corymb.algorithms.parts import repair
from corymb.algorithms.parts.alternate import Answers
from corymb.algorithms.parts.restarts import Restarts
from corymb.algorithms.parts.saving import sightings
from corymb.algorithms.parts.starts import ByLossVectors
from corymb.algorithms.parts.then import Then
from corymb.algorithms.parts.work import Work, warn_of_long_step
from corymb.algorithms.privately.rounds import check_private
from corymb.core.federation import Cohort, Federation
from corymb.core.snapshot import Algorithm, Snapshot

if TYPE_CHECKING:
    from corymb.algorithms.ifca import IFCA

Init = Literal["random", "loss-vectors", "one-shot", "moment-descent"] | MomentDescent


def check_options(ifca: IFCA) -> None:
    """Refuse options that privacy does not account for, if privacy is on."""
    used = {
        "saving": ifca.saving is not None,
        "soft": ifca.soft is not None,
        "restarts": ifca.restarts > 1,
        "k='auto'": ifca.k == "auto",
        "init": ifca.init != "random",
    }
    check_private(ifca, used)


def wrapped(ifca: IFCA) -> Restarts | Then | None:
    """IFCA inside the wrapper that one of its settings asks for; None if none does."""
    if ifca.restarts > 1:
        return Restarts(inner=replace(ifca, restarts=1), times=ifca.restarts)
    first = start_of(ifca)
    if first is None:
        return None
    return Then(first=first, second=replace(ifca, k=None, init="random"), names=("start", ifca.last_stage))


def start_of(ifca: IFCA) -> Algorithm | None:
    """The algorithm that finds IFCA's initial models; None for random ones."""
    work = Work(local=ifca.local, weights=ifca.weights)
    if ifca.k == "auto":
        return MergeByEvidence(alone=ifca.alone, work=work, participants=ifca.participants)
    if ifca.init == "random" or ifca.k is None:
        return None
    if ifca.init == "one-shot":
        return LocalKMeans(k=ifca.k, alone=ifca.alone, aggregate=ifca.aggregate, clip=ifca.clip)
    if isinstance(ifca.init, MomentDescent):
        return replace(ifca.init, k=ifca.k, then=None)
    if ifca.init == "moment-descent":
        return MomentDescent(k=ifca.k, then=None)
    return ByLossVectors(k=ifca.k, work=work, participants=ifca.participants)


def participants_of(ifca: IFCA, fed: Federation, at: Snapshot, t: int) -> tuple[Cohort, bool]:
    """The participants of round t, and whether each is sent only the model of its own cluster."""
    if (groups := repair.regrouped(fed, at, ifca.participants)) is not None:
        return groups, True
    settled = ifca.saving is not None and ifca.saving.settled(at, t)
    return fed.clients.sample(ifca.participants), settled


def after_round(ifca: IFCA, fed: Federation, before: Snapshot, at: Snapshot, replies: Answers) -> Snapshot:
    """The snapshot of a round with the state of `saving` and `repair`, regrouped if clusters have collapsed."""
    carry = sightings(before, replies) if ifca.saving else {}
    if ifca.averaging == "gradients":
        carry |= warn_of_long_step(fed, before, ifca.step(fed, before.round), replies.value)
    at = replace(at, carry=carry)
    if not ifca.repair or at.k == 1 or ifca.soft is not None:
        return at
    return repair.watch(fed, before, at, replies, left=ifca.rounds - at.round)
