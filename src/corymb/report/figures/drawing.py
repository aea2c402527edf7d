"""Colours, names, lines and boxes that figures share."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from corymb.report.content import PlotlyTrace
from corymb.report.facts import LabelArray, Numbers, margins

if TYPE_CHECKING:
    from corymb.runs.run import Run

# Okabe and Ito's colours (the blue lighter, for dark pages), then Tol's muted ones: safe for colour-blind readers.
PALETTE = (
    *("#1F83C9", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"),
    *("#999933", "#882255", "#44AA99", "#CC6677", "#8C7BD6", "#DDCC77"),
)
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star", "pentagon", "cross", "hexagon", "triangle-down")
NO_CLUSTER = "#8A8F98"
MOST_CLIENTS = 1500
"""Figures that show each client draw at most so many, evenly spaced."""
LONGEST = 40
"""Letters of a name in a figure."""
MOST_CELLS = 5000
"""Clients by models in a figure: the page has to stay small."""
TIMES = 8
"""Losses are drawn up to so many times the least one."""


def colour(label: int) -> str:
    """The colour of a cluster, the same in every figure."""
    return NO_CLUSTER if label < 0 else PALETTE[label % len(PALETTE)]


def cluster_name(label: int) -> str:
    """The name of a cluster."""
    return "no cluster" if label < 0 else f"cluster {label}"


def safe(name: str) -> str:
    """A user's text, cut and escaped: plotly takes some tags for formatting."""
    return escape(name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…", quote=False)


def thinned(run: Run, losses: Numbers) -> list[int]:
    """Clients whose losses are known, by cluster, largest margin first; of very many an even selection."""
    labels, margin = run.snapshot.labels.numpy(), margins(losses)
    order = np.lexsort((-margin, np.where(labels < 0, np.iinfo(np.int64).max, labels)))
    return spread(order[np.isfinite(losses[order]).all(1)], losses.shape[1])


def spread(order: LabelArray, columns: int) -> list[int]:
    """As many of the clients in `order` as a figure with so many values for each can show, evenly spaced."""
    most = max(1, min(MOST_CLIENTS, MOST_CELLS // columns))
    chosen: list[int] = order[:: max(1, -(-len(order) // most))].tolist()
    return chosen


def line(x: list[int], y: list[float], tint: str) -> PlotlyTrace:
    """A line over rounds."""
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": tint, "width": 2.5},
            "hovertemplate": "round %{x}: %{y:,.4~r}<extra></extra>"}  # fmt: skip


def box(run: Run, label: int, values: Numbers, mine: Any, percent: bool) -> PlotlyTrace:
    """The clients of a cluster (at the positions `mine`) as dots, with a box around the middle half."""
    known = sorted((int(place) for place in mine if np.isfinite(values[place])), key=lambda place: float(values[place]))
    known = known[:: -(-len(run.names) // MOST_CLIENTS)]  # an even selection by size leaves the box where it is
    shown = f"{{x:{'.1%' if percent else ',.4~r'}}}"
    return {
        "type": "box",
        "name": cluster_name(label),
        "orientation": "h",
        "x": values[known].round(5).tolist(),
        "y": [cluster_name(label)] * len(known),
        "text": [safe(run.names[place]) for place in known],
        "hovertemplate": f"%{{text}}: %{shown}<extra></extra>",
        "hoveron": "points",
        "boxpoints": "all",
        "jitter": 0.5,
        "pointpos": 0,
        "marker": {"color": colour(label), "size": 5, "opacity": 0.55},
        "line": {"color": colour(label), "width": 1.5},
        "fillcolor": "rgba(0,0,0,0)",
    }


def upright(x: float) -> dict[str, Any]:
    """A dotted line from bottom to top."""
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": "$ink", "width": 1.5, "dash": "dot"}}  # fmt: skip


def level(y: float) -> dict[str, Any]:
    """A dotted line from left to right."""
    return {"type": "line", "y0": y, "y1": y, "xref": "paper", "x0": 0, "x1": 1,
            "line": {"color": "$ink", "width": 1.5, "dash": "dot"}}  # fmt: skip


def flag(x: float, text: str) -> dict[str, Any]:
    """A few words at the top of such a line."""
    return {"x": x, "yref": "paper", "y": 1, "text": text, "showarrow": False, "xanchor": "left", "xshift": 6,
            "yanchor": "top", "bgcolor": "$veil"}  # fmt: skip


def label_at(x: float, y: float, text: str, tint: str) -> dict[str, Any]:
    """A line's own name, at its right end."""
    return {"x": x, "y": y, "text": text, "showarrow": False, "xanchor": "right", "yshift": 13 if y < 0.9 else -13,
            "font": {"color": tint}}  # fmt: skip
