"""Empirical checks of IFCA's theory: contraction, statistical floor, first-round mistakes and the effect of the start.

Ghosh, Chung, Yin, Ramchandran, IEEE Transactions on Information Theory 2022, Theorem 1 and Corollary 1: mixed linear
regression, fresh examples in each round, a start within (½ − α)Δ of the truth, step size γ = 1/(4p). Then the error
halves in every round (the loss (y − ŷ)² has curvature 2), down to a floor of order at most (σ/p)·√(d / (n·n')), and the
probability that a client's first choice is wrong falls exponentially in its n' examples. Theorem 2 and Corollary 2:
strongly convex losses, here ridge logistic regression, with γ = 1/L.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corymb.algorithms.ifca import IFCA
from corymb.algorithms.parts.alternate import Answers, alternate, begin, work_on_best
from corymb.algorithms.parts.sharing import mean_models, step_along
from corymb.algorithms.parts.work import Averaging, Work
from corymb.core.client import Client, Examples, Objective, Share, on_client
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.data.built_in.synthetic import mixed_regression, mixed_regression_ifca
from corymb.data.dataset import FederatedDataset
from corymb.data.ragged import Ragged, offsets_of
from corymb.engines import Placement, VectorisedEngine
from corymb.keys import Key, fold, normal, root
from corymb.local import Descent, part, serve_assigned
from corymb.objectives.partial import completed
from corymb.objectives.regression import LinearRegression
from corymb.settings import require
from corymb.trees import Params

D, K, SEPARATION = 20, 2, 1.0
P = 1 / K


@on_client
def choose_and_work_on_new(client: Client, models: Params, *, work: Work, t: int, rounds: int) -> Share[Tensor]:
    """A client's round of IFCA: chooses on one part of its examples and trains on another, both new in each round."""
    choosing, working = (part(client.train, 2 * t + i, 2 * rounds) for i in range(2))
    return work_on_best(client, models, work, choosing=choosing, working=working)


@dataclass(frozen=True, kw_only=True)
class FreshIFCA:
    """IFCA as analysed: a client's examples are split into 2T parts, and every round uses two new ones."""

    k: int
    rounds: int
    local: Descent = Descent(lr=0.1)
    averaging: Averaging = "models"

    serve = serve_assigned

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Algorithm 2 with new examples in every round."""
        fewest, wanted = int(fed.clients.sizes.min()), 2 * self.rounds
        require(
            fewest >= wanted, f"A client has {fewest} examples; fresh examples need {wanted} per client (2 per round)."
        )

        def choose(at: Snapshot, t: int) -> Answers:
            work = Work(local=self.local.at(t), averaging=self.averaging)
            return fed.clients.sum(choose_and_work_on_new, at.models, work=work, t=t, rounds=self.rounds)

        def average(models: Params, replies: Answers, t: int) -> Params:
            if self.averaging == "models":
                return mean_models(models, replies.value, ())
            return step_along(models, replies.value, self.local.at(t).lr / len(fed.clients), ())

        return alternate(begin(fed, self.k, start), self.rounds, choose, average)


class Trace(NamedTuple):
    """A run: each model's distance from its true parameter after every round (T + 1, k), and the first mistakes."""

    errors: Tensor
    first_mistakes: float


def trace(
    n: int,
    fresh: int,
    rounds: int,
    sigma: float,
    *,
    alpha: float = 0.25,
    d: int = D,
    k: int = K,
    together: bool = False,
    seed: int = 0,
) -> Trace:
    """IFCA with `fresh` new examples for each choice and each gradient, from (½ − α)Δ away, with γ = 1/(4p), p = 1/k.

    The start is offset in random directions or, with `together`, all along θ*_2 − θ*_1. That is the worst case: cluster
    2's own model moves away from its clients as the other model comes near. (If the models move towards each other, α
    does not change any choice.)
    """
    data = mixed_regression_ifca(seed, n=n, m=2 * rounds * fresh, d=d, k=k, sigma=sigma, separation=SEPARATION, test=1)
    truth = _true(data)
    directions = normal(fold(root(seed), "directions"), (k, d), torch.float64)
    directions = (truth[1] - truth[0]).expand(k, d) if together else directions
    directions = directions / directions.norm(dim=1, keepdim=True)
    start = truth + (0.5 - alpha) * SEPARATION * directions
    algorithm = FreshIFCA(k=k, rounds=rounds, local=Descent(lr=k / 4), averaging="gradients")
    errors, mistakes = [(start - truth).norm(dim=1)], torch.nan
    for at in run(algorithm, data, start, seed=seed):
        errors.append((at.models["weight"] - truth).norm(dim=1))
        if at.round == 1:
            mistakes = float((at.labels - _groups(data)).ne(0).double().mean())
    return Trace(torch.stack(errors), mistakes)


