"""A two-dimensional map of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from corymb.report.content import Figure, Section
from corymb.report.facts import Numbers, final_losses, positions
from corymb.report.figures.drawing import SYMBOLS, cluster_name, colour, how_many, safe, thinned

if TYPE_CHECKING:
    from corymb.runs.run import Run


def client_map(runs: Sequence[Run]) -> Figure | None:
    """A scatter plot in which clients are close if the models have similar losses on their data."""
    run = runs[0]
    losses = final_losses(run)
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
        "xaxis": {**plain, "title": {"text": "log loss, model 0 against model 1" if two else "first component"}},
        "yaxis": {**plain, "title": {"text": "log of lowest loss" if two else "second component"}},
    }
    caption = "Each mark is a client. Clients are close together if the same models fit them well or badly."
    caption += how_many(len(chosen), run)
    return Figure("map", "Map of clients", caption, traces, layout)


def names_beside(groups: Sequence[tuple[str, Numbers]]) -> list[dict[str, Any]]:
    """A label above each group of points, or below if the position above is taken."""
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


SECTION = Section(order=20, show=client_map)
