"""Compare two runs: clients that changed cluster, differences in metrics and costs, and whether they are chance.

If each side is a group of runs, one per seed, runs of the same seed are pairs, and a difference comes with two
p-values: of the paired t-test, which assumes normal differences, and of Wilcoxon's signed-rank test, which does not but
needs six pairs to reach 0.05.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from corymb.evaluate import adjusted_rand_index
from corymb.objectives.measures import METRICS, listed
from corymb.runs.history import plain
from corymb.settings import require

if TYPE_CHECKING:
    from corymb.runs.run import Run


class Side(NamedTuple):
    """One run, or several that differ only in their seed, by seed."""

    name: str
    runs: Mapping[int, Run]


class Confusion(NamedTuple):
    """How many clients are in which cluster of either run; clusters of B in the order that agrees best with A's."""

    rows: list[int]
    """Clusters of A."""
    columns: list[int]
    """Clusters of B."""
    counts: list[list[int]]
    ari: float
    same: float
    """The share of clients in the same cluster, after matching."""


class Delta(NamedTuple):
    """A metric or a cost on both sides: means over seeds, and the spread and significance of the difference."""

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
    """The result of `corymb compare`."""

    names: tuple[str, str]
    seeds: list[int]
    """The seed of each pair."""
    deltas: list[Delta]
    confusion: Confusion | None
    """Of the first pair; None if the runs have different clients."""
    ari: list[float]
    """Agreement of the clusters, for each pair."""
    metric: str = ""
    """The metric that leads: it comes first among the differences, and says which side is better."""
    lower_is_better: bool = False

    @property
    def better(self) -> str | None:
        """The better side, A or B, by the metric that leads; None where they are equal or one is not known."""
        test = next((delta for delta in self.deltas if delta.name == f"test_{self.metric}"), None)
        if test is None or not math.isfinite(test.difference) or test.difference == 0:
            return None
        return "B" if (test.difference < 0) == self.lower_is_better else "A"

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        deltas = {delta.name: {**delta._asdict(), "difference": delta.difference} for delta in self.deltas}
        confusion = self.confusion._asdict() if self.confusion else None
        whole = {
            "runs": list(self.names),
            "seeds": self.seeds,
            "metric": self.metric,
            "better": self.better,
            "deltas": deltas,
            "confusion": confusion,
            "ari": self.ari,
        }
        return {name: plain(value) for name, value in whole.items()}


def group(name: str, runs: Iterable[Run]) -> Side:
    """Runs that differ only in their seed."""
    found: dict[int, Run] = {}
    for run in runs:
        require(
            run.seed not in found, f"{name} has two runs of seed {run.seed}: the runs of a group have different seeds."
        )
        found[run.seed] = run
    return Side(name, dict(sorted(found.items())))


def compare(a: Side, b: Side, metric: str | None = None) -> Comparison:
    """Compare B with A. Two single runs are a pair whatever their seeds; groups are paired by seed.

    The metric that leads is the one given, or that of the first run of A.
    """
    pairs = _pairs(a, b)
    leading = _leading(pairs, metric)
    first = confusion(*pairs[0])
    agreed = [found.ari for found in (confusion(*pair) for pair in pairs) if found is not None]
    seeds = [left.seed for left, _ in pairs]
    lower = bool(leading) and not pairs[0][0].higher_is_better(leading)
    return Comparison((a.name, b.name), seeds, deltas(pairs, leading), first, agreed, leading, lower)


def _leading(pairs: Sequence[tuple[Run, Run]], metric: str | None) -> str:
    """The metric to judge by; refuses one that some run does not have."""
    first = pairs[0][0]
    if metric is None:
        return first.metric or ""
    common = [name for name in METRICS if all(f"test_{name}" in run.metrics for pair in pairs for run in pair)]
    known = all(f"test_{metric}" in run.metrics for pair in pairs for run in pair)
    require(known, f"There is no metric {metric!r} that all runs have: choose {listed(common)}.")
    return metric


def _pairs(a: Side, b: Side) -> list[tuple[Run, Run]]:
    if len(a.runs) == 1 and len(b.runs) == 1:
        return list(zip(a.runs.values(), b.runs.values(), strict=True))
    common = [seed for seed in a.runs if seed in b.runs]
    require(bool(common), f"{a.name} and {b.name} have no seed in common: groups are compared seed by seed.")
    return [(a.runs[seed], b.runs[seed]) for seed in common]


def confusion(a: Run, b: Run) -> Confusion | None:
    """Clusters of A against clusters of B; None for runs with different clients, or where examples have clusters."""
    from scipy.optimize import linear_sum_assignment

    if set(a.names) != set(b.names) or not a.labels or not b.labels:
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


def deltas(pairs: Sequence[tuple[Run, Run]], leading: str = "") -> list[Delta]:
    """The difference in every metric and cost that both sides have, the leading metric's first.

    Of trivial scores, which say nothing about a run, there is only the one beside the leading metric.
    """
    measured = [(_measures(a), _measures(b)) for a, b in pairs]
    head = [name.format(leading) for name in ("test_{}", "trivial_{}", "worst_decile_{}", "test_{}_examples")]
    every = [*head, *measured[0][0]]
    shown = [name for name in dict.fromkeys(every) if name in head or not name.startswith(("trivial_", "undefined_"))]
    names = [name for name in shown if all(name in a and name in b for a, b in measured)]
    return [_delta(name, [a[name] for a, _ in measured], [b[name] for _, b in measured]) for name in names]


def _measures(run: Run) -> dict[str, float]:
    """Rounds are those of the history, as everywhere else: the ledger's also count what standardises."""
    sent = {name: float(getattr(run.ledger, name)) for name in ("bytes_down", "bytes_up")}
    own = {"clusters": float(run.clusters), **sent, "rounds": float(len(run.history)), "seconds": run.seconds}
    return {**run.metrics, **own}


def _delta(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Delta:
    a, b = np.array(ours), np.array(theirs)
    differences = b - a
    if len(a) < 2 or not np.isfinite(differences).all():
        return Delta(name, float(a.mean()), float(b.mean()))
    spread = float(differences.std(ddof=1))
    return Delta(name, float(a.mean()), float(b.mean()), spread, *_significance(differences))


def _significance(differences: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The p-values of the paired t-test and of Wilcoxon's test; 1 if there are no differences."""
    from scipy import stats

    if not differences.any():
        return 1.0, 1.0
    with warnings.catch_warnings():  # differences that are all equal: the p of the t-test is 0
        warnings.simplefilter("ignore", RuntimeWarning)
        t_test = float(stats.ttest_1samp(differences, 0.0).pvalue)
        wilcoxon = float(stats.wilcoxon(differences).pvalue)
    return t_test if math.isfinite(t_test) else 0.0, wilcoxon
