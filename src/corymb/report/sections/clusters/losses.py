"""The loss of every model at every client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from corymb.report.content import Figure, Section
from corymb.report.facts import final_losses
from corymb.report.figures.drawing import MANY, TIMES, cluster_name, height_of_rows, how_many, safe, thinned
from corymb.runs.history import readable

if TYPE_CHECKING:
    from corymb.runs.run import Run


def heat_map(runs: Sequence[Run]) -> Figure | None:
    """A heat map of every model's loss at every client, relative to the client's lowest loss."""
    run = runs[0]
    losses = final_losses(run)
    if losses is None:
        return None
    chosen, labels = thinned(run, losses), run.snapshot.labels.numpy()
    times = losses[chosen] / np.maximum(losses[chosen].min(1, keepdims=True), 1e-12)
    names = {place: f"{safe(run.names[place])}, {cluster_name(int(labels[place]))}" for place in chosen}
    texts = [
        [f"{names[place]}<br>loss of model {j}: {readable(losses[place, j])}" for place in chosen]
        for j in range(losses.shape[1])
    ]
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
        "colorbar": {"tickvals": np.log2(ticks).tolist(), "ticktext": ["lowest", *(f"{t}×" for t in ticks[1:])],
                     "thickness": 10, "outlinewidth": 0, "len": 1.0},
    }  # fmt: skip
    layout = {
        "height": max(360, 100 + height_of_rows(losses.shape[1], 30)),
        "xaxis": {"showticklabels": False, "showgrid": False, "ticks": "", "title": {"text": "clients, by cluster"}},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "shapes": _borders([int(labels[place]) for place in chosen]),
        "margin": {"l": 66, "r": 10},
    }
    caption = (
        "Strong colour: the model that fits a client best. A well-separated cluster is one strong block in a pale row."
    )
    caption += how_many(len(chosen), run)
    return Figure(
        "losses", "Loss of every model at every client", caption, [trace], layout, wide=losses.shape[1] > MANY
    )


def _borders(labels: Sequence[int]) -> list[dict[str, Any]]:
    places = [place for place in range(1, len(labels)) if labels[place] != labels[place - 1]]
    return [
        {"type": "line", "x0": place - 0.5, "x1": place - 0.5, "yref": "paper", "y0": 0, "y1": 1,
         "line": {"color": "$card", "width": 3}}
        for place in places
    ]  # fmt: skip


SECTION = Section(order=30, show=heat_map)
