"""The figures of a report, as plain values that plotly draws in the reader's browser.

Colours that begin with `$` are those of the page, light or dark, and are filled in when a figure is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from corymb.experiments.report_facts import (
    SURE,
    Numbers,
    Score,
    agreement,
    kept_rounds,
    losses_of,
    margins,
    moments,
    notes_of,
    positions,
    repairs,
    savings,
    score_of,
    scores_of,
    titles_of,
)
from corymb.experiments.report_river import BAR, river
from corymb.experiments.run import Run

# Okabe and Ito's colours (the blue lighter, for dark pages), then Tol's muted ones: safe for colour-blind readers.
PALETTE = (
    *("#1F83C9", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"),
    *("#999933", "#882255", "#44AA99", "#CC6677", "#8C7BD6", "#DDCC77"),
)
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star", "pentagon", "cross", "hexagon", "triangle-down")
NO_CLUSTER = "#8A8F98"
MOST_CLIENTS = 1500
"""More are thinned out in the figures that show each client."""
TIMES = 8
"""The heat map ends at so many times the least loss."""
Trace = dict[str, Any]


class Figure(NamedTuple):
    """One figure: where it stands, what to see in it, and what plotly is given."""

    name: str
    tab: str
    title: str
    caption: str
    data: list[Trace]
    layout: dict[str, Any]
    wide: bool = False


def figures(runs: Sequence[Run]) -> list[Figure]:
    """All figures that can be drawn of a run (the first), beside others."""
    run = runs[0]
    makers: tuple[Callable[[], Figure | None], ...] = (
        lambda: sizes(run),
        lambda: quality(runs),
        lambda: movement(run),
        lambda: client_map(run),
        lambda: heat_map(run),
        lambda: distances(run),
        lambda: silhouettes(run),
        lambda: scores_by_cluster(run),
        lambda: training(run),
        lambda: stability(run),
        lambda: sureness(run),
        lambda: traffic(run),
    )
    made = (make() for make in makers)
    return [figure for figure in made if figure is not None]


def colour(label: int) -> str:
    """The colour of a cluster, the same in every figure."""
    return NO_CLUSTER if label < 0 else PALETTE[label % len(PALETTE)]


def cluster_name(label: int) -> str:
    """What a cluster is called."""
    return "no cluster" if label < 0 else f"cluster {label}"


def safe(name: str) -> str:
    """A user's text as plotly must be given it: it takes some tags for formatting."""
    return escape(name, quote=False)


# ---- overview


def sizes(run: Run) -> Figure | None:
    """Clients in each cluster."""
    counted = run.sizes
    if run.clusters < 1:
        return None
    labels = list(counted)
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": [cluster_name(label) for label in labels],
        "x": list(counted.values()),
        "text": [str(size) for size in counted.values()],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [colour(label) for label in labels]},
        "hovertemplate": "%{y}: %{x} clients<extra></extra>",
    }
    shares = sorted(size / len(run.names) for label, size in counted.items() if label >= 0)
    caption = f"The largest cluster has {shares[-1]:.0%} of all clients, the smallest {shares[0]:.0%}."
    if len(shares) > 1 and shares[0] == shares[-1]:
        caption = f"All clusters are of one size, {shares[0]:.0%} of the clients."
    layout = {
        "height": 90 + 38 * len(labels),
        "bargap": 0.35,
        "xaxis": {"visible": False, "fixedrange": True},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "margin": {"l": 84, "r": 46},
    }
    return Figure("sizes", "overview", "Clients in each cluster", caption, [bars], layout)


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
    return [max(0.0, low - space), min(1.02, high + space) if score.name == "accuracy" else high + space]


# ---- clusters


