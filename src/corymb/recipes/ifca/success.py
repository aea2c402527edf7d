"""How often IFCA recovers a mixed linear regression (Figure 2 at NeurIPS 2020, Figure 3 in TIT 2022).

The ten random starts and three step sizes of a trial are columns of one matrix, so that each round takes two products
with all examples, and small trials are batched into the same kernels. A trial ends as soon as its success is certain.
This is option I of IFCA, and a test compares it with `corymb.IFCA`. As in the authors' program: the entries of the true
and initial parameters are 0 or 1, the true ones times r; gradients are summed over a cluster's clients and divided by
the number of all clients; a model's distance is that to the nearest true parameter; a trial succeeds if one of the
thirty runs ends with a mean distance below 0.6 σ (plus 0.001 where σ may be 0).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

D, ROUNDS, RESTARTS, TRIALS, BLOCK = 1000, 300, 10, 40, 10
STEP_SIZES: Mapping[int, tuple[float, ...]] = {2: (1.0, 0.1, 0.01), 4: (2.0, 1.0, 0.5)}
SIZES = {2: ((50, 70, 100, 150, 200, 300, 400), (0.1, 0.25)), 4: ((100, 200, 300, 400, 800), (0.5, 0.75))}
LOOKS = (10, 20, 40, 80, 160)
"""Rounds after which we check whether a trial is certain to succeed."""
ROWS = 40_000
"""Examples of all trials in a batch: one trial with more keeps a GPU busy by itself."""
EXAMPLES = (50, 100, 200)
"""Examples per client in the panels by size."""
SIGMAS, SCALES = (0.0, 0.1, 0.2, 0.4), (0.1, 0.25, 0.5, 0.75, 1.0)


class Point(NamedTuple):
    """A point of a panel: clients m, examples per client n, clusters k, noise σ, scale r of the true parameters."""

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
            f"r{r:g}-m{m}-n{n}": Point(m, n, k, 0.1, r) for r in scales for m in clients for n in EXAMPLES
        }
    return found


def jobs() -> list[str]:
    """The cells, each of ten trials of a point; the first ten of every point come first."""
    return [
        f"success-{panel}/{point}/{block}"
        for block in range(TRIALS // BLOCK)
        for panel, points in panels().items()
        for point in points
    ]


class Trial(NamedTuple):
    """The data of a trial, with clients ordered by cluster, and ten random starts."""

    x: Tensor
    y: Tensor
    truth: Tensor
    starts: Tensor
    """(restarts, k, d)"""


def draw(point: Point, seed: int, device: str, d: int = D, restarts: int = RESTARTS) -> Trial:
    """Generate a trial from its seed; the numbers depend on the type of device."""
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


class Runs(NamedTuple):
    """The models of all runs of some trials: one column for each step size, restart and cluster."""

    models: Tensor
    """(trials, d, columns)"""
    step: Tensor
    """The step size of each run."""


def begin(trials: Trial, step_sizes: tuple[float, ...]) -> Runs:
    """Combine every start with every step size. All fields of `trials` have a leading axis of trials."""
    count, restarts, _, d = trials.starts.shape
    models = trials.starts.repeat(1, len(step_sizes), 1, 1).reshape(count, -1, d).mT.contiguous()
    return Runs(models, torch.tensor(step_sizes, device=models.device).repeat_interleave(restarts))


def errors(x: Tensor, y: Tensor, models: Tensor, m: int, k: int) -> tuple[Tensor, Tensor]:
    """The residuals (trials, m, n, runs, k), and each client's best model (trials, m, 1, runs, 1)."""
    residual = torch.baddbmm(-y.unsqueeze(-1), x, models)
    residual = residual.view(len(x), m, -1, models.shape[-1] // k, k)
    return residual, torch.linalg.vector_norm(residual, dim=2, keepdim=True).argmin(-1, keepdim=True)


def descend(trials: Trial, runs: Runs, m: int, rounds: int) -> None:
    """Run rounds of option I, in place."""
    rows, k = trials.x.shape[1], trials.truth.shape[1]
    each, down = torch.arange(k, device=trials.x.device), (-2 / rows * runs.step).unsqueeze(-1)
    for _ in range(rounds):
        residual, choice = errors(trials.x, trials.y, runs.models, m, k)
        residual.mul_(torch.where(choice == each, down, 0))
        runs.models.baddbmm_(trials.x.mT, residual.view(len(trials.x), rows, -1))


def distances(models: Tensor, truth: Tensor) -> Tensor:
    """The mean distance of models (..., k, d) from the nearest true parameter."""
    return torch.cdist(models, truth).amin(-1).mean(-1)


def end_well(point: Point, models: Tensor, truth: Tensor) -> Tensor:
    """Which runs succeed; a diverged run (NaN) does not."""
    return distances(models, truth) < 0.6 * point.sigma + point.margin


def are_sure(point: Point, trials: Trial, runs: Runs, left: int) -> Tensor:
    """Which trials have a run that has found the true clusters and will succeed after the remaining rounds.

    While no client changes cluster, a round is a least-squares gradient step on k fixed groups, which takes a d × d
    product per model and none with the examples. The rest of every run is computed under that assumption. Then, for one
    run that succeeds, the clients' choices in all those rounds are computed, many rounds at once. If every client
    always chooses its own group's model, the assumption holds and the computed rest is exact.
    """
    (x, y, truth, _), m, k = trials, point.m, point.k
    count, rows, d = x.shape
    own = torch.arange(k, device=x.device)
    label = errors(x, y, runs.models, m, k)[1].view(count, k, m // k, -1)  # trial, true cluster, client, run
    first = label[:, :, 0]
    found = ((label == label[:, :, :1]).all(2) & (first.sort(1).values == own[:, None])).all(1)  # trial, run
    if not found.any():
        return found.any(1)
    mine = x.view(count * k, -1, d)
    square, product = mine.mT @ mine, mine.mT @ y.view(count * k, -1, 1)
    models = runs.models.view(count, d, -1, k).gather(-1, first.mT.unsqueeze(1).expand(-1, d, -1, -1))
    models = models.permute(0, 3, 1, 2).reshape(count * k, d, -1)  # ordered by true cluster
    step = (-2 / rows * runs.step).expand(count * k, 1, -1)

    def rounds(models: Tensor, step: Tensor) -> Iterator[Tensor]:
        for _ in range(left):
            yield models
            models = models.addcmul(torch.baddbmm(-product, square, models), step)
        yield models

    (ends,) = deque(rounds(models, step), maxlen=1)
    good = end_well(point, ends.view(count, k, d, -1).permute(0, 3, 1, 2), truth.unsqueeze(1)) & found
    kept = good.any(1)
    if not kept.any():
        return kept
    one = good.int().argmax(1).repeat_interleave(k).view(-1, 1, 1)
    chosen = models.gather(-1, one.expand(-1, d, -1)), step.gather(-1, one)
    path = torch.cat(list(rounds(*chosen)), -1).view(count, k, d, -1).permute(0, 2, 3, 1)  # trial, d, round, k
    for part in path.split(len(runs.step), 2):
        choice = errors(x, y, part.reshape(count, d, -1), m, k)[1]
        kept &= (choice.view(count, k, -1) == own[:, None]).all(2).all(1)
    return kept


def succeed(point: Point, seeds: Sequence[int], device: str, d: int = D, rounds: int = ROUNDS) -> int:
    """The number of trials in which one of the thirty runs succeeds; a trial stops as soon as that is certain."""
    drawn = [draw(point, seed, device, d) for seed in seeds]
    trials = Trial(*map(torch.stack, zip(*drawn, strict=True)))
    runs, done = begin(trials, STEP_SIZES[point.k]), 0
    for look in LOOKS:
        descend(trials, runs, point.m, look - done)
        done = look
        rest = ~are_sure(point, trials, runs, rounds - done)
        if not rest.all():
            trials, runs = Trial(*(value[rest] for value in trials)), runs._replace(models=runs.models[rest])
        if not len(trials.x):
            return len(seeds)
    descend(trials, runs, point.m, rounds - done)
    models = runs.models.mT.unflatten(1, (-1, point.k))
    well = end_well(point, models, trials.truth.unsqueeze(1)).any(-1)
    return len(seeds) - int((~well).sum())


def work(name: str) -> dict[str, Any]:
    """Run a cell: the number of successes in ten trials of a point."""
    panel, name_of_point, block = name.removeprefix("success-").split("/")
    point, device = panels()[panel][name_of_point], "cuda" if torch.cuda.is_available() else "cpu"
    seeds = range(int(block) * BLOCK, (int(block) + 1) * BLOCK)
    together = max(1, ROWS // (point.m * point.n))
    parts = [seeds[i : i + together] for i in range(0, len(seeds), together)]
    return {"succeeded": sum(succeed(point, part, device) for part in parts), "trials": len(seeds)}


def shares(results: Mapping[str, Any], panel: str) -> dict[str, tuple[float, int]]:
    """For every point of a panel that has been run, the share of successful trials and the number of trials."""
    found = {}
    for point in panels()[panel]:
        cells = [value for name, value in results.items() if name.startswith(f"success-{panel}/{point}/")]
        if trials := sum(cell["trials"] for cell in cells):
            found[point] = (sum(cell["succeeded"] for cell in cells) / trials, trials)
    return found
