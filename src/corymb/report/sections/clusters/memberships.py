"""Soft memberships: each client's shares in the clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corymb.report.content import Figure, Section
from corymb.report.facts import WHOLE, Numbers, shares_of
from corymb.report.figures.drawing import cluster_name, colour, how_many, safe, spread

if TYPE_CHECKING:
    from corymb.runs.run import Run


def memberships(runs: Sequence[Run]) -> Figure | None:
    """A stacked bar for each client: its share in every cluster."""
    run = runs[0]
    shares = shares_of(run)
    if shares is None:
        return None
    chosen = _ordered(shares)
    texts = [safe(run.names[place]) for place in chosen]
    traces = [
        {
            "type": "bar",
            "name": cluster_name(label),
            "x": list(range(len(chosen))),
            "y": shares[chosen, label].round(4).tolist(),
            "text": texts,
            "textposition": "none",
            "marker": {"color": colour(label), "line": {"width": 0}},
            "hovertemplate": f"%{{text}}: %{{y:.1%}} {cluster_name(label)}<extra></extra>",
        }
        for label in range(shares.shape[1])
    ]
    layout = {
        "height": 320,
        "barmode": "stack",
        "bargap": 0.08 if len(chosen) <= 60 else 0,
        "showlegend": True,
        "xaxis": {"showticklabels": False, "showgrid": False, "ticks": "", "title": {"text": "clients"}},
        "yaxis": {"title": {"text": "share"}, "range": [0, 1], "tickformat": ".0%"},
    }
    caption = _caption(shares) + how_many(len(chosen), run)
    return Figure("memberships", "Cluster memberships", caption, traces, layout, wide=True)


def _ordered(shares: Numbers) -> list[int]:
    """Clients with known shares, by main cluster and then decreasing share; evenly sampled if there are too many."""
    order = np.lexsort((-shares.max(1), shares.argmax(1)))
    return spread(order[np.isfinite(shares[order]).all(1)], shares.argmax(1), shares.shape[1])


def _caption(shares: Numbers) -> str:
    known = shares[np.isfinite(shares).all(1)]
    mixed = int((known.max(1) < WHOLE).sum())
    many = "No client belongs" if not mixed else "One client belongs" if mixed == 1 else f"{mixed} clients belong"
    caption = f"Each column is a client, divided by its share in each cluster. {many} to several clusters"
    return f"{caption} (no share of at least {WHOLE:.0%})."


SECTION = Section(order=40, show=memberships)
