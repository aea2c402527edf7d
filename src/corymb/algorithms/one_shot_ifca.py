"""ONE_SHOT-IFCA: IFCA that starts from SR-FCA's first clusters.

A baseline of Vardhan, Ghosh, Mazumdar: An Improved Federated Clustering Algorithm with Model-based Clustering (TMLR
2024), to see whether a good start alone is enough for IFCA. ONE_SHOT finds the clusters and their number; IFCA's models
start as the means of the members' own models.

Departures from the paper: `repair`, on by default as in `IFCA`; the paper's baseline has it off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from corymb.algorithms.ifca import IFCA
from corymb.algorithms.parts.then import Then
from corymb.algorithms.parts.work import Weights
from corymb.algorithms.sr_fca import SRFCA
from corymb.core.averaging import Aggregate
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.local import Descent, serve_assigned
from corymb.settings import check_types


@dataclass(frozen=True, kw_only=True)
class OneShotIFCA:
    """SR-FCA's ONE_SHOT, then IFCA from the clusters that it found; finds their number."""

    threshold: float | Literal["gap"] = "gap"
    """λ: clients at most this far apart belong together; `gap` finds it from the distances."""
    least: int = 2
    """Clusters have at least this many clients."""
    alone: Descent = Descent(lr=0.1, steps=100)
    """How clients train alone."""
    distance: str = "losses"
    """Cross-losses (`losses`), or ℓq of the parameters: `l2`, `l1`, `linf`, ..."""
    components: Literal["graph", "pivot"] = "graph"
    rounds: int = 60
    """Rounds of IFCA; finding the clusters of its start takes additional rounds."""
    local: Descent = Descent(lr=0.1, steps=10)
    weights: Weights = "clients"
    """Whether all clients have the same weight in IFCA's averages or are weighted by their examples."""
    participants: int | float | None = None
    """Clients per round of IFCA: a number, a fraction, or all of them."""
    aggregate: Aggregate = "mean"
    """How a cluster's models are averaged: the mean, or a robust aggregate that a few bad clients cannot move."""
    clip: float | None = None
    """Updates longer than this are clipped to this length."""
    repair: bool = True
    """Regroup clients when clusters have collapsed."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        check_types(self)
        _ = self._stages  # runs the stages' own checks

    keeps_memory = True  # ONE_SHOT's local models

    @property
    def planned_rounds(self) -> int:
        """The rounds of ONE_SHOT and of IFCA."""
        return planned_rounds(self._stages)

    @property
    def _stages(self) -> Then:
        one_shot = SRFCA(
            threshold=self.threshold,
            least=self.least,
            alone=self.alone,
            distance=self.distance,
            components=self.components,
            refinements=0,
        )
        ifca = IFCA(
            k=None,
            rounds=self.rounds,
            local=self.local,
            weights=self.weights,
            participants=self.participants,
            aggregate=self.aggregate,
            clip=self.clip,
            repair=self.repair,
        )
        return Then(first=one_shot, second=ifca, names=("one_shot", "ifca"))

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Find clusters, then let clients choose."""
        return self._stages.run(fed, start)