def movement(run: Run) -> Figure | None:
    """How clients moved between clusters."""
    path = moments(run)
    if len(path) < 2 or run.clusters < 2:
        return None
    drawn = river(path)
    traces = [
        _streams(label, [s for s in drawn.streams if s.label == label])
        for label in sorted({s.label for s in drawn.streams})
    ]
    names = [
        f"round {drawn.rounds[bar.column]}, {cluster_name(bar.label)}: {bar.clients} clients" for bar in drawn.bars
    ]
    handles = {
        "type": "scatter",
        "mode": "markers",
        "x": [bar.column for bar in drawn.bars],
        "y": [bar.top + bar.height / 2 for bar in drawn.bars],
        "text": names,
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": [colour(bar.label) for bar in drawn.bars], "size": 10, "opacity": 0},
    }
    last = len(drawn.rounds) - 1
    bottom = max(bar.top + bar.height for bar in drawn.bars)
    layout = {
        "height": 380,
        "shapes": [
            {"type": "rect", "x0": bar.column - BAR, "x1": bar.column + BAR, "y0": bar.top, "y1": bar.top + bar.height,
             "fillcolor": colour(bar.label), "line": {"width": 0}}
            for bar in drawn.bars
        ],
        "annotations": [
            {"x": last + 2 * BAR, "y": bar.top + bar.height / 2, "xanchor": "left", "showarrow": False,
             "text": f"{cluster_name(bar.label)}, {bar.clients}"}
            for bar in drawn.bars if bar.column == last
        ],
        "xaxis": {"tickvals": list(range(last + 1)), "ticktext": [str(t) for t in drawn.rounds],
                  "title": {"text": "round"}, "showgrid": False, "range": [-0.1, last + 0.1]},
        "yaxis": {"visible": False, "range": [bottom + 0.02, -0.02]},
        "margin": {"l": 14, "r": 104},
    }  # fmt: skip
    return Figure(
        "movement", "clusters", "How clients moved", _moves_caption(run), [*traces, handles], layout, wide=True
    )


def _streams(label: int, streams: Sequence[Any]) -> Trace:
    x, y = [], []
    for stream in streams:
        x += [*stream.x, None]
        y += [*stream.y, None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": _faint(colour(label)),
        "line": {"width": 0, "color": colour(label)},
        "hoverinfo": "skip",
    }