def run(
    algorithm: Algorithm, data: FederatedDataset, start: Tensor | None, *, seed: int, objective: Objective | None = None
) -> list[Snapshot]:
    """The snapshots of a run on mixed regression in float64, from the given parameters or a random start."""
    where = Placement(dtype=torch.float64)
    learned = objective or LinearRegression(data.train.x.shape[1], dtype=torch.float64)
    fed = Federation(VectorisedEngine(learned, data, where))
    begin = None
    if start is not None:
        begin = Snapshot(models={"weight": start}, labels=torch.full((data.clients,), -1), seed=seed)
    return list(drive(algorithm, fed, begin, seed=seed))


def _groups(data: FederatedDataset) -> Tensor:
    assert data.truth is not None
    return data.truth


def _true(data: FederatedDataset) -> Tensor:
    assert data.true_parameters is not None
    return data.true_parameters["weight"].double()


def contraction(n: int = 200, fresh: int = 50, rounds: int = 10, seeds: Sequence[int] = range(3)) -> Tensor:
    """Without noise: the ratio of the error after each round to that before it (T), mean over clusters and seeds."""
    errors = torch.stack([trace(n, fresh, rounds, 0.0, seed=seed).errors for seed in seeds])  # seeds T+1 k
    return (errors[:, 1:] / errors[:, :-1]).mean(dim=(0, 2))


def floor(
    n: int,
    fresh: int,
    sigma: float,
    *,
    d: int = D,
    k: int = K,
    rounds: int = 24,
    burn_in: int = 12,
    seeds: Sequence[int] = range(4),
) -> float:
    """The residual error: root mean square over the last rounds, clusters and seeds."""
    errors = torch.stack([trace(n, fresh, rounds, sigma, d=d, k=k, seed=seed).errors[burn_in:] for seed in seeds])
    return float(errors.square().mean().sqrt())


def mistakes(
    fresh: int,
    *,
    n: int = 20_000,
    sigma: float = 0.5,
    alpha: float = 0.25,
    together: bool = False,
    seeds: Sequence[int] = range(3),
) -> float:
    """The share of clients that choose the wrong model in the first round."""
    every = [trace(n, fresh, 1, sigma, alpha=alpha, together=together, seed=seed).first_mistakes for seed in seeds]
    return sum(every) / len(every)


def decay(alpha: float, sigma: float, *, sizes: tuple[int, int] = (8, 16), seed: int = 0, n: int = 20_000) -> float:
    """The rate c in exp(−c n') at which wrong first choices fall with the examples of a choice, in the worst case."""
    few, many = (mistakes(fresh, n=n, sigma=sigma, alpha=alpha, together=True, seeds=[seed]) for fresh in sizes)
    return math.log(few / max(many, 0.5 / n)) / (sizes[1] - sizes[0])


def uneven(smallest: float, *, rounds: int = 12, seed: int = 0) -> float:
    """The final error relative to the initial one, with γ = 1/(4 p_min) and two clusters, one of share `smallest`."""
    shares = (smallest, 1 - smallest)
    data = mixed_regression(seed, n=200, m=2 * rounds * 20, d=D, k=2, shares=shares, sigma=0.0, test=1)
    truth = _true(data)
    direction = normal(fold(root(seed), "directions"), (2, D), torch.float64)
    start = truth + 0.1 * direction / direction.norm(dim=1, keepdim=True)
    algorithm = FreshIFCA(k=2, rounds=rounds, local=Descent(lr=1 / (4 * smallest)), averaging="gradients")
    end = run(algorithm, data, start, seed=seed)[-1].models["weight"]
    return float((end - truth).norm(dim=1).max() / 0.1)


