"""The algorithms that are tested against the laws, with settings and objectives. Add a line for a new algorithm."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch

from corymb.algorithms import (
    CFL,
    IFCA,
    SRFCA,
    UIFCA,
    Alone,
    ClusterGAN,
    FedAvg,
    FedProx,
    FedSoft,
    FedX,
    KFed,
    LocalKMeans,
    MomentDescent,
    OneShot,
    OneShotIFCA,
    Oracle,
    Restarts,
    Saving,
    Then,
)
from corymb.core.client import Objective
from corymb.core.driver import drive
from corymb.core.engine import Engine
from corymb.core.federation import Federation
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.models.adversarial import Dense
from corymb.models.flows import Affine, Flow, Projected, Shift
from corymb.objectives import Classification, Density, LinearRegression
from corymb.objectives.adversarial import ClusterGame
from corymb.privacy import Privacy
from corymb.testing.engines import DOUBLE, AnyEngine, engine_maker
from corymb.testing.keeper import Keeper
from corymb.testing.small_data import SmallData, classification, regression

SIZES = (6, 9, 12, 7, 6, 8, 10)
TRUTH = (0, 1, 0, 1, 0, 0, 1)
LINE = Descent(lr=0.05, steps=2)
BATCHES = Descent(lr=0.1, epochs=1, batch=4)


Learns = Literal["line", "classes", "points", "projections", "centres", "game"]
"""Linear regression, classification with a small network, densities (affine flows, those of two principal components,
or centres alone), or ClusterGAN."""
FLOWS: dict[Learns, Flow] = {"points": Affine(4), "projections": Projected(Affine(2), 4), "centres": Shift(4)}


class Case(NamedTuple):
    """An algorithm with its settings, and the objective it learns."""

    algorithm: Algorithm
    learns: Learns = "line"
    remembers: bool = False
    """Whether it writes client memory."""
    publishes: bool = False
    """Whether a client function deliberately returns what is in client memory."""

    def objective(self) -> Objective:
        """The objective."""
        if self.learns == "line":
            return LinearRegression(3, dtype=torch.float64)
        if self.learns in FLOWS:
            return Density(FLOWS[self.learns], dtype=torch.float64)
        if self.learns == "game":
            return ClusterGame(Dense(4, hidden=5), critic_steps=1, dtype=torch.float64)
        return Classification(Network(mlp(4, [5], 3), dtype=torch.float64), 3)

    def data(self) -> SmallData:
        """Seven clients in two clusters."""
        return (regression if self.learns == "line" else classification)(SIZES, TRUTH)

    def federation(self, engine: AnyEngine, **options: Any) -> Federation:
        """A federation on an engine that has never run."""
        return Federation(self.engine(engine), **options)

    def engine(self, engine: AnyEngine) -> Engine:
        """An engine that has never run."""
        probed = _probed(self.learns, engine)  # shared, since probing a model takes long
        return probed.open(probed.objective)


@functools.cache
def _probed(learns: Learns, engine: AnyEngine) -> Engine:
    case = Case(FedAvg(), learns)
    return engine_maker(engine)(case.objective(), case.data(), DOUBLE)


MOMENTS = MomentDescent(k=1, anchors=2, iterations=2, subspace_steps=2, points=4, min_panel=2, then=FedX(rounds=2))
ADAM = Descent(lr=0.02, steps=2, batch=3, optimiser="adam", clip_gradient=1.0)
CASES = {
    "FedAvg": Case(FedAvg(rounds=3, local=LINE)),
    "FedAvg, a few with Adam": Case(
        FedAvg(rounds=3, local=Descent(lr=0.02, epochs=1, batch=4, optimiser="adam"), participants=4), "classes"
    ),
    "FedProx": Case(FedProx(mu=0.5, rounds=3, local=LINE)),
    "Alone": Case(Alone(rounds=3, local=LINE), remembers=True),
    "Alone, the best kept": Case(
        Alone(rounds=3, local=Descent(lr=50.0, steps=2, safe=True), keep="best"), remembers=True
    ),
    "Alone, with penalties": Case(Alone(rounds=3, keep="penalised"), remembers=True),
    "Oracle": Case(Oracle(groups=TRUTH, inner=FedAvg(rounds=3, local=LINE))),
    "Oracle, IFCA inside": Case(Oracle(groups=TRUTH, inner=IFCA(k=2, rounds=2, local=LINE, saving=Saving()))),
    "one-shot": Case(OneShot(k=2, inner=FedAvg(rounds=2, local=LINE))),
    "one-shot, networks": Case(OneShot(k=2, alone=BATCHES, inner=IFCA(k=1, rounds=2, local=BATCHES)), "classes"),
    "IFCA": Case(IFCA(k=2, rounds=3, local=LINE)),
    "IFCA, gradients": Case(IFCA(k=3, rounds=3, averaging="gradients", local=Descent(lr=0.3), participants=0.6)),
    "IFCA, batches, decay": Case(
        IFCA(k=2, rounds=3, local=Descent(lr=0.2, epochs=2, batch=4, decay=0.5), participants=5), "classes"
    ),
    "IFCA, momentum": Case(IFCA(k=2, rounds=2, local=Descent(lr=0.1, steps=3, batch=4, momentum=0.9)), "classes"),
    "IFCA, by examples": Case(IFCA(k=2, rounds=3, local=LINE, weights="examples")),
    "IFCA, restarts": Case(IFCA(k=2, rounds=2, local=LINE, restarts=3)),
    "IFCA, shared layer": Case(IFCA(k=2, rounds=3, local=BATCHES, shared=("1.*",)), "classes"),
    "IFCA, saving": Case(
        IFCA(k=2, rounds=5, local=LINE, saving=Saving(stable_rounds=2, recheck_every=2), participants=6)
    ),
    "IFCA, private": Case(
        IFCA(k=2, rounds=3, local=LINE, participants=0.8, privacy=Privacy(noise=0.3, clip=1.0, least=1, secret=7))
    ),
    "IFCA, soft": Case(IFCA(k=2, rounds=3, local=LINE, soft=2.0)),
    "IFCA, three models": Case(IFCA(k=3, rounds=4, local=Descent(lr=0.01), weights="examples")),
    "IFCA, from losses": Case(IFCA(k=2, rounds=2, local=LINE, init="loss-vectors")),
    "IFCA, from one shot": Case(IFCA(k=2, rounds=2, local=LINE, init="one-shot", restarts=2)),
    "IFCA, any number": Case(IFCA(k="auto", rounds=2, local=BATCHES, alone=BATCHES), "classes"),
    "IFCA, any number of lines, a few": Case(IFCA(k="auto", rounds=2, local=LINE, alone=LINE, participants=5)),
    "moment descent": Case(
        MomentDescent(k=2, anchors=4, iterations=2, subspace_steps=2, points=4, min_panel=2, then=FedX(rounds=2))
    ),
    "moment descent, noise": Case(
        MomentDescent(
            k=2, anchors=4, points=6, min_panel=2, iterations=2, subspace_steps=2, noise=0.1, panel=5, then=None
        )
    ),
    "moment descent, svd": Case(
        MomentDescent(k=2, anchors=4, points=6, min_panel=2, iterations=2, subspace="svd", separation=2.0, then=None)
    ),
    "IFCA, soft, restarts": Case(IFCA(k=2, rounds=2, local=BATCHES, soft=1.0, restarts=2), "classes"),
    "FedX": Case(FedX(k=2, rounds=3)),
    "FedX, proximal, soft": Case(FedX(k=2, rounds=3, refinement="fedprox", assignment="soft", averaging="members")),
    "FedSoft": Case(FedSoft(k=2, rounds=4, local=LINE)),
    "CFL": Case(CFL(settled=5.0, apart=0.01, rounds=4, local=LINE), remembers=True, publishes=True),
    "local k-means": Case(LocalKMeans(k=2)),
    "local k-means, trained on": Case(
        LocalKMeans(k=2, finish=FedAvg(rounds=2, local=LINE, weights="examples")),
    ),
    "SR-FCA": Case(
        SRFCA(threshold="gap", refinements=1, alone=LINE, rounds=2, local=LINE), remembers=True, publishes=True
    ),
    "SR-FCA, by evidence": Case(SRFCA(refinements=1, alone=LINE, rounds=2, local=LINE), remembers=True, publishes=True),
    "CFL, by evidence": Case(
        CFL(settled=5.0, apart=0.01, rounds=8, local=LINE, accept="evidence"), remembers=True, publishes=True
    ),
    "SR-FCA, by models": Case(
        SRFCA(
            threshold=2.5,
            refinements=1,
            alone=LINE,
            rounds=2,
            averaging="gradients",
            distance="l2",
            components="pivot",
            finish=FedAvg(rounds=1, local=LINE),
        ),
        remembers=True,
        publishes=True,
    ),
    "one shot, then IFCA": Case(OneShotIFCA(alone=LINE, rounds=2, local=LINE), remembers=True, publishes=True),
    "Oracle, moment descent inside": Case(Oracle(groups=TRUTH, inner=MOMENTS)),
    "one-shot, moment descent inside": Case(OneShot(k=2, inner=MOMENTS)),
    "Oracle, soft FedX inside": Case(Oracle(groups=TRUTH, inner=FedX(k=2, rounds=2, assignment="soft"))),
    "IFCA, shared layer, gradients": Case(
        IFCA(k=2, rounds=3, local=Descent(lr=0.3), averaging="gradients", shared=("1.*",)), "classes"
    ),
    "restarts of CFL": Case(
        Restarts(inner=CFL(settled=5.0, apart=0.01, rounds=2, local=LINE), times=2), remembers=True, publishes=True
    ),
    "restarts of the keeper": Case(Restarts(inner=Keeper(rounds=2), times=3), remembers=True),
    "one shot, then IFCA of as many": Case(
        Then(first=LocalKMeans(k=2), second=IFCA(k=None, rounds=2, local=LINE)),
    ),
    "UIFCA": Case(UIFCA(k=2, rounds=2, exchanges=2, local=ADAM, restarts=2), "points", remembers=True),
    "UIFCA, from k-FED, new models": Case(
        UIFCA(k=3, rounds=3, exchanges=1, local=ADAM, init="kfed", reinitialise=True, prior=True, settled=0.2),
        "points",
        remembers=True,
        publishes=True,
    ),
    "UIFCA, Gaussians": Case(
        UIFCA(k=2, density="gaussian", rounds=3, init="kfed", space_steps=2),
        "projections",
        remembers=True,
        publishes=True,
    ),
    "k-FED": Case(KFed(k=2), "centres", remembers=True, publishes=True),
    "ClusterGAN": Case(ClusterGAN(k=2, rounds=2, local=ADAM), "game"),
    "keeper": Case(Keeper(), remembers=True),
    "keeper of networks": Case(Keeper(k=1, rounds=3), "classes", remembers=True),
}


def run(case: Case, fed: Federation, start: Snapshot | None = None, *, seed: int = 0) -> Iterator[Snapshot]:
    """Drive the case's algorithm."""
    return drive(case.algorithm, fed, start, about="tiny", seed=seed)
