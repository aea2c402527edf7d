"""The scores of a run as they are shown: which metric leads, how its values are written, and the trivial one beside."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corymb.objectives.measures import METRICS
from corymb.runs.history import readable

if TYPE_CHECKING:
    from corymb.runs.run import Run

SKEWED = 0.8
"""Accuracy says little where always answering the most frequent class is right this often."""
WHY_UNDEFINED = {"auc": "has test examples of one class only", "r2": "has the same target in all its test examples"}


class Score(NamedTuple):
    """A measure of quality: its name, and whether less of it is better."""

    name: str
    lower_is_better: bool

    @property
    def words(self) -> str:
        """The name as it is written in a sentence."""
        return METRICS[self.name].title if self.name in METRICS else self.name.replace("_", " ")

    @property
    def heading(self) -> str:
        """The name as a title begins: with a capital letter."""
        return self.words[0].upper() + self.words[1:]

    @property
    def trivial(self) -> str:
        """What the trivial prediction does, in words."""
        return METRICS[self.name].trivial if self.name in METRICS else "the same answer for every example"

    @property
    def percent(self) -> bool:
        """Whether values are shown in per cent."""
        return self.name.endswith("accuracy")

    def text(self, value: float | None) -> str:
        """A value as it is shown."""
        if value is None or not np.isfinite(value):
            return "–"
        return f"{value:.1%}" if self.percent else readable(value)

    def better(self, ours: float, theirs: float) -> bool:
        """Whether ours is better."""
        return ours < theirs if self.lower_is_better else ours > theirs

    def gain(self, ours: float, theirs: float) -> str:
        """How much better or worse ours is, in words."""
        if self.percent:
            points = abs(ours - theirs) * 100
            same, size = points < 0.05, f"{points:.1f} points"
        elif self.lower_is_better:
            same, size = abs(ours - theirs) < 1e-3 * abs(theirs), f"{abs(ours / theirs - 1) if theirs else 0:.1%}"
        else:  # a part of 1, such as AUC, or of nothing: a ratio would mislead
            same, size = abs(ours - theirs) < 5e-4, readable(abs(ours - theirs), 2)
        return "the same as" if same else f"{size} {'better' if self.better(ours, theirs) else 'worse'} than"


def score_of(run: Run) -> Score | None:
    """The measure by which the run's test examples were scored, if there were any for which it is defined."""
    name = run.metric
    known = name is not None and f"test_{name}" in run.metrics
    return Score(name, not run.higher_is_better(name)) if name is not None and known else None


def scores_in(run: Run) -> list[Score]:
    """Every measure that the run has, the one that leads first."""
    prefix = "worst_decile_"
    names = [name.removeprefix(prefix) for name in run.metrics if name.startswith(prefix)]
    return [Score(name, not run.higher_is_better(name)) for name in sorted(names, key=lambda name: name != run.metric)]


def trivial_of(run: Run, score: Score) -> float | None:
    """What the trivial prediction scores at the same clients; None where it is not known."""
    value = run.metrics.get(f"trivial_{score.name}")
    return value if value is not None and np.isfinite(value) else None


def scores_of(run: Run, score: Score | None = None) -> NDArray[np.float64] | None:
    """Each client's test score (n) by the measure that leads, or another; NaN where it has none, None if not kept."""
    score = score or score_of(run)
    found = run.by_client.get(score.name) if score is not None else None
    kept = run.scores if found is None else found.served
    return None if kept is None else np.asarray(kept.double().numpy())


def trivial_scores_of(run: Run, score: Score) -> NDArray[np.float64] | None:
    """Each client's test score (n) of the trivial prediction; None where it is not known."""
    found = run.by_client.get(score.name)
    return None if found is None or found.trivial is None else np.asarray(found.trivial.double().numpy())


def served_worse(run: Run, score: Score) -> int:
    """How many clients are served no better than by the trivial prediction."""
    served, trivial = scores_of(run, score), trivial_scores_of(run, score)
    if served is None or trivial is None:
        return 0
    return int((served >= trivial).sum() if score.lower_is_better else (served <= trivial).sum())


def score_rows(run: Run) -> list[dict[str, str]]:
    """A row for each measure: its means over clients, over examples and over the worst tenth, and the trivial one."""
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
    """A count of clients; 0 where it is not known, since one of them could not be scored."""
    return int(count) if math.isfinite(count) else 0


def _tested(run: Run) -> int:
    """How many clients have test examples, where that was kept."""
    return 0 if run.scores is None else int(run.scores.isfinite().sum()) + len(run.not_scored)


def other_metrics(run: Run) -> dict[str, float]:
    """The metrics that are no score or of no score: training loss, agreement with true clusters, details."""
    shown = {
        key.format(score.name)
        for score in scores_in(run)
        for key in ("test_{}", "test_{}_examples", "worst_decile_{}", "undefined_{}", *_TRIVIAL_KEYS)
    }
    return {name: value for name, value in run.metrics.items() if name not in shown}


_TRIVIAL_KEYS = ("trivial_{}", "trivial_{}_examples", "trivial_worst_decile_{}")


def cautions(run: Run) -> Iterator[str]:
    """What keeps a score from misleading: that it does not beat the trivial one, or is not everybody's."""
    score = score_of(run)
    if score is not None and (trivial := trivial_of(run, score)) is not None:
        ours = run.metrics[f"test_{score.name}"]
        if np.isfinite(ours) and not score.better(ours, trivial):
            values = f"test {score.words} {score.text(ours)}, and {score.text(trivial)} without any features"
            yield f"The run is no better than {score.trivial}: {values}."
        if score.name == "accuracy" and trivial >= SKEWED:
            yield (
                f"{score.trivial[0].upper()}{score.trivial[1:]} is right in {trivial:.1%} of cases: "
                "--metric balanced_accuracy or auc tells more than accuracy."
            )
    if run.metric is not None and (undefined := int(run.metrics.get(f"undefined_{run.metric}", 0))):
        tested, chosen = _tested(run), _named(run.metric)
        why = f": each of the others {WHY_UNDEFINED[run.metric]}" if run.metric in WHY_UNDEFINED else ""
        yield f"{chosen} over {tested - undefined} of {tested} clients{why}."


def _named(name: str) -> str:
    return Score(name, lower_is_better=False).heading
