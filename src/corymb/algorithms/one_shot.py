"""One-shot clustering: local models once, k-means on them, then a federated algorithm inside each cluster.

Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in a Heterogeneous Environment (2019); also Algorithm 1 of
Ghosh, Chung, Yin, Ramchandran (IEEE Transactions on Information Theory 2022) and a baseline of Su, Xu, Yang (NeurIPS
2022). Every client sends the minimiser of its own loss.

Departures from the paper: for networks the minimiser is replaced by `alone`, descent from one common start; a linear
model is solved exactly (the minimum-norm solution if a client has fewer examples than features).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from corymb.algorithms.evidence.merging import search
from corymb.algorithms.fedavg import FedAvg
from corymb.algorithms.fedprox import FedProx
from corymb.algorithms.fedx import FedX
from corymb.algorithms.ifca import IFCA
from corymb.algorithms.moment_descent import MomentDescent
from corymb.algorithms.parts.starts import Compare, by_local_models
from corymb.algorithms.parts.then import stages
from corymb.algorithms.parts.within import trained_on
from corymb.core.averaging import reduction_of
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.local import Descent, serve_assigned
from corymb.settings import check_types, require


@dataclass(frozen=True, kw_only=True)
class OneShot:
    """Clusters clients once, by k-means on their local models, then trains a model inside each cluster."""

    k: int | Literal["auto"]
    """Number of clusters; `auto` finds it with held-out examples, in many rounds instead of one."""
    alone: Descent = Descent(lr=0.1, steps=100)
    """How clients train alone, if their minimiser has no closed form."""
    compare: Compare = "models"
    """Compare local models by distance, or only by direction: a client with few, unusual examples may move very far."""
    inner: FedAvg | FedProx | IFCA | FedX | MomentDescent = FedAvg()
    """What runs inside each cluster."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        check_types(self)
        require(self.k == "auto" or self.k >= 1, f"k must be at least 1 or 'auto', got {self.k}.")

    @property
    def planned_rounds(self) -> int:
        """One exchange, or the rounds that find k, then the inner algorithm's rounds."""
        return (planned_rounds(search(self.alone)) if self.k == "auto" else 1) + planned_rounds(self.inner)

    @property
    def ends_early(self) -> bool:
        """The number of rounds in the search for k is not known in advance."""
        return self.k == "auto"

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Cluster once, then train."""
        return stages(fed, start, cluster=self._cluster, train=self._train)

    def _cluster(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        if self.k == "auto":
            return search(self.alone).run(fed, start)
        if not isinstance(self.inner, MomentDescent):  # robust to the same bad clients as the inner algorithm
            fed = fed.averaged_by(reduction_of(self.inner))
        return by_local_models(fed, self.k, self.alone, start, self.compare)

    def _train(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        return trained_on(fed, self.inner, start)