def _faint(code: str) -> str:
    red, green, blue = (int(code[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.38)"


def _moves_caption(run: Run) -> str:
    last = max((t for t, row in enumerate(kept_rounds(run), 1) if row["churn"] > 0 and t > 1), default=None)
    settled = "Nobody moved after the first round" if last is None else f"The last move was in round {last}"
    best = run.snapshot.notes.get("best_restart")
    kept = "" if best is None else f" Of {run.config.get('restarts')} restarts, the one that was kept."
    return f"{settled}; shown are the rounds in which most clients moved.{kept}"


def thinned(run: Run, losses: Numbers) -> list[int]:
    """Clients whose losses are known, by cluster, the surest first; of very many one in so many."""
    labels, sure = run.snapshot.labels.numpy(), margins(losses)
    order = np.lexsort((-sure, np.where(labels < 0, np.iinfo(np.int64).max, labels)))
    order = order[np.isfinite(losses[order]).all(1)]
    chosen: list[int] = order[:: -(-len(order) // MOST_CLIENTS)].tolist()
    return chosen


def client_map(run: Run) -> Figure | None:
    """Clients in the plane, near those that judge the models alike."""
    losses = losses_of(run)
    if losses is None:
        return None
    points, labels, chosen = positions(losses), run.snapshot.labels.numpy(), thinned(run, losses)
    traces, names = [], []
    for label in sorted({int(labels[place]) for place in chosen}):
        mine = [place for place in chosen if labels[place] == label]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": points[mine, 0].round(4).tolist(),
                "y": points[mine, 1].round(4).tolist(),
                "text": [f"{safe(run.names[place])}, {cluster_name(label)}" for place in mine],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"color": colour(label), "symbol": SYMBOLS[label % len(SYMBOLS)], "size": 9, "opacity": 0.8},
            }
        )
        x, y = np.median(points[mine, 0]), points[mine, 1].max()
        names.append({"x": float(x), "y": float(y), "text": cluster_name(label), "showarrow": False, "yshift": 17})
    plain = {"showticklabels": False, "zeroline": False, "ticks": "", "showgrid": False}
    two = losses.shape[1] == 2
    layout = {
        "height": 360,
        "annotations": names,
        "xaxis": {**plain, "title": {"text": "log loss of model 0 against model 1" if two else "first principal axis"}},
        "yaxis": {**plain, "title": {"text": "log of own loss" if two else "second principal axis"}},
    }
    caption = "Each mark is a client; near each other are those for whom the same models are good and bad."
    return Figure("map", "clusters", "Map of clients", caption, traces, layout)


def heat_map(run: Run) -> Figure | None:
    """Every model's loss at every client."""
    losses = losses_of(run)
    if losses is None:
        return None
    chosen, labels = thinned(run, losses), run.snapshot.labels.numpy()
    times = losses[chosen] / np.maximum(losses[chosen].min(1, keepdims=True), 1e-12)
    texts = [
        [f"{safe(run.names[place])}, {cluster_name(int(labels[place]))}<br>loss of model {j}: {losses[place, j]:.4g}"
         for place in chosen]
        for j in range(losses.shape[1])
    ]  # fmt: skip
    ticks = [t for t in (1, 2, 4, 8) if t <= TIMES]
    trace = {
        "type": "heatmap",
        "z": np.log2(np.clip(times, 1, TIMES)).T.round(3).tolist(),
        "y": [f"model {j}" for j in range(losses.shape[1])],
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "zmin": 0,
        "zmax": float(np.log2(TIMES)),
        "colorscale": [[0, "$accent"], [1, "$tint"]],
        "colorbar": {"tickvals": np.log2(ticks).tolist(), "ticktext": ["least", *(f"{t}×" for t in ticks[1:])],
                     "thickness": 10, "outlinewidth": 0, "len": 1.0},
    }  # fmt: skip
    layout = {
        "height": max(360, 100 + 30 * losses.shape[1]),
        "xaxis": {"showticklabels": False, "showgrid": False, "ticks": "", "title": {"text": "clients, by cluster"}},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "shapes": _borders([int(labels[place]) for place in chosen]),
        "margin": {"l": 66, "r": 10},
    }
    caption = (
        "Strong colour: the model that fits a client best. A sound cluster is one strong block, with pale ones beside."
    )
    if len(chosen) < len(run.names):
        caption += f" {len(chosen)} of {len(run.names)} clients are drawn."
    return Figure("losses", "clusters", "Loss of every model at every client", caption, [trace], layout)


def _borders(labels: Sequence[int]) -> list[dict[str, Any]]:
    places = [place for place in range(1, len(labels)) if labels[place] != labels[place - 1]]
    return [
        {"type": "line", "x0": place - 0.5, "x1": place - 0.5, "yref": "paper", "y0": 0, "y1": 1,
         "line": {"color": "$card", "width": 3}}
        for place in places
    ]  # fmt: skip


# ---- evidence


def distances(run: Run) -> Figure | None:
    """The histogram of distances between clients, with the threshold below which they belong together."""
    notes = notes_of(run)
    if "distance_counts" not in notes:
        return None
    edges, counts, threshold = notes["distance_edges"], notes["distance_counts"], float(notes["threshold"])
    middles = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
    near = [middle <= threshold for middle in middles]
    bars = {
        "type": "bar",
        "x": middles,
        "y": counts,
        "width": edges[1] - edges[0],
        "marker": {"color": ["$accent" if is_near else NO_CLUSTER for is_near in near], "line": {"width": 0}},
        "hovertemplate": "%{y} pairs about %{x:.3g} apart<extra></extra>",
    }
    how = (
        "was given"
        if "gap" not in notes
        else f"stands in a gap of {notes['gap']:.2f}×, where chance alone leaves {notes['chance']:.2f}×"
    )
    layout = {
        "height": 320,
        "bargap": 0,
        "shapes": [_upright(threshold)],
        "annotations": [_flag(threshold, f"threshold {threshold:.3g}")],
        "xaxis": {"title": {"text": "distance between two clients"}},
        "yaxis": {"title": {"text": "pairs"}},
    }
    caption = f"Pairs left of the line belong together; the threshold {how}."
    return Figure("distances", "clusters", "Distances between clients", caption, [bars], layout)


def silhouettes(run: Run) -> Figure | None:
    """How well each number of clusters fits, where the algorithm chose it."""
    notes = notes_of(run)
    evidence = notes.get("silhouette_by_k")
    if not evidence:
        return None
    chosen = str(notes.get("k"))
    bars = {
        "type": "bar",
        "x": list(evidence),
        "y": list(evidence.values()),
        "text": [f"{value:.2f}" for value in evidence.values()],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": ["$accent" if k == chosen else NO_CLUSTER for k in evidence]},
        "hovertemplate": "%{x} clusters: silhouette %{y:.3f}<extra></extra>",
    }
    layout = {
        "height": 300,
        "bargap": 0.35,
        "xaxis": {"type": "category", "title": {"text": "number of clusters"}, "showgrid": False},
        "yaxis": {"title": {"text": "silhouette"}, "range": [min(0.0, *evidence.values()), 1.12]},
    }
    caption = f"The silhouette of clients' loss vectors; {chosen} clusters were taken (below 0.5 everywhere: one)."
    return Figure("silhouettes", "clusters", "How many clusters", caption, [bars], layout)


def _upright(x: float) -> dict[str, Any]:
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": "$ink", "width": 1.5, "dash": "dot"}}  # fmt: skip


def _flag(x: float, text: str) -> dict[str, Any]:
    return {"x": x, "yref": "paper", "y": 1, "text": text, "showarrow": False, "xanchor": "left", "xshift": 6,
            "yanchor": "top", "bgcolor": "$veil"}  # fmt: skip


# ---- quality


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
    traces = [_box(run, label, values, np.flatnonzero(labels == label), percent) for label in run.sizes]
    layout = {
        "height": 110 + 52 * len(traces),
        "xaxis": {"title": {"text": what}, "tickformat": ".0%" if percent else ""},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "margin": {"l": 84, "r": 20},
    }
    caption = f"Each dot is a client: {what}. Boxes hold the middle half, dots far to the side deserve a look."
    return Figure("by-cluster", "quality", f"{what.capitalize()} by cluster", caption, traces, layout)


def _box(run: Run, label: int, values: Numbers, mine: Any, percent: bool) -> Trace:
    known = [int(place) for place in mine if np.isfinite(values[place])]
    shown = f"{{x:{'.1%' if percent else '.4g'}}}"
    return {
        "type": "box",
        "name": cluster_name(label),
        "orientation": "h",
        "x": values[known].round(5).tolist(),
        "y": [cluster_name(label)] * len(known),
        "text": [safe(run.names[place]) for place in known],
        "hovertemplate": f"%{{text}}: %{shown}<extra></extra>",
        "hoveron": "points",
        "boxpoints": "all" if len(run.names) <= MOST_CLIENTS else "outliers",
        "jitter": 0.5,
        "pointpos": 0,
        "marker": {"color": colour(label), "size": 5, "opacity": 0.55},
        "line": {"color": colour(label), "width": 1.5},
        "fillcolor": "rgba(0,0,0,0)",
    }


def training(run: Run) -> Figure | None:
    """Training loss by round."""
    rows = [row for row in run.history if row["train_loss"] is not None]
    if len(rows) < 2:
        return None
    kept, traces = {row["clock"] for row in kept_rounds(run)}, []
    for stage in dict.fromkeys(_restart(row) for row in rows):
        mine = [row for row in rows if _restart(row) == stage and not str(row["stage"]).startswith("scored")]
        tint = "$accent" if any(row["clock"] in kept for row in mine) else NO_CLUSTER
        traces.append(_line(list(range(1, len(mine) + 1)), [row["train_loss"] for row in mine], tint))
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


def _line(x: list[int], y: list[float], tint: str) -> Trace:
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": tint, "width": 2.5},
            "hovertemplate": "round %{x}: %{y:.4g}<extra></extra>"}  # fmt: skip


