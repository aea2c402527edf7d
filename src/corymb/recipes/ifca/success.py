"""How often IFCA finds the truth of a mixed linear regression (Figure 2 at NeurIPS 2020, Figure 3 in TIT 2022).

Ten random starts and three step sizes of one trial are columns of the same products, so that a trial is one run of
products with all examples. It is option I of IFCA, and a test compares it with `corymb.IFCA`. As in the authors'
program: true and initial parameters are 0 or 1 in every place, the true ones times r; gradients are summed over a
cluster's clients and divided by all clients; a model's distance is that to the nearest truth, whichever it is; a trial
succeeds if one of the thirty runs ends with a mean distance below 0.6 σ (plus 0.001 where σ may be 0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

D, ROUNDS, RESTARTS, TRIALS, BLOCK = 1000, 300, 10, 40, 10
STEP_SIZES: Mapping[int, tuple[float, ...]] = {2: (1.0, 0.1, 0.01), 4: (2.0, 1.0, 0.5)}
SIZES = {2: ((50, 70, 100, 150, 200, 300, 400), (0.1, 0.25)), 4: ((100, 200, 300, 400, 800), (0.5, 0.75))}
SIGMAS, SCALES = (0.0, 0.1, 0.2, 0.4), (0.1, 0.25, 0.5, 0.75, 1.0)


class Point(NamedTuple):
    """A place in a panel: clients, examples of each, clusters, noise, scale of the true parameters."""

    m: int
    n: int
    k: int
    sigma: float
    r: float
    margin: float = 0.0


def panels() -> dict[str, dict[str, Point]]:
    """The four panels: their points by name."""
    found: dict[str, dict[str, Point]] = {}
    for k, m in ((2, 100), (4, 400)):
        found[f"noise-k{k}"] = {
            f"sigma{sigma:g}-r{r:g}": Point(m, 100, k, sigma, r, margin=0.001) for sigma in SIGMAS for r in SCALES
        }
    for k, (clients, scales) in SIZES.items():
        found[f"sizes-k{k}"] = {
            f"r{r:g}-m{m}-n{n}": Point(m, n, k, 0.1, r) for r in scales for m in clients for n in (50, 100, 200)
        }
    return found


def jobs() -> list[str]:
    """Ten trials of a point each, the first ten of every point first."""
    return [
        f"success-{panel}/{point}/{block}"
        for block in range(TRIALS // BLOCK)
        for panel, points in panels().items()
        for point in points
    ]


class Trial(NamedTuple):
    """The data of a trial, clients after each other in blocks of the same cluster, and ten starts."""

    x: Tensor
    y: Tensor
    truth: Tensor
    starts: Tensor
    """Restarts, clusters, d."""


def draw(point: Point, seed: int, device: str, d: int = D, restarts: int = RESTARTS) -> Trial:
    """A trial by its number; other numbers on other kinds of devices."""
    by = torch.Generator(device).manual_seed(seed)

    def fair(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=device).random_(0, 2, generator=by).float()

    def normal(*shape: int) -> Tensor:
        return torch.empty(shape, device=device).normal_(generator=by)

    truth, starts = fair(point.k, d) * point.r, fair(restarts, point.k, d)
    rows = point.m * point.n
    x = normal(rows, d)
    cluster = torch.arange(point.m, device=device) * point.k // point.m
    noise = point.sigma * normal(rows)
    y = torch.empty(rows, device=device)
    for j in range(point.k):
        mine = (cluster == j).repeat_interleave(point.n)
        y[mine] = x[mine] @ truth[j]
    return Trial(x, y + noise, truth, starts)


def run(trial: Trial, m: int, step_sizes: tuple[float, ...], rounds: int = ROUNDS) -> Tensor:
    """All runs of a trial by option I: step sizes, restarts, clusters, d."""
    x, y, _, starts = trial
    restarts, k, d = starts.shape
    models = starts.expand(len(step_sizes), restarts, k, d).reshape(-1, d).T.contiguous()  # d columns
    step = torch.tensor(step_sizes, device=x.device).repeat_interleave(restarts * k)
    n = len(x) // m
    for _ in range(rounds):
        residual = torch.addmm(-y.unsqueeze(1), x, models).reshape(m, n, -1, k)
        choice = residual.square().mean(1).argmin(-1, keepdim=True)  # m runs 1
        chosen = torch.zeros(m, residual.shape[2], k, device=x.device).scatter_(-1, choice, 1.0)
        residual.mul_(chosen.unsqueeze(1))
        models -= step * (2 / n / m) * (x.T @ residual.reshape(len(x), -1))
    return models.T.reshape(len(step_sizes), restarts, k, d)


def distances(models: Tensor, truth: Tensor) -> Tensor:
    """The mean distance of a run's models from the nearest truth: step sizes, restarts."""
    return torch.cdist(models, truth.expand(*models.shape[:2], *truth.shape)).amin(-1).mean(-1)


def succeeds(point: Point, seed: int, device: str) -> bool:
    """Whether one of a trial's thirty runs succeeds."""
    trial = draw(point, seed, device)
    found = distances(run(trial, point.m, STEP_SIZES[point.k]), trial.truth)
    return bool((found < 0.6 * point.sigma + point.margin).any())  # NaN, of a run that diverged, is not


def work(name: str) -> dict[str, Any]:
    """A cell: how many of ten trials of a point succeed."""
    panel, point, block = name.removeprefix("success-").split("/")
    at, device = panels()[panel][point], "cuda" if torch.cuda.is_available() else "cpu"
    seeds = range(int(block) * BLOCK, (int(block) + 1) * BLOCK)
    return {"succeeded": sum(succeeds(at, seed, device) for seed in seeds), "trials": len(seeds)}


def shares(results: Mapping[str, Any], panel: str) -> dict[str, tuple[float, int]]:
    """For every point of a panel that has been run: the share of trials that succeed, and how many there were."""
    found = {}
    for point in panels()[panel]:
        cells = [value for name, value in results.items() if name.startswith(f"success-{panel}/{point}/")]
        if trials := sum(cell["trials"] for cell in cells):
            found[point] = (sum(cell["succeeded"] for cell in cells) / trials, trials)
    return found
