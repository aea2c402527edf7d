"""Empirical checks of the theory of moment descent: subspaces, the anchors' steps, and the second phase's rate.

Su, Xu, Yang, NeurIPS 2022: Proposition 1 (the differences θ*_j − θ lie nearly in the subspace), Lemma 5 (how many steps
find it), Proposition 2 (σ estimates the anchor's distance, and a step removes a fraction of it), Theorem 2 (the second
phase contracts by 1 − C s η p / κ per round, down to an error of the order of the noise). Setting: k = 3, standard
normal features, θ* ~ N(0, I/d), no whitening, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.fedx import FedX
from corymb.algorithms.moment_descent import MomentDescent
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.data.built_in.synthetic import mixed_regression
from corymb.data.dataset import FederatedDataset
from corymb.engines import Placement, VectorisedEngine
from corymb.keys import fold, normal, root
from corymb.local import Descent
from corymb.objectives.regression import LinearRegression

K = 3


def _world(data: FederatedDataset) -> tuple[Federation, Tensor]:
    assert data.true_parameters is not None
    where = Placement(dtype=torch.float64)
    objective = LinearRegression(data.features[0], half=True, dtype=torch.float64)
    return Federation(VectorisedEngine(objective, data, where)), data.true_parameters["weight"].double()


class Step(NamedTuple):
    """One iteration of phase 1 from θ_0 = 0, for all anchors."""

    projection: float
    """The largest ‖(I − U Uᵀ)(θ*_j − θ_0)‖ over clusters, mean over anchors."""
    sigma: float
    """The median of |σ² − ‖θ*_i − θ_0‖²| / ‖θ*_i − θ_0‖² over anchors."""
    ratio: float
    """The median over anchors of the distance from the anchor's true model after the step, relative to that before."""


def step(n: int, *, m: int = 50, d: int = 40, steps: int = 10, pairs: int | None = None, seed: int = 0) -> Step:
    """The first iteration of phase 1 with n panel clients of m points."""
    data = mixed_regression(seed, n=n, m=m, d=d, test=1)
    fed, truth = _world(data)
    assert data.truth is not None
    how = {"iterations": 1, "subspace_steps": steps, "pairs": pairs, "points": min(m, 24), "whiten": False}
    algorithm = MomentDescent(k=K, anchors=20, then=None, **how)  # type: ignore[arg-type]
    start = Snapshot(models={"weight": torch.zeros(1, d).double()}, labels=torch.full((n,), -1), seed=seed)
    *_, before, after = drive(algorithm, fed, start, seed=seed)
    bases, own = before.carry["bases"], truth[data.truth[after.carry["anchors"]]]
    missed = truth - torch.einsum("adk,aek,je->ajd", bases, bases, truth)
    away = own.norm(dim=1)
    moved = (after.carry["estimates"] - own).norm(dim=1)
    felt = 2 * (after.carry["estimates"]).norm(dim=1)  # the step is σ / 2 long
    return Step(
        float(missed.norm(dim=2).amax(1).mean()),
        float(((felt.square() - away.square()).abs() / away.square()).median()),
        float((moved / away).median()),
    )


def mean_step(n: int, *, seeds: Sequence[int], m: int = 50, d: int = 40, steps: int = 10) -> Step:
    """The mean of `step` over seeds."""
    rows = torch.tensor([step(n, m=m, d=d, steps=steps, seed=seed) for seed in seeds])
    return Step(*rows.mean(0).tolist())


class Rate(NamedTuple):
    """Phase 2 near the truth: the fraction of the error left after a round, and the s η p / κ of Theorem 2."""

    left: float
    promised: float

    @property
    def constant(self) -> float:
        """C in 1 − C s η p / κ."""
        return (1 - self.left) / self.promised


def rate(
    steps: int, lr: float, *, shares: Sequence[float] = (1 / 3, 1 / 3, 1 / 3), prox: bool = False, seed: int = 0
) -> Rate:
    """Phase 2 without noise from distance 0.1 of the truth, 300 clients of 40 points, d = 10: rounds 5 to 15."""
    data = mixed_regression(seed, n=300, m=40, d=10, sigma=0.0, shares=shares, test=1)
    fed, truth = _world(data)
    assert data.truth is not None
    direction = normal(fold(root(seed), "directions"), tuple(truth.shape), torch.float64)
    start = truth + 0.1 * direction / direction.norm(dim=1, keepdim=True)
    begin = Snapshot(models={"weight": start}, labels=torch.full((len(data),), -1), seed=seed)
    how = FedX(rounds=15, local=Descent(lr=lr, steps=steps), refinement="fedprox" if prox else "fedavg")
    snapshots = list(drive(how, fed, begin, seed=seed))
    errors = [float((at.models["weight"] - truth).norm(dim=1).max()) for at in snapshots]
    left = (errors[14] / errors[4]) ** 0.1
    cuts, x = data.train.offsets.tolist(), data.train.x.double()
    most = max(float(torch.linalg.matrix_norm(x[a:b], 2)) ** 2 / (b - a) for a, b in pairwise(cuts))
    p = float(torch.bincount(data.truth).min() / len(data))
    return Rate(left, (1 if prox else steps) * lr * p / kappa(lr * most, steps, prox=prox))


def kappa(gamma: float, steps: int, *, prox: bool = False) -> float:
    """The condition number κ ≥ 1 of local updates: γ s / (1 − (1 − γ)^s) for FedAvg, 1 + γ for FedProx."""
    return 1 + gamma if prox else gamma * steps / (1 - (1 - gamma) ** steps)


def floor(sigma: float, *, n: int = 200, m: int = 40, d: int = 20, seeds: Sequence[int] = range(3)) -> float:
    """The final error of phase 2 started from the truth: root mean square over clusters and seeds."""
    squares = []
    for seed in seeds:
        data = mixed_regression(seed, n=n, m=m, d=d, sigma=sigma, test=1)
        fed, truth = _world(data)
        begin = Snapshot(models={"weight": truth}, labels=torch.full((n,), -1), seed=seed)
        for at in drive(FedX(rounds=80, averaging="members", local=Descent(lr=0.1, steps=2)), fed, begin, seed=seed):
            end = at
        squares.append(float((end.models["weight"] - truth).square().sum(1).mean()))
    return math.sqrt(sum(squares) / len(squares))


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent b of the best fit values ∝ sizes^b.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    x, y = (torch.tensor(row, dtype=torch.float64).log() for row in (sizes, values))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / x.square().sum())
