"""The test score by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corymb.report.content import Figure, Section
from corymb.report.facts import kept_rounds
from corymb.report.figures.drawing import NO_CLUSTER, is_near, label_at, level, line, rounded
from corymb.report.scores import score_of, trivial_caption, trivial_of
from corymb.runs.history import counted

if TYPE_CHECKING:
    from corymb.runs.run import Run


def course(runs: Sequence[Run]) -> Figure | None:
    """The test score by round; None unless at least three rounds were evaluated."""
    run = runs[0]
    score, rows = score_of(run), [(t, row["metrics"]) for t, row in enumerate(kept_rounds(run), 1) if "metrics" in row]
    if score is None or len(rows) < 3:
        return None
    traces, annotations = [], []
    for name, words, tint in (("test", "mean", "$accent"), ("worst_decile", "worst tenth", NO_CLUSTER)):
        values = [(t, metrics.get(f"{name}_{score.name}")) for t, metrics in rows]
        known = [(t, value) for t, value in values if value is not None and np.isfinite(value)]
        if not known:
            return None
        traces.append(line([t for t, _ in known], [rounded(value) for _, value in known], tint))
        annotations.append({**label_at(*known[-1], words, tint), "yshift": 12 if name == "test" else -14})
    axis = {"title": {"text": f"test {score.words}"}, "tickformat": ".0%" if score.percent else ""}
    trivial, drawn = trivial_of(run, score), [value for trace in traces for value in trace["y"]]
    near = trivial is not None and is_near(trivial, drawn, spans=1)
    layout = {
        "height": 320,
        "xaxis": {"title": {"text": "round"}},
        "yaxis": axis,
        "annotations": annotations,
        "shapes": [level(trivial)] if trivial is not None and near else [],
    }
    beside = trivial_caption(trivial, score, near=near)
    caption = f"Evaluated in {counted(len(rows), 'round')}. A flat end means that more rounds would add little.{beside}"
    return Figure("course", f"Test {score.words} by round", caption, traces, layout)


SECTION = Section(order=20, show=course)
