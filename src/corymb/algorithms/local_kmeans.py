"""Local-KMeans: local models once, k-means on them, and the mean of each cluster's models; no further training.

A baseline of Vardhan, Ghosh, Mazumdar (TMLR 2024), who name Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in
a Heterogeneous Environment (2019). It is `OneShot` without what follows the clustering.

Departures from the paper: everybody trains from one common start. In the authors' code every client draws its own, and
the mean of networks that began apart is no better than chance, which is what their table shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from corymb.algorithms.starts import by_local_models
from corymb.federation import Federation
from corymb.local import Descent, serve_assigned
from corymb.settings import require
from corymb.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class LocalKMeans:
    """k-means of local models, in one exchange."""

    k: int
    """Clusters."""
    alone: Descent = Descent(lr=0.1, steps=100)
    """How clients train by themselves, where their minimiser has no closed form."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        require(self.k >= 1, f"k must be at least 1, got {self.k}.")

    @property
    def planned_rounds(self) -> int:
        """One exchange."""
        return 1

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Train alone, group, average."""
        return by_local_models(fed, self.k, self.alone, start)
