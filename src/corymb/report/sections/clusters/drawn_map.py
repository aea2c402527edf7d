"""A two-dimensional map of examples sampled from each cluster's model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from corymb.report.content import Figure, Section
from corymb.report.drawn import drawn_examples, in_plane
from corymb.report.figures.drawing import SYMBOLS, cluster_name, colour, safe
from corymb.report.sections.clusters.client_map import names_beside

if TYPE_CHECKING:
    from corymb.runs.run import Run

EACH = 80
"""Examples sampled from each cluster."""
FEW = 5
"""Up to this many clusters are labelled in the plot; more get a legend."""


def drawn_map(runs: Sequence[Run]) -> Figure | None:
    """A scatter plot of samples from every cluster's model."""
    run = runs[0]
    groups = drawn_examples(run, EACH)
    if not groups:
        return None
    flat = in_plane(groups, scale=not run.schema.picture)
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [float(f"{x:.4g}") for x in points[:, 0]],
            "y": [float(f"{y:.4g}") for y in points[:, 1]],
            "name": cluster_name(label),
            "hovertemplate": f"{cluster_name(label)}<extra></extra>",
            "marker": {"color": colour(label), "symbol": SYMBOLS[label % len(SYMBOLS)], "size": 6, "opacity": 0.65},
        }
        for label, points in flat.items()
    ]
    few = len(flat) <= FEW
    layout = {
        "height": 400 if few else 440,
        "annotations": names_beside([(cluster_name(label), points) for label, points in flat.items()]) if few else [],
        "showlegend": not few,
        **_axes(run),
    }
    where = "" if run.schema.size <= 2 else ", projected onto the plane that separates the clusters best"
    caption = f"{EACH} examples sampled from each cluster's model{where}. No client's example is shown."
    return Figure("drawn-map", "Map of clusters", caption, traces, layout)


def _axes(run: Run) -> dict[str, Any]:
    """Axes for up to two features are named after them; those of a projection have no units."""
    names, d = run.schema.feature_names, run.schema.size
    plain = {"showticklabels": False, "zeroline": False, "ticks": "", "showgrid": False, "title": {"text": ""}}
    if d > 2:
        return {"xaxis": plain, "yaxis": plain}
    titles = [safe(names[place]) if len(names) == d else f"feature {place}" for place in range(d)]
    shown = [{"title": {"text": title}} for title in titles]
    return {"xaxis": shown[0], "yaxis": shown[1] if d == 2 else plain}


SECTION = Section(order=25, show=drawn_map)
