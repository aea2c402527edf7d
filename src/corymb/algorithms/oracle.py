"""Oracle: the clusters are given, and a federated algorithm runs inside each.

The most that clustering could gain: the true clusters are unknown in practice. Departures: none known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from corymb.algorithms.fedavg import FedAvg
from corymb.algorithms.fedprox import FedProx
from corymb.algorithms.fedx import FedX
from corymb.algorithms.ifca import IFCA
from corymb.algorithms.moment_descent import MomentDescent
from corymb.algorithms.parts.within import within
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.local import serve_assigned
from corymb.settings import check_types, require


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """A federated algorithm inside given clusters, such as the true ones: the most that clustering could gain."""

    groups: tuple[int, ...]
    """Each client's cluster, numbered from 0."""
    inner: FedAvg | FedProx | IFCA | FedX | MomentDescent = FedAvg()
    """What runs inside each cluster."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        check_types(self)
        found = set(self.groups)
        wanted = set(range(len(found)))
        require(found == wanted, f"groups must be numbered 0 to {len(found) - 1}, got {sorted(found)}.")

    @property
    def planned_rounds(self) -> int:
        """The inner algorithm's planned rounds."""
        return planned_rounds(self.inner)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """The inner algorithm in every cluster at once."""
        require(
            len(self.groups) == len(fed.clients),
            f"groups has {len(self.groups)} entries, the federation has {len(fed.clients)} clients: give one for each.",
        )
        nobody = torch.full((len(fed.names),), -1)
        return within(fed, fed.clients.put(nobody, torch.tensor(self.groups)), self.inner, start)
