"""The evidence for the number of clusters: the gain of each over one model, on held-out examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Figure, Section
from corymb.report.facts import notes_of
from corymb.report.figures.drawing import NO_CLUSTER
from corymb.report.words import evidence_of
from corymb.runs.history import counted

if TYPE_CHECKING:
    from corymb.runs.run import Run


def gains(runs: Sequence[Run]) -> Figure | None:
    """The gain of every cluster over one global model; None if the algorithm did not test it."""
    notes = notes_of(runs[0])
    if "gain_by_cluster" not in notes:
        return None
    found, sizes = notes["gain_by_cluster"], notes["clients_by_cluster"]
    rows = (
        [f"cluster {place}: {counted(count, 'client')}" for place, count in enumerate(sizes)] if len(found) > 1 else []
    )
    names = [*rows, "all clients"]
    values = [*(found if rows else []), notes["gain"]]
    errors = [*(notes["gain_error_by_cluster"] if rows else []), notes["gain_error"]]
    chances = [*(notes["gain_p_by_cluster"] if rows else []), notes["gain_p"]]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": names,
        "error_x": {"type": "data", "array": errors, "thickness": 2, "width": 6, "color": "$quiet"},
        "marker": {"size": 10, "color": [*(["$accent"] * len(rows)), NO_CLUSTER if not rows else "$accent"]},
        "text": [f"gain {v:.3f} ± {e:.3f}, p = {p:.2g}" for v, e, p in zip(values, errors, chances, strict=True)],
        "hovertemplate": "%{y}<br>%{text}<extra></extra>",
    }
    layout = {
        "height": 150 + 28 * len(names),
        "xaxis": {"title": {"text": "gain in held-out loss over one model"}, "zeroline": True},
        "yaxis": {"autorange": "reversed", "showgrid": False, "automargin": True},
    }
    return Figure("evidence", "Do the clusters pay off?", caption_of(runs[0]), [points], layout)


def caption_of(run: Run) -> str:
    """The finding, its certainty and its limits."""
    notes = notes_of(run)
    parts = [evidence_of(run)]
    if notes["k"] > 1:
        parts.append("Bars are standard errors.")
    if near := notes.get("nearest_pair"):
        larger = f"{1 + near['size']:.1f} times as large" if near["size"] > 1 else f"{near['size']:.0%} larger"
        parts.append(
            f"For the closest pair kept apart, sharing a model would make the loss {larger} (p = {near['p']:.1g}, "
            f"{counted(near['clients'], 'client')})."
        )
    if doubt := notes.get("doubtful_pair"):
        parts.append(f"For the most doubtful pair merged, it is {doubt['size']:.0%} larger (p = {doubt['p']:.1g}).")
    if notes.get("capped"):
        parts.append("The search stopped at its limit, so there may be more clusters than needed.")
    if notes.get("label_skew", 0) > 0.05:
        parts.append("Label distributions differ between clients, so only large differences count.")
    return " ".join(parts)


SECTION = Section(order=60, show=gains)