# ---- stability


def stability(run: Run) -> Figure | None:
    """The share of clients that changed cluster, and the agreement with the round before."""
    rows = kept_rounds(run)
    if len(rows) < 3 or run.clusters < 2:
        return None
    churn = [round(row["churn"], 4) for row in rows[1:]]  # in the first round everybody is new
    traces = [_line(list(range(2, len(rows) + 1)), churn, "$accent")]
    annotations = [_label_at(len(rows), churn[-1], "churn", "$accent")]
    if path := moments(run):
        agreed = [(t, round(value, 4)) for t, value in agreement(path)]
        traces.append(_line([t for t, _ in agreed], [value for _, value in agreed], PALETTE[1]))
        annotations.append(_label_at(len(rows), agreed[-1][1], "ARI to the round before", PALETTE[1]))
    mended = repairs(run)
    layout = {
        "height": 340,
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"range": [-0.04, 1.08], "tickformat": ".0%" if len(traces) == 1 else ""},
        "shapes": [_upright(t) for t in mended],
        "annotations": [*annotations, *(_flag(t, "regrouped") for t in mended[:1])],
    }
    caption = "Churn is the share of clients that changed cluster in a round: a settled run has none, and an ARI of 1."
    return Figure("stability", "stability", "Churn and agreement by round", caption, traces, layout)


