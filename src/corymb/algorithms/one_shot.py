"""One-shot clustering: local models once, k-means on them, then a federated algorithm inside each cluster.

Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in a Heterogeneous Environment (2019), as 000's Algorithm 1 and
004's baseline have it. Every client sends the minimiser of its own loss.

Departures from the paper: for networks the minimiser is replaced by `alone`, descent from one common start; a linear
model is solved exactly (the solution of least norm where a client has fewer examples than features).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from corymb.algorithms.fedavg import FedAvg
from corymb.algorithms.fedprox import FedProx
from corymb.algorithms.fedx import linear_features
from corymb.algorithms.ifca import IFCA
from corymb.algorithms.within import within
from corymb.client import Client, on_client
from corymb.federation import Federation
from corymb.grouping import group_means, k_means
from corymb.local import Descent, descend, serve_assigned
from corymb.objectives.regression import LinearRegression
from corymb.settings import require
from corymb.snapshot import Snapshot, stages
from corymb.trees import Params, leaves, take


@on_client
def publish_trained(client: Client, model: Params, *, alone: Descent) -> Params:
    """The client's model after training alone from a common start."""
    return descend(client, model, alone)


@on_client
def publish_minimiser(client: Client) -> Params:
    """The least-squares solution on the client's examples; of several the one of least norm."""
    features, real = linear_features(client)
    return {"weight": torch.linalg.pinv(features * real.unsqueeze(-1)) @ (client.train.y * real)}


@dataclass(frozen=True, kw_only=True)
class OneShot:
    """Clusters from one exchange of local models."""

    k: int
    alone: Descent = Descent(lr=0.1, steps=100)
    """How clients train by themselves, where their minimiser has no closed form."""
    inner: FedAvg | FedProx | IFCA = FedAvg()
    """What runs inside each cluster."""
    starts: int = 10
    """Starts of k-means; the best is kept."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        require(self.k >= 1, f"k must be at least 1, got {self.k}.")
        require(self.starts >= 1, f"starts must be at least 1, got {self.starts}.")

    @property
    def planned_rounds(self) -> int:
        """One exchange, then the inner algorithm's."""
        return 1 + self.inner.planned_rounds

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Cluster once, then train."""
        return stages(fed, start, cluster=self._cluster, train=self._train)

    def _cluster(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        at = start or Snapshot.fresh(fed, 1)
        if at.round:
            return
        if isinstance(fed.objective, LinearRegression):
            replies = fed.clients.map(publish_minimiser)
        else:
            replies = fed.clients.map(publish_trained, take(at.models, 0), alone=self.alone)
        rows = torch.cat([leaf.flatten(1) for leaf in leaves(replies.value)], dim=1)
        labels = k_means(rows, self.k, starts=self.starts, key=fed.key("k-means"))
        found = int(labels.max()) + 1  # fewer than k where local models coincide
        models = {name: group_means(value, labels, found) for name, value in replies.value.items()}
        yield at.next(models=models, labels=(replies.clients, labels))

    def _train(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        assert start is not None  # the clusters come from the stage before
        groups = start.carry.get("groups", start.labels)
        for at in within(fed, groups, self.inner, start):
            yield replace(at, carry={**at.carry, "groups": groups})
