"""How many clients each cluster has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Figure, Section
from corymb.report.figures.drawing import cluster_name, colour

if TYPE_CHECKING:
    from corymb.runs.run import Run


def sizes(runs: Sequence[Run]) -> Figure | None:
    """Clients in each cluster."""
    run = runs[0]
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
    if len(shares) == 1:
        all_of_them = "All clients are" if shares[0] == 1 else f"{shares[0]:.0%} of the clients are"
        caption = f"{all_of_them} in one cluster."
    elif shares[0] == shares[-1]:
        caption = f"All clusters are of one size, {shares[0]:.0%} of the clients."
    layout = {
        "height": 90 + 38 * len(labels),
        "bargap": 0.35,
        "xaxis": {"visible": False, "fixedrange": True},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "margin": {"l": 84, "r": 46},
    }
    return Figure("sizes", "Clients in each cluster", caption, [bars], layout)


SECTION = Section(order=10, show=sizes)
