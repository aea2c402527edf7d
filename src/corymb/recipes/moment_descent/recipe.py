"""Figures 1 to 3 of the moment descent paper: three settings with two panels each, and ten seeds of the main claim.

Su, Xu, Yang: Global Convergence of Federated Learning for Mixed Regression. NeurIPS 2022, Appendix C. The paper prints
no numbers and leaves out η, the grouping of anchors and the number of repetitions; our choices are documented in
`papers/moment-descent`. A round on the axes is an iteration of the first phase (eleven communication rounds) or a round
of the second. Results are plain numbers, so that cells can run in other processes and be saved as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.fedx import FedX
from corymb.algorithms.ifca import IFCA
from corymb.algorithms.moment_descent import MomentDescent
from corymb.algorithms.one_shot import OneShot
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.data.built_in.synthetic import mixed_regression, mixed_regression_skewed, mixed_regression_unbalanced
from corymb.data.dataset import FederatedDataset
from corymb.engines import VectorisedEngine
from corymb.evaluate import parameter_metrics
from corymb.local import Descent
from corymb.objectives.regression import LinearRegression
from corymb.trees import Params

K, ANCHORS, ITERATIONS, ROUNDS, LR = 3, 20, 5, 400, 0.045
SETTINGS: Mapping[str, Callable[[int], FederatedDataset]] = {
    "balanced": mixed_regression,
    "unbalanced": mixed_regression_unbalanced,
    "skewed": mixed_regression_skewed,
}
SMALL: Mapping[str, Callable[[int], FederatedDataset]] = {
    "small": lambda seed: mixed_regression(seed, n=90, m=50, d=20, test=1)
}
"""The quick version: 90 clients in 20 dimensions."""
TABLES: Mapping[str, Sequence[str]] = {
    "figure-1": ("*/balanced/*", "*/small/*"),
    "figure-2": ("*/unbalanced/*",),
    "figure-3": ("*/skewed/*",),
}
FIRST = MomentDescent(k=K, anchors=ANCHORS, iterations=ITERATIONS, whiten=False, then=None)
STILL = 1e-6
"""A run ends when no parameter moves by more than this in a round, since the rest of its curve is flat."""


def second(steps: int = 5, **how: Any) -> FedX:
    """The second phase with s local steps."""
    return FedX(rounds=ROUNDS, local=Descent(lr=LR, steps=steps), **how)


class World(NamedTuple):
    """The data, federation and truth of one setting with one seed."""

    data: FederatedDataset
    fed: Federation
    truth: Params
    seed: int

    def error(self, at: Snapshot) -> float:
        """min over permutations of max_j ‖θ_π(j) − θ*_j‖, the paper's (6)."""
        return parameter_metrics(at.models, self.truth)["parameter_error"]


def world(setting: str, seed: int) -> World:
    """Generate the data of a setting, with the paper's loss."""
    data = {**SETTINGS, **SMALL}[setting](seed)
    assert data.true_parameters is not None
    objective = LinearRegression(data.features[0], half=True)
    fed = Federation(VectorisedEngine(objective, data))
    return World(data, fed, data.true_parameters, seed)


Results = Mapping[str, Any]


def follow(here: World, algorithm: Algorithm, start: Snapshot | None = None) -> list[float]:
    """The error after every round, until the last or until nothing moves; preceded by that of the start, if given."""
    errors = [] if start is None else [here.error(start)]
    before: Tensor | None = None
    for at in drive(algorithm, here.fed, start, seed=here.seed):
        errors.append(here.error(at))
        now = at.models["weight"]
        if before is not None and now.shape == before.shape and float((now - before).abs().max()) < STILL:
            break
        before = now
    return errors


def first_phase(here: World) -> tuple[list[float], Snapshot]:
    """Moment descent from a random start: the errors of the start and after every iteration, and the last snapshot."""
    snapshots = list(drive(FIRST, here.fed, seed=here.seed))
    start = replace(snapshots[0], models={"weight": snapshots[0].carry["estimates"][:1]})
    moves = [at for at in snapshots if "iteration" in at.notes]
    return [here.error(at) for at in (start, *moves)], snapshots[-1]


