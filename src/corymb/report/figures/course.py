"""Figures of quality, stability and cost: how well clients are served, and how the run came there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from corymb.report.facts import (
    SURE,
    Score,
    agreement,
    kept_rounds,
    losses_of,
    margins,
    moments,
    repairs,
    score_of,
    scores_of,
)
from corymb.report.figures.drawing import (
    NO_CLUSTER,
    PALETTE,
    Figure,
    Trace,
    box,
    flag,
    label_at,
    line,
    safe,
    upright,
)
from corymb.report.words import titles_of
from corymb.runs.run import Run


def quality(runs: Sequence[Run]) -> Figure | None:
    """Test score of each run: the mean and the worst tenth of clients."""
    score = score_of(runs[0])
    if score is None:
        return None
    shown = [
        (title, run) for title, run in zip(titles_of(runs), runs, strict=True) if f"test_{score.name}" in run.metrics
    ]
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
    layout = {
        "height": 120 + 58 * len(names),
        "xaxis": {"tickformat": ".0%" if score.name == "accuracy" else "", "range": _around([*worst, *mean], score)},
        "yaxis": {"type": "category", "range": [len(names) - 0.4, -0.6], "showgrid": False},
        "margin": {"l": 118, "r": 30},
    }
    caption = f"Filled: mean test {score.words} over clients. Open: mean over the worst tenth of them."
    title = "Quality, beside the baselines" if len(shown) > 1 else "Quality"
    return Figure("quality", "overview", title, caption, [*spans, *ends], layout)


def _ends(
    score: Score, names: list[str], values: list[float], colours: list[str], symbol: str, what: str, place: str
) -> Trace:
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
    return [low - space, min(1.02, high + space) if score.name == "accuracy" else high + space]


def scores_by_cluster(run: Run) -> Figure | None:
    """Clients' test scores within each cluster, or their training losses where no scores were kept."""
    score = score_of(run)
    if run.clusters < 1:
        return None
    if (scores := scores_of(run)) is not None and score is not None:
        values, what, percent = scores, f"test {score.words}", score.name == "accuracy"
    elif (losses := losses_of(run)) is not None:
        values, what, percent = losses.min(1), "training loss of the best model", False
    else:
        return None
    labels = run.snapshot.labels.numpy()
    traces = [box(run, label, values, np.flatnonzero(labels == label), percent) for label in run.sizes]
    layout = {
        "height": 110 + 52 * len(traces),
        "xaxis": {"title": {"text": what}, "tickformat": ".0%" if percent else ""},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "margin": {"l": 84, "r": 20},
    }
    caption = f"Each dot is a client: {what}. Boxes hold the middle half, dots far to the side deserve a look."
    return Figure("by-cluster", "quality", f"{what.capitalize()} by cluster", caption, traces, layout)


def course(run: Run) -> Figure | None:
    """Test score by round, where the run was evaluated on its way."""
    score, rows = score_of(run), [(t, row["metrics"]) for t, row in enumerate(kept_rounds(run), 1) if "metrics" in row]
    if score is None or len(rows) < 3:
        return None
    traces, annotations = [], []
    for name, words, tint in (("test", "mean", "$accent"), ("worst_decile", "worst tenth", NO_CLUSTER)):
        known = [(t, metrics[f"{name}_{score.name}"]) for t, metrics in rows if f"{name}_{score.name}" in metrics]
        traces.append(line([t for t, _ in known], [round(value, 5) for _, value in known], tint))
        annotations.append({**label_at(*known[-1], words, tint), "yshift": 12 if name == "test" else -14})
    axis = {"title": {"text": f"test {score.words}"}, "tickformat": ".0%" if score.name == "accuracy" else ""}
    layout = {"height": 320, "xaxis": {"title": {"text": "round"}}, "yaxis": axis, "annotations": annotations}
    caption = f"It was looked at in {len(rows)} rounds; a flat end says that more rounds would add little."
    return Figure("course", "quality", f"Test {score.words} by round", caption, traces, layout)


