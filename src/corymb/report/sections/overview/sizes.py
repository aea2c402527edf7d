"""The number of clients (or examples) in each cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Figure, Section
from corymb.report.facts import of_examples
from corymb.report.figures.drawing import MANY, cluster_name, colour, height_of_rows
from corymb.report.words import seeks_clusters

if TYPE_CHECKING:
    from corymb.runs.run import Run


def sizes(runs: Sequence[Run]) -> Figure | None:
    """A bar for each cluster: its number of clients, or of examples if those are clustered; None without clusters."""
    run = runs[0]
    counted, what = run.sizes, "examples" if of_examples(run) else "clients"
    if run.clusters < 1 or not seeks_clusters(run):
        return None
    labels = list(counted)
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": [cluster_name(label) for label in labels],
        "x": list(counted.values()),
        "text": [f"{size:,}" for size in counted.values()],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [colour(label) for label in labels]},
        "hovertemplate": f"%{{y}}: %{{x:,}} {what}<extra></extra>",
    }
    total = sum(counted.values())
    shares = sorted(size / total for label, size in counted.items() if label >= 0)
    caption = f"The largest cluster has {shares[-1]:.0%} of all {what}, the smallest {shares[0]:.0%}."
    if len(shares) == 1:
        all_of_them = f"All {what} are" if shares[0] == 1 else f"{shares[0]:.0%} of the {what} are"
        caption = f"{all_of_them} in one cluster."
    elif shares[0] == shares[-1]:
        caption = f"All clusters have the same size, {shares[0]:.0%} of the {what}."
    elif f"{shares[0]:.0%}" == f"{shares[-1]:.0%}":
        caption = f"All clusters have about the same size, {shares[0]:.0%} of the {what}."
    layout = {
        "height": 90 + height_of_rows(len(labels), 38),
        "bargap": 0.35,
        "xaxis": {"visible": False, "fixedrange": True},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "margin": {"l": 84, "r": 56},
    }
    return Figure("sizes", f"{what.capitalize()} in each cluster", caption, [bars], layout, wide=len(labels) > MANY)


SECTION = Section(order=10, show=sizes)