def trial(setting: str, seed: int) -> dict[str, Any]:
    """Both phases with s = 5, the anchors in between, and the oracle: the second phase from the true parameters."""
    here = world(setting, seed)
    first, at = first_phase(here)
    weight = here.truth["weight"]
    assert here.data.truth is not None
    own = weight[here.data.truth[at.carry["anchors"]]]
    distances = (at.carry["estimates"] - own).norm(dim=1) / (float(torch.pdist(weight).min()) / 2)
    truth = Snapshot(models=here.truth, labels=torch.full((here.data.clients,), -1), seed=seed)
    return {
        "groups": at.notes["groups"],
        "farthest_anchor": float(distances.max()),  # in units of half the separation
        "median_anchor": float(distances.median()),
        "first": first,
        "second": follow(here, second(), at.handover()),
        "oracle": follow(here, second(), truth),
    }


def variants(setting: str, seed: int) -> dict[str, Any]:
    """The second phase with other kinds of local training, from the same first phase."""
    here = world(setting, seed)
    _, at = first_phase(here)
    start = at.handover()
    return {
        "s = 1": follow(here, second(1), start),
        "s = 10": follow(here, second(10), start),
        "FedProx": follow(here, second(refinement="fedprox"), start),
    }


def rivals(setting: str, seed: int) -> dict[str, Any]:
    """FedAvg, IFCA from a random start (the second phase, as in the paper) and one-shot clustering, all with s = 5."""
    here = world(setting, seed)
    inner = IFCA(k=1, rounds=ROUNDS, local=second().local, weights="examples")
    return {
        "FedAvg": follow(here, second(k=1)),
        "IFCA": follow(here, second(k=K)),
        "one-shot": follow(here, OneShot(k=K, inner=inner)),
    }


KINDS: Mapping[str, Callable[[str, int], dict[str, Any]]] = {"trial": trial, "variants": variants, "rivals": rivals}


def jobs(seeds: int) -> list[str]:
    """Every cell as kind/setting/seed, the longest first: the trials of all seeds, the rivals of three."""
    settings = sorted(SETTINGS, reverse=True)
    return [
        *(f"variants/{setting}/0" for setting in settings),
        *(f"rivals/{setting}/{seed}" for setting in settings for seed in range(min(seeds, 3))),
        *(f"trial/{setting}/{seed}" for setting in settings for seed in range(seeds)),
    ]


def quick_jobs() -> list[str]:
    """A small version of Figure 1."""
    return ["trial/small/0", "rivals/small/0"]


def work(job: str) -> dict[str, Any]:
    """Run one cell; returns plain numbers."""
    kind, setting, seed = job.split("/")
    found = KINDS[kind](setting, int(seed))
    return (
        {**found, "data": "regressions generated as in the paper, but with 90 clients in 20 dimensions"}
        if setting in SMALL
        else found
    )


# ---- measures and figures


def rounds_to_settle(errors: Sequence[float]) -> int:
    """The first round from which the error stays within 5 % of its last value.

    >>> rounds_to_settle([1.0, 0.5, 0.21, 0.2])
    2
    """
    rounds = len(errors) - 1
    while rounds > 0 and errors[rounds - 1] <= 1.05 * errors[-1]:
        rounds -= 1
    return rounds


def measures(results: Results) -> dict[str, float]:
    """The measures that the claims refer to: medians over seeds and shares of seeds, from the cells that exist."""
    found = {f"{setting}.{name}": value for setting in SETTINGS for name, value in _measures_of(results, setting)}
    for name, one, other in (
        ("unbalanced.s5_speed_up_over_balanced", "unbalanced.s5_speed_up", "balanced.s5_speed_up"),
        ("skewed.rounds_over_unbalanced", "skewed.rounds", "unbalanced.rounds"),
    ):
        if one in found and other in found:
            found[name] = found[one] / found[other]
    return found | dict(_quick_measures(results))


def _quick_measures(results: Results) -> Iterator[tuple[str, float]]:
    if not (trial := _of(results, "trial", "small").get(0)):
        return
    oracle = trial["oracle"][-1]
    yield "small.ratio_to_oracle", trial["second"][-1] / oracle
    yield "small.first_phase_ratio", trial["first"][-1] / trial["first"][0]
    if runs := _of(results, "rivals", "small").get(0):
        yield "small.fedavg_ratio", runs["FedAvg"][-1] / oracle
        yield "small.ifca_ratio", runs["IFCA"][-1] / oracle


def _measures_of(results: Results, setting: str) -> Iterator[tuple[str, float]]:
    trials = _of(results, "trial", setting)
    if not trials:
        return
    yield from _of_trials(list(trials.values()))
    if 0 in trials and (variants := _of(results, "variants", setting)):
        yield from _of_local_work({"s = 5": trials[0]["second"], **variants[0]})
    runs = {seed: run for seed, run in _of(results, "rivals", setting).items() if seed in trials}
    rounds = median(rounds_to_settle(one["second"]) for one in trials.values())
    for name in ("FedAvg", "IFCA", "one-shot") if runs else ():
        short, settled = name.lower().replace("-", "_"), median(rounds_to_settle(run[name]) for run in runs.values())
        yield f"{short}_error", median(run[name][-1] for run in runs.values())
        yield f"{short}_ratio", median(run[name][-1] / trials[seed]["oracle"][-1] for seed, run in runs.items())
        yield from {f"{short}_rounds": settled, f"{short}_rounds_over_ours": settled / rounds}.items()


