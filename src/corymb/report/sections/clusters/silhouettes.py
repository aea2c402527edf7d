"""The evidence for the number of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Figure, Section
from corymb.report.facts import notes_of
from corymb.report.figures.drawing import NO_CLUSTER

if TYPE_CHECKING:
    from corymb.runs.run import Run


def silhouettes(runs: Sequence[Run]) -> Figure | None:
    """How well each number of clusters fits, where the algorithm chose it."""
    run = runs[0]
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
        "hovertemplate": "k = %{x}: silhouette %{y:.3f}<extra></extra>",
    }
    layout = {
        "height": 300,
        "bargap": 0.35,
        "xaxis": {"type": "category", "title": {"text": "number of clusters"}, "showgrid": False},
        "yaxis": {"title": {"text": "silhouette"}, "range": [min(0.0, *evidence.values()), 1.12]},
    }
    taken = "1 cluster was taken" if chosen == "1" else f"{chosen} clusters were taken"
    caption = f"The silhouette of clients' loss vectors; {taken} (below 0.5 everywhere: one)."
    return Figure("silhouettes", "How many clusters", caption, [bars], layout)


SECTION = Section(order=60, show=silhouettes)
