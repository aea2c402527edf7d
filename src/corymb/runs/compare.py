"""Two runs side by side: who changed cluster, what the metrics gained, what it cost; over seeds, whether it is chance.

Where each side is a group (a folder with a run folder for each seed), runs of the same seed are pairs, and a
difference comes with two p-values: of the paired t-test, which takes differences to be normal, and of Wilcoxon's
signed-rank test, which does not but needs six pairs to reach 0.05.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from corymb.evaluate import adjusted_rand_index
from corymb.runs.folder.reader import CONFIG
from corymb.runs.run import Run, plain
from corymb.settings import require

COSTS = ("bytes_down", "bytes_up", "rounds", "seconds")


class Side(NamedTuple):
    """One or more runs of one kind, by seed."""

    name: str
    runs: Mapping[int, Run]


class Confusion(NamedTuple):
    """How many clients were in which cluster in either run; clusters of B in the order that agrees best with A's."""

    rows: list[int]
    """Clusters of A."""
    columns: list[int]
    """Clusters of B."""
    counts: list[list[int]]
    ari: float
    same: float
    """The share of clients that stayed, after matching."""


class Delta(NamedTuple):
    """A metric or a cost on both sides: the means over seeds, and what is known of the difference."""

    name: str
    a: float
    b: float
    spread: float | None = None
    """The standard deviation of the differences."""
    t_test: float | None = None
    wilcoxon: float | None = None

    @property
    def difference(self) -> float:
        """B less A."""
        return self.b - self.a


class Comparison(NamedTuple):
    """All that `corymb compare` tells."""

    names: tuple[str, str]
    seeds: list[int]
    """Of the pairs."""
    deltas: list[Delta]
    confusion: Confusion | None
    """Of the first pair; None where the runs had different clients."""
    ari: list[float]
    """Agreement of the assignments, pair by pair."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        deltas = {delta.name: {**delta._asdict(), "difference": delta.difference} for delta in self.deltas}
        confusion = self.confusion._asdict() if self.confusion else None
        whole = {
            "runs": list(self.names),
            "seeds": self.seeds,
            "deltas": deltas,
            "confusion": confusion,
            "ari": self.ari,
        }
        return {name: plain(value) for name, value in whole.items()}


def side(folder: str | Path) -> Side:
    """The run in a folder, or the runs in the folders within it."""
    place = Path(folder).expanduser()
    if (place / CONFIG).is_file():
        run = Run.load(place)
        return Side(str(folder), {run.seed: run})
    within = sorted(path.parent for path in place.glob(f"*/{CONFIG}"))
    require(bool(within), f"{place} is no run, and there are no runs in it: give the folder of a run or of several.")
    return group(str(folder), [Run.load(path) for path in within])


def group(name: str, runs: Iterable[Run]) -> Side:
    """Runs that differ by their seeds only."""
    found: dict[int, Run] = {}
    for run in runs:
        require(run.seed not in found, f"{name} has two runs of seed {run.seed}: those of a group differ by seed.")
        found[run.seed] = run
    return Side(name, dict(sorted(found.items())))


def compare(a: Side, b: Side) -> Comparison:
    """B against A. Two single runs are a pair whatever their seeds; groups are paired by seed."""
    pairs = _pairs(a, b)
    first = confusion(*pairs[0])
    agreed = [found.ari for found in (confusion(*pair) for pair in pairs) if found is not None]
    seeds = [left.seed for left, _ in pairs]
    return Comparison((a.name, b.name), seeds, deltas(pairs), first, agreed)


def _pairs(a: Side, b: Side) -> list[tuple[Run, Run]]:
    if len(a.runs) == 1 and len(b.runs) == 1:
        return list(zip(a.runs.values(), b.runs.values(), strict=True))
    common = [seed for seed in a.runs if seed in b.runs]
    require(bool(common), f"{a.name} and {b.name} have no seed in common: groups are compared seed by seed.")
    return [(a.runs[seed], b.runs[seed]) for seed in common]


def confusion(a: Run, b: Run) -> Confusion | None:
    """Clusters of A against clusters of B, for runs with the same clients."""
    from scipy.optimize import linear_sum_assignment

    if set(a.names) != set(b.names):
        return None
    ours = np.array([a.labels[name] for name in a.names])
    theirs = np.array([b.labels[name] for name in a.names])
    rows, columns = np.unique(ours), np.unique(theirs)
    counts = np.array([[int(((ours == row) & (theirs == column)).sum()) for column in columns] for row in rows])
    at, to = linear_sum_assignment(-counts)
    matched = dict(zip(to.tolist(), at.tolist(), strict=True))
    order = sorted(range(len(columns)), key=lambda place: (place not in matched, matched.get(place, place)))
    return Confusion(
        rows=rows.tolist(),
        columns=columns[order].tolist(),
        counts=counts[:, order].tolist(),
        ari=adjusted_rand_index(torch.from_numpy(ours), torch.from_numpy(theirs)),
        same=float(counts[at, to].sum() / len(ours)),
    )


def deltas(pairs: Sequence[tuple[Run, Run]]) -> list[Delta]:
    """Every metric and cost that both sides have."""
    measured = [(_measures(a), _measures(b)) for a, b in pairs]
    names = [name for name in measured[0][0] if all(name in a and name in b for a, b in measured)]
    return [_delta(name, [a[name] for a, _ in measured], [b[name] for _, b in measured]) for name in names]


def _measures(run: Run) -> dict[str, float]:
    costs = {name: float(getattr(run.ledger, name)) for name in COSTS[:-1]}
    return {**run.metrics, "clusters": float(run.clusters), **costs, "seconds": run.seconds}


def _delta(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Delta:
    a, b = np.array(ours), np.array(theirs)
    differences = b - a
    if len(a) < 2 or not np.isfinite(differences).all():
        return Delta(name, float(a.mean()), float(b.mean()))
    spread = float(differences.std(ddof=1))
    return Delta(name, float(a.mean()), float(b.mean()), spread, *_significance(differences))


def _significance(differences: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The p-values of the paired t-test and of Wilcoxon's; 1 where nothing differs and there is nothing to test."""
    from scipy import stats

    if not differences.any():
        return 1.0, 1.0
    with warnings.catch_warnings():  # differences that are all alike: the t-test's p is 0, said as it is
        warnings.simplefilter("ignore", RuntimeWarning)
        t_test = float(stats.ttest_1samp(differences, 0.0).pvalue)
        wilcoxon = float(stats.wilcoxon(differences).pvalue)
    return t_test if math.isfinite(t_test) else 0.0, wilcoxon
