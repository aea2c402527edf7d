"""IFCA's friendly settings as wrappers: `restarts`, `init` and k = "auto" are built here and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from corymb.algorithms.local_kmeans import LocalKMeans
from corymb.algorithms.moment_descent import MomentDescent
from corymb.algorithms.parts.restarts import Restarts
from corymb.algorithms.parts.starts import ByLossVectors, ByProbes
from corymb.algorithms.parts.then import Then
from corymb.algorithms.parts.work import Work
from corymb.core.snapshot import Algorithm

if TYPE_CHECKING:
    from corymb.algorithms.ifca import IFCA

Init = Literal["random", "loss-vectors", "one-shot", "moment-descent"]


def wrapped(ifca: IFCA) -> Restarts | Then | None:
    """The algorithm inside the wrapper that one of its settings asks for; None where no setting does."""
    if ifca.restarts > 1:
        return Restarts(inner=replace(ifca, restarts=1), times=ifca.restarts)
    first = start_of(ifca)
    if first is None:
        return None
    return Then(first=first, second=replace(ifca, k=None, init="random"), names=("start", "rounds"))


def start_of(ifca: IFCA) -> Algorithm | None:
    """What finds the models that IFCA starts from; None for random ones."""
    work = Work(local=ifca.local, weights=ifca.weights)
    if ifca.k == "auto":
        return ByProbes(alone=ifca.alone, work=work)
    if ifca.init == "random" or ifca.k is None:
        return None
    if ifca.init == "one-shot":
        return LocalKMeans(k=ifca.k, alone=ifca.alone)
    if ifca.init == "moment-descent":
        return MomentDescent(k=ifca.k, then=None)
    return ByLossVectors(k=ifca.k, work=work, participants=ifca.participants)
