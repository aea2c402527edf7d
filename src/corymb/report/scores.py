"""How a run's scores are shown: the main metric, the formatting of its values, and the trivial baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corymb.objectives.measures import METRICS
from corymb.objectives.measures.numbers import ENOUGH
from corymb.runs.history import readable

if TYPE_CHECKING:
    from corymb.runs.run import Run

SKEWED = 0.8
"""Accuracy says little if always predicting the most frequent class is right at least this often."""
WHY_UNDEFINED = {
    "auc": "has test examples of one class only",
    "r2": f"has fewer than {ENOUGH} test examples, or the same target in all of them",
}


class Score(NamedTuple):
    """A metric of quality: its name, and whether lower is better."""

    name: str
    lower_is_better: bool

    @property
    def words(self) -> str:
        """The metric's name in running text."""
        return METRICS[self.name].title if self.name in METRICS else self.name.replace("_", " ")

    @property
    def heading(self) -> str:
        """The metric's name with a capital first letter."""
        return self.words[0].upper() + self.words[1:]

    @property
    def trivial(self) -> str:
        """A description of the trivial prediction."""
        return METRICS[self.name].trivial if self.name in METRICS else "the same answer for every example"

    @property
    def percent(self) -> bool:
        """Whether values are shown as percentages."""
        return self.name.endswith("accuracy")

    def text(self, value: float | None) -> str:
        """Format a value; a missing or non-finite one is a dash."""
        if value is None or not np.isfinite(value):
            return "–"
        return f"{value:.1%}" if self.percent else readable(value)

    def better(self, ours: float, theirs: float) -> bool:
        """Whether `ours` is better than `theirs`."""
        return ours < theirs if self.lower_is_better else ours > theirs

    def gain(self, ours: float, theirs: float) -> str:
        """How much better or worse `ours` is, such as `2.1 points better than`."""
        if self.percent:
            points = abs(ours - theirs) * 100
            same, size = points < 0.05, f"{points:.1f} points"
        elif self.lower_is_better:
            same, size = abs(ours - theirs) < 1e-3 * abs(theirs), f"{abs(ours / theirs - 1) if theirs else 0:.1%}"
        else:  # bounded by 1, such as AUC, or possibly near 0: a ratio would mislead
            same, size = abs(ours - theirs) < 5e-4, readable(abs(ours - theirs), 2)
        return "the same as" if same else f"{size} {'better' if self.better(ours, theirs) else 'worse'} than"


def score_of(run: Run) -> Score | None:
    """The run's main metric; None if it is undefined or there were no test examples."""
    name = run.metric
    known = name is not None and f"test_{name}" in run.metrics
    return Score(name, not run.higher_is_better(name)) if name is not None and known else None


def scores_in(run: Run) -> list[Score]:
    """Every metric of the run, the main one first."""
    prefix = "worst_decile_"
    names = [name.removeprefix(prefix) for name in run.metrics if name.startswith(prefix)]
    return [Score(name, not run.higher_is_better(name)) for name in sorted(names, key=lambda name: name != run.metric)]


def trivial_of(run: Run, score: Score) -> float | None:
    """The trivial prediction's mean score over the same clients; None if unknown."""
    value = run.metrics.get(f"trivial_{score.name}")
    return value if value is not None and np.isfinite(value) else None


def scores_of(run: Run, score: Score | None = None) -> NDArray[np.float64] | None:
    """Each client's test score (n) by the main metric or the given one, NaN where it has none; None if not kept."""
    score = score or score_of(run)
    found = run.by_client.get(score.name) if score is not None else None
    kept = run.scores if found is None else found.served
    return None if kept is None else np.asarray(kept.double().numpy())


def trivial_caption(trivial: float | None, score: Score, *, near: bool) -> str:
    """A sentence for the caption of a figure about the trivial prediction's line; empty if its score is unknown."""
    if trivial is None:
        return ""
    return f" Dotted: {score.trivial}." if near else f" Off the scale: {score.trivial}, {score.text(trivial)}."


def trivial_scores_of(run: Run, score: Score) -> NDArray[np.float64] | None:
    """The trivial prediction's test score at each client (n); None if unknown."""
    found = run.by_client.get(score.name)
    return None if found is None or found.trivial is None else np.asarray(found.trivial.double().numpy())


def served_worse(run: Run, score: Score) -> int:
    """The number of clients whose score is no better than the trivial prediction's."""
    served, trivial = scores_of(run, score), trivial_scores_of(run, score)
    if served is None or trivial is None:
        return 0
    return int((served >= trivial).sum() if score.lower_is_better else (served <= trivial).sum())


def score_rows(run: Run) -> list[dict[str, str]]:
    """A row for each metric: its mean over clients, examples and the worst tenth, and the trivial baseline."""
    tested, scores, rows = _tested(run), scores_in(run), list[dict[str, str]]()
    undefined = [_number(run.metrics.get(f"undefined_{score.name}", 0)) for score in scores]
    for score, without in zip(scores, undefined, strict=True):
        row = {
            "test score": score.words,
            "mean": score.text(run.metrics[f"test_{score.name}"]),
            "trivial": score.text(trivial_of(run, score)),
            "worst tenth": score.text(run.metrics[f"worst_decile_{score.name}"]),
            "by example": score.text(run.metrics.get(f"test_{score.name}_examples")),
        }
        rows.append({**row, "clients": f"{tested - without} of {tested}"} if any(undefined) else row)
    return rows


def _number(count: float) -> int:
    """A count of clients as an integer; 0 if it is unknown (not finite) because a client could not be scored."""
    return int(count) if math.isfinite(count) else 0


def _tested(run: Run) -> int:
    """The number of clients with test examples; 0 if scores were not kept."""
    return 0 if run.scores is None else int(run.scores.isfinite().sum()) + len(run.not_scored)


def other_metrics(run: Run) -> dict[str, float]:
    """The metrics that do not belong to a test score: training loss, agreement with the true groups, and the like."""
    shown = {
        key.format(score.name)
        for score in scores_in(run)
        for key in ("test_{}", "test_{}_examples", "worst_decile_{}", "undefined_{}", *_TRIVIAL_KEYS)
    }
    return {name: value for name, value in run.metrics.items() if name not in shown}


_TRIVIAL_KEYS = ("trivial_{}", "trivial_{}_examples", "trivial_worst_decile_{}")


def cautions(run: Run) -> Iterator[str]:
    """Warnings about scores that could mislead: no better than trivial, skewed classes, or not all clients covered."""
    score = score_of(run)
    if score is not None and (trivial := trivial_of(run, score)) is not None:
        ours = run.metrics[f"test_{score.name}"]
        if np.isfinite(ours) and not score.better(ours, trivial):
            values = f"test {score.words} {score.text(ours)}, against {score.text(trivial)}"
            yield f"The run is no better than {score.trivial}: {values}."
        if score.name == "accuracy" and trivial >= SKEWED:
            yield (
                f"{score.trivial[0].upper()}{score.trivial[1:]} is right in {trivial:.1%} of cases: "
                "--metric balanced_accuracy or auc is more informative than accuracy."
            )
    if run.metric is not None and (undefined := int(run.metrics.get(f"undefined_{run.metric}", 0))):
        tested, chosen = _tested(run), _named(run.metric)
        why = f": each of the others {WHY_UNDEFINED[run.metric]}" if run.metric in WHY_UNDEFINED else ""
        if f"test_{run.metric}" in run.metrics:
            yield f"{chosen} is averaged over {tested - undefined} of {tested} clients{why}."


def _named(name: str) -> str:
    return Score(name, lower_is_better=False).heading
