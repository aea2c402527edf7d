"""FedProx: FedAvg whose clients are held near the model they were sent.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020. μ: `mu`.

Departures from the paper: local work is a fixed number of steps, not a γ-inexact solution; clients count alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from corymb.algorithms.fedavg import FedAvg
from corymb.algorithms.parts.work import Weights
from corymb.core.averaging import Aggregate, check_averaging
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, serve_assigned
from corymb.settings import require


@dataclass(frozen=True, kw_only=True)
class FedProx:
    """One model for everybody; local training minimises F_i(θ) + (μ/2)·‖θ − θ_sent‖²."""

    aggregate: Aggregate = "mean"
    """How clients' models are averaged: the mean, or a reduction that a few bad clients cannot move."""
    clip: float | None = None
    """Updates longer than this are shortened to it."""
    mu: float = 0.1
    rounds: int = 60
    local: Descent = Descent(lr=0.1, steps=10)
    weights: Weights = "clients"
    """Whether clients count alike or by their examples."""
    participants: int | float | None = None
    """Clients a round: a number, a fraction, or all of them."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"mu must not be negative, got {self.mu}.")
        require(self.local.proximal == 0, "Give FedProx its pull as mu, not as local.proximal.")
        check_averaging(self)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """FedAvg with the proximal term."""
        local = replace(self.local, proximal=self.mu)
        inner = FedAvg(
            rounds=self.rounds,
            local=local,
            weights=self.weights,
            participants=self.participants,
            aggregate=self.aggregate,
            clip=self.clip,
        )
        return inner.run(fed, start)
