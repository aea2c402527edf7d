"""FedProx: FedAvg with a term that keeps clients near the model they were sent.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020. μ: `mu`.

Departures from the paper: local work is a fixed number of steps, not a γ-inexact solution; all clients have the
same weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from corymb.algorithms.fedavg import FedAvg
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.settings import require


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """One model for all clients; local training minimises F_i(θ) + (μ/2)·‖θ − θ_sent‖²."""

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mu >= 0, f"mu must not be negative, got {self.mu}.")
        require(self.local.proximal == 0, "FedProx takes its proximal term from mu: leave local.proximal at 0.")

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """FedAvg with the proximal term."""
        plain = FedAvg(**{field.name: getattr(self, field.name) for field in fields(FedAvg)})
        return replace(plain, local=replace(self.local, proximal=self.mu)).run(fed, start)