def training(run: Run) -> Figure | None:
    """Training loss by round."""
    rows = [row for row in run.history if row["train_loss"] is not None]
    if len(rows) < 2:
        return None
    kept, traces = {row["clock"] for row in kept_rounds(run)}, []
    for stage in dict.fromkeys(_restart(row) for row in rows):
        mine = [row for row in rows if _restart(row) == stage and not str(row["stage"]).startswith("scored")]
        tint = "$accent" if any(row["clock"] in kept for row in mine) else NO_CLUSTER
        traces.append(line(list(range(1, len(mine) + 1)), [row["train_loss"] for row in mine], tint))
    traces.sort(key=lambda trace: bool(trace["line"]["color"] == "$accent"))  # what was kept lies above
    layout = {"height": 320, "xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": "training loss"}}}
    several = len([trace for trace in traces if trace["x"]]) > 1
    caption = "Mean over the clients that took part, before they trained; " + (
        "the restart that was kept is in colour." if several else f"it ended at {rows[-1]['train_loss']:.3g}."
    )
    return Figure("training", "quality", "Training loss", caption, traces, layout)


def _restart(row: dict[str, Any]) -> str:
    first = str(row["stage"]).partition("/")[0]
    return first.replace("scored-", "restart-") if first.startswith(("restart-", "scored-")) else ""


def stability(run: Run) -> Figure | None:
    """The share of clients that changed cluster, and the agreement with the round before."""
    rows = kept_rounds(run)
    if len(rows) < 3 or run.clusters < 2:
        return None
    churn = [round(row["churn"], 4) for row in rows[1:]]  # in the first round everybody is new
    traces = [line(list(range(2, len(rows) + 1)), churn, "$accent")]
    annotations = [label_at(len(rows), churn[-1], "churn", "$accent")]
    if path := moments(run):
        agreed = [(t, round(value, 4)) for t, value in agreement(path)]
        traces.append(line([t for t, _ in agreed], [value for _, value in agreed], PALETTE[1]))
        annotations.append(label_at(len(rows), agreed[-1][1], "ARI to the round before", PALETTE[1]))
    mended = repairs(run)
    layout = {
        "height": 340,
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"range": [-0.04, 1.08], "tickformat": ".0%" if len(traces) == 1 else ""},
        "shapes": [upright(t) for t in mended],
        "annotations": [*annotations, *(flag(t, "regrouped") for t in mended[:1])],
    }
    caption = "Churn is the share of clients that changed cluster in a round: a settled run has none, and an ARI of 1."
    return Figure("stability", "stability", "Churn and agreement by round", caption, traces, layout)


def sureness(run: Run) -> Figure | None:
    """The margin between the best model and the second best, by cluster."""
    losses = losses_of(run)
    if losses is None or run.clusters < 1:
        return None
    sure, labels = margins(losses), run.snapshot.labels.numpy()
    traces = [box(run, label, sure, np.flatnonzero(labels == label), False) for label in run.sizes]
    doubtful = int((sure < SURE).sum())
    layout = {
        "height": 110 + 52 * len(traces),
        "xaxis": {"type": "log", "title": {"text": "second least loss ÷ least loss"}, "tickangle": 0,
                  "tickvals": [1, 2, 5, 10, 30, 100, 1000], "range": [-0.04, float(np.log10(np.nanmax(sure))) + 0.1]},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "shapes": [upright(SURE)],
        "annotations": [flag(float(np.log10(SURE)), f"{SURE}×")],
        "margin": {"l": 84, "r": 20},
    }  # fmt: skip
    many = "No client is" if not doubtful else "One client is" if doubtful == 1 else f"{doubtful} clients are"
    caption = f"Right of the line a client's own model clearly fits better than the next. {many} left of it."
    return Figure("margins", "stability", "How sure clients are of their cluster", caption, traces, layout)


def traffic(run: Run) -> Figure | None:
    """Bytes by round."""
    rows = run.history
    if not rows:
        return None
    clocks = [row["clock"] for row in rows]
    traces = [
        _bytes(clocks, [row["bytes_down"] / 1e6 for row in rows], "to clients", "$accent"),
        _bytes(clocks, [row["bytes_up"] / 1e6 for row in rows], "from clients", NO_CLUSTER),
    ]
    caption = "The sizes of clients' own messages, the same on every engine."
    layout = {
        "height": 340,
        "barmode": "stack",
        "bargap": 0.08 if len(rows) <= 40 else 0,
        "showlegend": True,
        "xaxis": {"title": {"text": "round"}, "showgrid": False},
        "yaxis": {"title": {"text": "MB"}},
    }
    return Figure("traffic", "communication", "Bytes by round", caption, traces, layout, wide=True)


def _bytes(x: list[int], y: list[float], name: str, tint: str) -> Trace:
    return {"type": "bar", "x": x, "y": y, "name": name, "marker": {"color": tint, "line": {"width": 0}},
            "hovertemplate": f"round %{{x}}, {name}: %{{y:.3g}} MB<extra></extra>"}  # fmt: skip