def _label_at(x: float, y: float, text: str, tint: str) -> dict[str, Any]:
    """A line's own name, at its right end."""
    return {"x": x, "y": y, "text": text, "showarrow": False, "xanchor": "right", "yshift": 13 if y < 0.9 else -13,
            "font": {"color": tint}}  # fmt: skip


def sureness(run: Run) -> Figure | None:
    """The margin between the best model and the second best, by cluster."""
    losses = losses_of(run)
    if losses is None or run.clusters < 1:
        return None
    sure, labels = margins(losses), run.snapshot.labels.numpy()
    traces = [_box(run, label, sure, np.flatnonzero(labels == label), False) for label in run.sizes]
    doubtful = int((sure < SURE).sum())
    layout = {
        "height": 110 + 52 * len(traces),
        "xaxis": {"type": "log", "title": {"text": "second least loss ÷ least loss"}, "tickangle": 0,
                  "tickvals": [1, 2, 5, 10, 30, 100, 1000], "range": [-0.04, float(np.log10(np.nanmax(sure))) + 0.1]},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "shapes": [_upright(SURE)],
        "annotations": [_flag(float(np.log10(SURE)), f"{SURE}×")],
        "margin": {"l": 84, "r": 20},
    }  # fmt: skip
    many = "No client is" if not doubtful else "One client is" if doubtful == 1 else f"{doubtful} clients are"
    caption = f"Right of the line a client's own model clearly fits better than the next. {many} left of it."
    return Figure("margins", "stability", "How sure clients are of their cluster", caption, traces, layout)


# ---- communication


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
    saved = savings(run)
    caption = "Sent to clients, and what they sent back."
    if saved and saved.share > 0.005:
        caption += f" {saved.share:.0%} less went down than all models in every round would have been."
    layout = {
        "height": 340,
        "barmode": "stack",
        "bargap": 0.08,
        "showlegend": True,
        "xaxis": {"title": {"text": "round"}, "showgrid": False},
        "yaxis": {"title": {"text": "MB"}},
    }
    return Figure("traffic", "communication", "Bytes by round", caption, traces, layout, wide=True)


def _bytes(x: list[int], y: list[float], name: str, tint: str) -> Trace:
    return {"type": "bar", "x": x, "y": y, "name": name, "marker": {"color": tint, "line": {"width": 0}},
            "hovertemplate": f"round %{{x}}, {name}: %{{y:.3g}} MB<extra></extra>"}  # fmt: skip
