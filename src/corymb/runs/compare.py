"""Compare two runs: their clusters, and the differences in metrics and costs with their significance.

If each side is a group of runs, one per seed, runs of the same seed are paired, and each difference has two p-values:
that of the paired t-test, which assumes normal differences, and that of Wilcoxon's signed-rank test, which does not but
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
    """One run, or several that differ only in their seed, keyed by seed."""

    name: str
    runs: Mapping[int, Run]


class Confusion(NamedTuple):
    """The contingency table of clients by their clusters in A and B, with B's columns matched to A's rows."""

    rows: list[int]
    """Clusters of A."""
    columns: list[int]
    """Clusters of B."""
    counts: list[list[int]]
    ari: float
    same: float
    """The share of clients in the same cluster, after matching."""


class Delta(NamedTuple):
    """A metric or cost of both sides: means over seeds, and the spread and significance of the difference."""

    name: str
    a: float
    b: float
    spread: float | None = None
    """The standard deviation of the differences."""
    t_test: float | None = None
    wilcoxon: float | None = None

    @property
    def difference(self) -> float:
        """B − A."""
        return self.b - self.a


class Comparison(NamedTuple):
    """The result of `corymb compare`."""

    names: tuple[str, str]
    seeds: list[int]
    """The seed of each pair."""
    deltas: list[Delta]
    confusion: Confusion | None
    """The confusion of the first pair; None if the runs have different clients."""
    ari: list[float]
    """The ARI between the clusters of each pair."""
    metric: str = ""
    """The main metric: it is listed first, and decides which side is better."""
    lower_is_better: bool = False

    @property
    def better(self) -> str | None:
        """The better side by the main metric, A or B; None if they are equal or one is unknown."""
        test = next((delta for delta in self.deltas if delta.name == f"test_{self.metric}"), None)
        if test is None or not math.isfinite(test.difference) or test.difference == 0:
            return None
        return "B" if (test.difference < 0) == self.lower_is_better else "A"

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain values for JSON."""
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
    """Group runs that differ only in their seed."""
    found: dict[int, Run] = {}
    for run in runs:
        require(
            run.seed not in found, f"{name} has two runs with seed {run.seed}: the runs of a group need distinct seeds."
        )
        found[run.seed] = run
    return Side(name, dict(sorted(found.items())))


def compare(a: Side, b: Side, metric: str | None = None) -> Comparison:
    """Compare B with A. Two single runs are paired whatever their seeds; groups are paired by seed.

    The main metric is the one given, or that of the first run of A.
    """
    pairs = _pairs(a, b)
    leading = _leading(pairs, metric)
    first = confusion(*pairs[0])
    agreed = [found.ari for found in (confusion(*pair) for pair in pairs) if found is not None]
    seeds = [left.seed for left, _ in pairs]
    lower = bool(leading) and not pairs[0][0].higher_is_better(leading)
    return Comparison((a.name, b.name), seeds, deltas(pairs, leading), first, agreed, leading, lower)


def _leading(pairs: Sequence[tuple[Run, Run]], metric: str | None) -> str:
    """The metric to compare by; rejects one that some run does not have."""
    first = pairs[0][0]
    if metric is None:
        return first.metric or ""
    common = [name for name in METRICS if all(f"test_{name}" in run.metrics for pair in pairs for run in pair)]
    known = all(f"test_{metric}" in run.metrics for pair in pairs for run in pair)
    require(known, f"Not all runs have the metric {metric!r}: choose {listed(common)}.")
    return metric


def _pairs(a: Side, b: Side) -> list[tuple[Run, Run]]:
    if len(a.runs) == 1 and len(b.runs) == 1:
        return list(zip(a.runs.values(), b.runs.values(), strict=True))
    common = [seed for seed in a.runs if seed in b.runs]
    require(bool(common), f"{a.name} and {b.name} have no seed in common: groups are compared by seed.")
    return [(a.runs[seed], b.runs[seed]) for seed in common]


def confusion(a: Run, b: Run) -> Confusion | None:
    """Clusters of A against clusters of B; None for runs with different clients, or that cluster examples."""
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
    """The difference in every metric and cost that both sides have, the main metric first.

    Trivial scores do not depend on the run, so only that of the main metric is included.
    """
    measured = [(_measures(a), _measures(b)) for a, b in pairs]
    head = [name.format(leading) for name in ("test_{}", "trivial_{}", "worst_decile_{}", "test_{}_examples")]
    every = [*head, *measured[0][0]]
    shown = [name for name in dict.fromkeys(every) if name in head or not name.startswith(("trivial_", "undefined_"))]
    names = [name for name in shown if all(name in a and name in b for a, b in measured)]
    return [_delta(name, [a[name] for a, _ in measured], [b[name] for _, b in measured]) for name in names]


def _measures(run: Run) -> dict[str, float]:
    """Rounds are those of the history: the ledger also counts the requests for standardising."""
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
    """The p-values of the paired t-test and of Wilcoxon's test; 1 if all differences are 0."""
    from scipy import stats

    if not differences.any():
        return 1.0, 1.0
    with warnings.catch_warnings():  # if all differences are equal, the p of the t-test is 0
        warnings.simplefilter("ignore", RuntimeWarning)
        t_test = float(stats.ttest_1samp(differences, 0.0).pvalue)
        wilcoxon = float(stats.wilcoxon(differences).pvalue)
    return t_test if math.isfinite(t_test) else 0.0, wilcoxon