def _of_trials(every: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    ratios = [one["second"][-1] / one["oracle"][-1] for one in every]
    start, end = (median(one["first"][place] for one in every) for place in (0, -1))
    yield "seeds", len(every)
    yield "share_with_k_groups", _share(one["groups"] == K for one in every)
    yield "share_with_all_anchors_near", _share(one["farthest_anchor"] <= 1 for one in every)
    yield "share_with_all_anchors_within_a_quarter", _share(one["farthest_anchor"] <= 0.5 for one in every)
    yield "nearest_farthest_anchor", min(one["farthest_anchor"] for one in every)
    yield "share_with_median_anchor_near", _share(one["median_anchor"] <= 1 for one in every)
    yield "share_within_5_percent_of_oracle", _share(ratio <= 1.05 for ratio in ratios)
    yield "worst_ratio_to_oracle", max(ratios)
    yield from {"start_error": start, "first_phase_error": end, "first_phase_ratio": end / start}.items()
    yield "error", median(one["second"][-1] for one in every)
    yield "oracle_error", median(one["oracle"][-1] for one in every)
    yield "rounds", median(rounds_to_settle(one["second"]) for one in every)


def _of_local_work(curves: Mapping[str, Sequence[float]]) -> Iterator[tuple[str, float]]:
    for name, errors in curves.items():
        short = name.lower().replace(" = ", "")
        yield from {f"{short}_rounds": rounds_to_settle(errors), f"{short}_error": errors[-1]}.items()
    yield "s5_speed_up", rounds_to_settle(curves["s = 1"]) / rounds_to_settle(curves["s = 5"])
    yield "s10_inflation", curves["s = 10"][-1] / curves["s = 1"][-1]


def _share(outcomes: Iterable[bool]) -> float:
    every = list(outcomes)
    return sum(every) / len(every)


def _of(results: Results, kind: str, setting: str) -> dict[int, Any]:
    prefix = f"{kind}/{setting}/"
    return {int(name.removeprefix(prefix)): value for name, value in results.items() if name.startswith(prefix)}


def draw(results: Results, path: Path) -> None:
    """Draw the six panels: error by round of both phases by local training (left) and of the rivals (right)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(len(SETTINGS), 2, figsize=(11, 12), layout="constrained")
    for number, (setting, (left, right)) in enumerate(zip(SETTINGS, panels, strict=True), 1):
        one = _of(results, "trial", setting).get(0)
        status = "" if one else ", not run"
        left.set_title(f"Figure {number}, left: {setting}{status}")
        right.set_title(f"Figure {number}, right: {setting}, s = 5{status}")
        for panel in (left, right):
            panel.axvline(ITERATIONS, color="0.8", zorder=0)
            panel.set(yscale="log", xlabel="round (up to 5: iterations of phase 1)", ylabel="error d(θ, θ*)")
            panel.grid(alpha=0.2)
        if one:
            _draw_row(left, right, one, *(_of(results, kind, setting).get(0, {}) for kind in ("variants", "rivals")))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_row(left: Any, right: Any, one: Results, variants: Results, rivals: Results) -> None:
    """Draw both panels of a setting, from the cells that have been run."""
    for name, errors in sorted({**variants, "s = 5": one["second"]}.items(), key=lambda row: _ORDER.index(row[0])):
        _line(left, one["first"] + errors[1:], name, ROUNDS + ITERATIONS)
    _line(right, one["first"] + one["second"][1:], "both phases", 250)
    for name, errors in rivals.items():
        _line(right, errors, name, 250)
    _line(right, one["oracle"], "oracle", 250, dashes=(4, 2), color="black")
    for panel in (left, right):
        panel.legend()


_ORDER = ["s = 1", "s = 5", "s = 10", "FedProx"]


def _line(panel: Any, errors: Sequence[float], label: str, until: int, **style: Any) -> None:
    """Draw a curve; one that ended early because nothing moved is extended at its last value."""
    level = [errors[-1]] * max(0, until + 1 - len(errors))
    panel.plot(range(until + 1), [*errors, *level][: until + 1], label=label, **style)
