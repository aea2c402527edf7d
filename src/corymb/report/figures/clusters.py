"""Figures of the clusters: how large, how clients came there, how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from corymb.report.facts import Numbers, kept_rounds, losses_of, moments, notes_of, positions
from corymb.report.figures.drawing import (
    NO_CLUSTER,
    SYMBOLS,
    Figure,
    Trace,
    cluster_name,
    colour,
    flag,
    safe,
    thinned,
    upright,
)
from corymb.report.figures.river import BAR, Stream, river
from corymb.runs.run import Run

TIMES = 8
"""The heat map ends at so many times the least loss."""


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


def _streams(label: int, streams: Sequence[Stream]) -> Trace:
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
        names.append((cluster_name(label), points[mine]))
    plain = {"showticklabels": False, "zeroline": False, "ticks": "", "showgrid": False}
    two = losses.shape[1] == 2
    layout = {
        "height": 360,
        "annotations": names_beside(names),
        "xaxis": {**plain, "title": {"text": "log loss of model 0 against model 1" if two else "first principal axis"}},
        "yaxis": {**plain, "title": {"text": "log of own loss" if two else "second principal axis"}},
    }
    caption = "Each mark is a client; near each other are those for whom the same models are good and bad."
    return Figure("map", "clusters", "Map of clients", caption, traces, layout)


def names_beside(groups: Sequence[tuple[str, Numbers]]) -> list[dict[str, Any]]:
    """A name above each group of points, or below where the place above is taken."""
    span = np.ptp(np.concatenate([points for _, points in groups]), axis=0) + 1e-12
    taken: list[Numbers] = []
    found = []
    for name, points in groups:
        above = np.array([np.median(points[:, 0]), points[:, 1].max()])
        free = all((np.abs(above - other) / span > (0.25, 0.08)).any() for other in taken)
        taken.append(above)
        y = above[1] if free else points[:, 1].min()
        found.append(
            {"x": float(above[0]), "y": float(y), "text": name, "showarrow": False, "yshift": 17 if free else -17}
        )
    return found


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


def distances(run: Run) -> Figure | None:
    """The histogram of distances between clients, with the threshold below which they belong together."""
    notes = notes_of(run)
    if "distance_counts" not in notes:
        return None
    edges, counts, threshold = notes["distance_edges"], notes["distance_counts"], float(notes["threshold"])
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
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
        "shapes": [upright(threshold)],
        "annotations": [flag(threshold, f"threshold {threshold:.3g}")],
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
