"""Local-KMeans: local models once, k-means on them, and the mean of each cluster's models; no further training.

A baseline of Vardhan, Ghosh, Mazumdar (TMLR 2024), who name Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in
a Heterogeneous Environment (2019). It is `OneShot` without what follows the clustering.

Departures from the paper: all clients train from one common start. In the authors' code every client draws its own, and
the mean of networks with different starts is no better than chance, as their table shows. `finish` is None, as in the
paper; with it, this is `OneShot`. That is the default on tables, where the mean of models that are fitted to few
examples fits no client well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from corymb.algorithms.evidence.merging import search
from corymb.algorithms.fedavg import FedAvg
from corymb.algorithms.fedprox import FedProx
from corymb.algorithms.parts.starts import Compare, by_local_models
from corymb.algorithms.parts.then import Run, stages
from corymb.algorithms.parts.within import trained_on
from corymb.core.averaging import Aggregate, check_averaging, reduction_of
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.local import Descent, serve_assigned
from corymb.settings import check_types, require


@dataclass(frozen=True, kw_only=True)
class LocalKMeans:
    """k-means on local models, in one exchange; a cluster's model is the mean of its members' models."""

    k: int | Literal["auto"]
    """Number of clusters; `auto` finds it with held-out examples, in many more rounds."""
    alone: Descent = Descent(lr=0.1, steps=100)
    """How clients train alone, if their minimiser has no closed form."""
    compare: Compare = "models"
    """Compare local models by distance, or only by direction: a client with few, unusual examples may move very far."""
    finish: FedAvg | FedProx | None = None
    """The algorithm that continues to train the clusters' models."""
    aggregate: Aggregate = "mean"
    """How a cluster's local models are averaged: the mean, or a robust aggregate that a few bad clients cannot move."""
    clip: float | None = None
    """Local models farther than this from their start are pulled back to this distance."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        check_types(self)
        require(self.k == "auto" or self.k >= 1, f"k must be at least 1 or 'auto', got {self.k}.")
        check_averaging(self)

    @property
    def planned_rounds(self) -> int:
        """One exchange, plus the rounds that find k (if "auto") and those of `finish`."""
        finding = planned_rounds(search(self.alone)) if self.k == "auto" else 0
        return finding + 1 + (planned_rounds(self.finish) if self.finish else 0)

    @property
    def ends_early(self) -> bool:
        """The number of rounds in the search for k is not known in advance."""
        return self.k == "auto"

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Train alone, group, average."""
        if self.k != "auto" and self.finish is None:
            return by_local_models(fed.averaged_by(reduction_of(self)), self.k, self.alone, start, self.compare)
        return stages(fed, start, **self._stages)

    @property
    def _stages(self) -> dict[str, Run]:
        runs: dict[str, Run] = {"find": search(self.alone).run} if self.k == "auto" else {}
        runs["average"] = self._average
        return runs if self.finish is None else {**runs, "finish": self._train}

    def _average(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        k = start.k if self.k == "auto" and start is not None else self.k
        assert k != "auto"  # the search replaces it by the number of models found
        return by_local_models(fed.averaged_by(reduction_of(self)), k, self.alone, start, self.compare)

    def _train(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        assert self.finish is not None
        return trained_on(fed, self.finish, start)