class Starts(NamedTuple):
    """The share of runs of option I on mixed regression that end at the pooled least-squares solutions, by start."""

    near: float
    single: float
    best_of_ten: float


def starts(seeds: Sequence[int] = range(10)) -> Starts:
    """100 clients × 100 examples, d = 50, k = 2, σ = 0.1: from within Δ/4, one random start, and the best of ten."""
    return Starts(near_starts(seeds), *(random_starts(seeds, restarts) for restarts in (1, 10)))


def near_starts(seeds: Sequence[int]) -> float:
    """The success rate of runs that start within Δ/4 of the truth, in random directions."""
    return sum(_succeeds(seed, near=True) for seed in seeds) / len(seeds)


def random_starts(seeds: Sequence[int], restarts: int) -> float:
    """The success rate of runs from random starts; of several restarts, that with the lowest training loss counts."""
    return sum(_succeeds(seed, restarts=restarts) for seed in seeds) / len(seeds)


def _succeeds(seed: int, *, near: bool = False, restarts: int = 1, tolerance: float = 1e-3) -> bool:
    data = mixed_regression_ifca(seed, n=100, m=100, d=50, k=2, sigma=0.1, test=1)
    truth = _true(data)
    start = None
    if near:
        direction = normal(fold(root(seed), "directions"), (2, 50), torch.float64)
        start = truth + 0.249 * (truth[0] - truth[1]).norm() * direction / direction.norm(dim=1, keepdim=True)
    algorithm = IFCA(k=2, rounds=40, local=Descent(lr=0.5), averaging="gradients", restarts=restarts, repair=False)
    models = run(algorithm, data, start, seed=seed)[-1].models
    return distance(models, pooled_least_squares(data)) <= tolerance


def pooled_least_squares(data: FederatedDataset) -> Tensor:
    """The least-squares solution on all examples of each true cluster (k d)."""
    assert data.truth is not None
    cluster = data.truth.repeat_interleave(data.sizes)
    x, y = data.train.x.double(), data.train.y.double()
    return torch.stack(
        [torch.linalg.lstsq(x[cluster == j], y[cluster == j]).solution for j in range(int(data.truth.max()) + 1)]
    )


def distance(models: Params, goal: Tensor) -> float:
    """The largest distance of a model from its goal, minimised over the two orders of models (k = 2)."""
    weight = models["weight"]
    return min(float((weight - goal).norm(dim=1).max()), float((weight.flip(0) - goal).norm(dim=1).max()))


# ---- Theorem 2 and Corollary 2: strongly convex losses, here ridge logistic regression

RIDGE = 0.1


class RidgeLogistic:
    """log(1 + exp(−(2y − 1) x·θ)) + (λ/2)‖θ‖² with y in {0, 1}: λ-strongly convex, (¼ + λ)-smooth for x ~ N(0, I)."""

    def init(self, key: Key) -> Params:
        """Small random parameters."""
        return {"weight": 0.1 * normal(key, (D,), torch.float64)}

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The loss of each example."""
        weight = params["weight"]
        margin = (2 * examples.y - 1) * (examples.x @ weight)
        return torch.nn.functional.softplus(-margin) + RIDGE / 2 * weight.square().sum()


def shrunk(norm: float) -> float:
    """The ratio of each cluster's optimum to its true parameter of this norm: λ shrinks it, for x ~ N(0, I)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    low, high = 0.0, 1.0
    for _ in range(60):  # the derivative along θ* rises: E[(s(c r g) − s(r g)) r g] + λ c r²
        c = (low + high) / 2
        slope = weights @ ((_sigmoid(c * norm * nodes) - _sigmoid(norm * nodes)) * norm * nodes) + RIDGE * c * norm**2
        low, high = (c, high) if slope < 0 else (low, c)
    return (low + high) / 2


