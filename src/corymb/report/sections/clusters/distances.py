"""The distances between clients, with the clustering threshold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from corymb.report.content import Figure, Section
from corymb.report.facts import notes_of
from corymb.report.figures.drawing import NO_CLUSTER, flag, upright
from corymb.runs.history import readable

if TYPE_CHECKING:
    from corymb.runs.run import Run


def distances(runs: Sequence[Run]) -> Figure | None:
    """A histogram of the distances between clients, with the threshold below which they share a cluster."""
    run = runs[0]
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
        "hovertemplate": "%{y} pairs about %{x:,.3~r} apart<extra></extra>",
    }
    how = (
        "was set by the user"
        if "gap" not in notes
        else f"lies in a gap of {notes['gap']:.2f}× between distances (by chance: {notes['chance']:.2f}×)"
    )
    layout = {
        "height": 320,
        "bargap": 0,
        "shapes": [upright(threshold)],
        "annotations": [flag(threshold, f"threshold {readable(threshold, 3)}")],
        "xaxis": {"title": {"text": "distance between two clients"}},
        "yaxis": {"title": {"text": "pairs"}},
    }
    caption = f"Pairs of clients left of the line count as similar. The threshold {how}."
    return Figure("distances", "Distances between clients", caption, [bars], layout)


SECTION = Section(order=50, show=distances)
