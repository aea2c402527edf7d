"""A two-dimensional map of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from corymb.report.content import Figure, Section
from corymb.report.facts import Numbers, final_losses, positions
from corymb.report.figures.drawing import MANY, SYMBOLS, cluster_name, colour, how_many, safe, thinned

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
        if label >= 0:  # clients without a cluster are no group: they lie anywhere
            names.append((cluster_name(label), points[mine]))
    wide = len(names) > MANY
    labels_shown = names_beside(names)
    plain = {"showticklabels": False, "zeroline": False, "ticks": "", "showgrid": False}
    two = losses.shape[1] == 2
    layout = {
        "height": 480 if wide else 360,
        "annotations": labels_shown,
        "xaxis": {**plain, "title": {"text": "log loss, model 0 against model 1" if two else "first component"}},
        "yaxis": {**plain, "title": {"text": "log of lowest loss" if two else "second component"}},
    }
    caption = "Each mark is a client. Clients are close together if the same models fit them well or badly."
    if len(labels_shown) < len(names):
        caption += " Clusters without a name have no room for it: point at a mark to see its client and cluster."
    if len(traces) > len(names):
        caption += " Grey marks have no cluster."
    caption += how_many(len(chosen), run)
    return Figure("map", "Map of clients", caption, traces, layout, wide=wide)


LABEL, BESIDE = np.array([0.25, 0.1]), 0.08
"""The size of a label, and its distance from the points that it names, as shares of the figure's width and height."""


def names_beside(groups: Sequence[tuple[str, Numbers]]) -> list[dict[str, Any]]:
    """A label above each group of points, or below if the position above is taken; none if both are."""
    if not groups:
        return []
    span = np.ptp(np.concatenate([points for _, points in groups]), axis=0) + 1e-12
    taken: list[Numbers] = []
    found = []
    for name, points in groups:
        middle = float(np.median(points[:, 0]))
        for y, side in ((float(points[:, 1].max()), 1), (float(points[:, 1].min()), -1)):
            centre = np.array([middle, y]) / span + (0, side * BESIDE)
            if all((np.abs(centre - other) > LABEL).any() for other in taken):
                taken.append(centre)
                found.append({"x": middle, "y": y, "text": name, "showarrow": False, "yshift": 17 * side})
                break
    return found


SECTION = Section(order=20, show=client_map)