def _sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def logistic_trace(n: int, fresh: int, rounds: int, *, norm: float = 3.0, seed: int = 0) -> Tensor:
    """The distance of two models from their optima after every round with γ = 1/L (T + 1, 2).

    The two clusters have opposite parameters of this norm and half of the clients each; the start is Δ/5 from the
    optima.
    """
    rng = np.random.default_rng([seed, 2])
    theta = rng.normal(size=D)
    theta *= norm / np.linalg.norm(theta)
    true, groups, m = np.stack([theta, -theta]), np.arange(n) % 2, 2 * rounds * fresh
    x = rng.normal(size=(n * m, D))
    y = rng.random(n * m) < _sigmoid((x * true[groups].repeat(m, 0)).sum(1))
    rows = Ragged(torch.tensor(x), torch.tensor(y.astype(float)), offsets_of(torch.full((n,), m)))
    names = tuple(f"client {i:05d}" for i in range(n))
    data = FederatedDataset(
        name="logistic", names=names, train=rows, test=rows, task="regression", truth=torch.tensor(groups)
    )
    goal = torch.tensor(true) * shrunk(norm)
    direction = normal(fold(root(seed), "directions"), (2, D), torch.float64)
    start = goal + 0.2 * (goal[0] - goal[1]).norm() * direction / direction.norm(dim=1, keepdim=True)
    step = 1 / (0.25 + RIDGE)
    algorithm = FreshIFCA(k=2, rounds=rounds, local=Descent(lr=step), averaging="gradients")
    snapshots = run(algorithm, data, start, seed=seed, objective=completed(RidgeLogistic()))
    return torch.stack([(weight - goal).norm(dim=1) for weight in (start, *(at.models["weight"] for at in snapshots))])


def logistic_floor(
    n: int, fresh: int, *, seeds: Sequence[int] = range(2), rounds: int = 40, burn_in: int = 25
) -> float:
    """The residual error: root mean square over the last rounds, clusters and seeds."""
    errors = torch.stack([logistic_trace(n, fresh, rounds, seed=seed)[burn_in:] for seed in seeds])
    return float(errors.square().mean().sqrt())


def draw(path: Path) -> None:
    """Draw the three results as one figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for n, shade in ((50, 0.35), (200, 0.6), (800, 0.95)):
        errors = trace(n, 50, 16, 0.25).errors.mean(1)
        left.semilogy(errors, marker="o", ms=3, color=plt.cm.Blues(shade), label=f"n = {n}, n' = 50")
    left.semilogy([0.25 * 0.5**t for t in range(9)], "k--", lw=1, label="halves every round")
    left.set(title="Error by round (σ = 0.25)", xlabel="round", ylabel="‖θ − θ*‖")
    products = [(50, 50), (100, 50), (200, 50), (400, 50), (50, 100), (50, 200), (50, 400)]
    for sigma, colour in ((0.125, "#0072b2"), (0.25, "#d55e00"), (0.5, "#009e73")):
        values = [floor(n, fresh, sigma, seeds=(i, i + 100)) for i, (n, fresh) in enumerate(products)]
        middle.loglog([n * f for n, f in products], values, "o", color=colour, label=f"σ = {sigma}")
        bound = [sigma / 2 * (D / P / (n * f)) ** 0.5 / 0.75**0.5 for n, f in products[:4]]
        middle.loglog([n * f for n, f in products[:4]], bound, "-", lw=1, color=colour)
    middle.set(title="Floor; lines: (σ/√3)·√(d / (p n n'))", xlabel="n · n'", ylabel="error left")
    middle.set_xticks([2500, 5000, 10_000, 20_000], ["2500", "5000", "10,000", "20,000"])
    middle.minorticks_off()
    sizes = [2, 4, 6, 8, 12, 16, 20]
    right.semilogy(sizes, [mistakes(size, seeds=range(1)) for size in sizes], "o-", color="#0072b2")
    right.set(title="Wrong first choices (α = ¼, σ = ½)", xlabel="n'", ylabel="share of clients")
    right.set_xticks(sizes)
    left.set_xticks(range(0, 17, 4))
    for panel in (left, middle):
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
