"""k-FED: k-means at every client, and k-means of the clients' centres, in one exchange.

Dennis, Li, Smith: Heterogeneity for the Win: One-Shot Federated Clustering. ICML 2021 (its k': `centres`); Chung:
Efficient Clustering Frameworks for Federated Learning Systems. UC Berkeley 2023 (Algorithm 2, with k' = k).

Every client clusters its own examples and sends its centres; the server clusters the centres and sends back its own.
An example is in the cluster of its centre at its own client.

Departures from the paper: clients' examples are not projected before k-means, as in Algorithm 2 of the report; the
server's centres start with the farthest points and then move by 30 weighted Lloyd's iterations; a centre
of fewer than `least` examples is not sent, because the centre of one example is the example.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from corymb.algorithms.parts.points.centres import CLUSTERS, nearest_centre, space_of, start_from_centres
from corymb.algorithms.parts.points.labels import label_points, serve_points
from corymb.core.client import Client, on_client
from corymb.core.federation import Federation
from corymb.core.objective import Examples
from corymb.core.snapshot import Snapshot
from corymb.models.flows import Shift
from corymb.settings import check_types, require
from corymb.trees import Params


@on_client
def label_by_own_centres(client: Client, models: Params, on: Examples, *, prior: bool = False) -> Tensor:
    """The cluster of each example's nearest own centre, or of the nearest of all if no own centre has a cluster."""
    fallback = label_points(client, models, on)
    if CLUSTERS not in client.memory.names():
        return fallback
    return nearest_centre(client, space_of(client, models, on.x))


@dataclass(frozen=True, kw_only=True)
class KFed:
    """A cluster for every example, by k-means at the clients and once more at the server."""

    k: int
    """Number of clusters."""
    centres: int | None = None
    """Number of clusters that every client finds in its own examples; by default k."""
    least: int = 2
    """Examples that one of a client's own clusters must have for its centre to be sent."""

    serve = serve_points
    label_points = label_by_own_centres
    keeps_memory = True
    prior = False
    planned_rounds = 1
    model = "shift"
    """The model that it learns if none is given: centres, as Gaussians with covariance 1."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("k", "centres", "least"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, got {value}.")

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Both exchanges of k-FED, in one round."""
        at = start or Snapshot.fresh(fed, self.k)
        flow = getattr(fed.objective, "flow", None)
        wanted = "k-FED learns centres: its objective must be a Density of a Shift flow (model 'shift')"
        require(isinstance(flow, Shift), f"{wanted}, got {fed.objective.describe()}.")
        if at.round == 0:
            centres = start_from_centres(fed, at.models, self.k, self.centres or self.k, self.least)
            yield at.next(models=Shift.centred(centres))
