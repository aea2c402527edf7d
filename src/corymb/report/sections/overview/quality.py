"""The test score of each run, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corymb.report.content import Figure, PlotlyTrace, Section
from corymb.report.figures.drawing import NO_CLUSTER, flag, is_near, safe, upright
from corymb.report.scores import Score, score_of, trivial_caption, trivial_of
from corymb.report.words import titles_of

if TYPE_CHECKING:
    from corymb.runs.run import Run


def quality(runs: Sequence[Run]) -> Figure | None:
    """The test score of each run: the mean over clients and over the worst tenth of them."""
    score = score_of(runs[0])
    if score is None:
        return None
    shown = [
        (title, run)
        for title, run in zip(titles_of(runs), runs, strict=True)
        if np.isfinite(run.metrics.get(f"test_{score.name}", np.nan))
    ]
    if not shown:
        return None
    mean = [run.metrics[f"test_{score.name}"] for _, run in shown]
    worst = [run.metrics[f"worst_decile_{score.name}"] for _, run in shown]
    names = [safe(title) for title, _ in shown]
    colours = ["$accent" if run is runs[0] else NO_CLUSTER for _, run in shown]
    spans = [
        {"type": "scatter", "mode": "lines", "x": [low, high], "y": [name, name], "hoverinfo": "skip",
         "line": {"color": tint, "width": 3}, "opacity": 0.45}
        for low, high, name, tint in zip(worst, mean, names, colours, strict=True)
    ]  # fmt: skip
    ends = [
        _ends(score, names, worst, colours, "circle-open", "worst tenth", "bottom center"),
        _ends(score, names, mean, colours, "circle", "mean", "top center"),
    ]
    drawn, trivial = [*worst, *mean], trivial_of(runs[0], score)
    near = trivial is not None and (score.percent or is_near(trivial, drawn, spans=3))
    around = _around([*drawn, *([trivial] if near and trivial is not None else [])], score)
    layout = {
        "height": 144 + 58 * len(names),
        "xaxis": {
            "title": {"text": f"test {score.words}"},
            "tickformat": ".0%" if score.percent else "",
            "range": around,
        },
        "yaxis": {"type": "category", "range": [len(names) - 0.4, -0.6], "showgrid": False},
        "margin": {"l": 118, "r": 30},
    }
    if near and trivial is not None:
        layout["shapes"] = [upright(trivial)]
        layout["annotations"] = [flag(trivial, "trivial baseline", left=trivial > sum(around) / 2)]
    beside = trivial_caption(trivial, score, near=near)
    caption = f"Filled: mean test {score.words} over clients. Open: mean over the worst tenth of them.{beside}"
    title = "Quality compared" if len(shown) > 1 else "Quality"
    return Figure("quality", title, caption, [*spans, *ends], layout)


def _ends(
    score: Score, names: list[str], values: list[float], colours: list[str], symbol: str, what: str, place: str
) -> PlotlyTrace:
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": values,
        "y": names,
        "text": [score.text(value) for value in values],
        "textposition": place,
        "marker": {"color": colours, "size": 12, "symbol": symbol, "line": {"color": colours, "width": 2.5}},
        "hovertemplate": f"%{{y}}, {what}: %{{text}}<extra></extra>",
        "cliponaxis": False,
    }


def _around(values: Sequence[float], score: Score) -> list[float]:
    low, high = min(values), max(values)
    space = max(0.12 * (high - low), 0.02 * abs(high), 1e-9)
    return [low - space, min(1.02, high + space) if score.percent else high + space]


SECTION = Section(order=20, show=quality)
