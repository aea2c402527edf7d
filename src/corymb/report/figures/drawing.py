"""Colours, names, lines and boxes shared by the figures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from corymb.report.content import PlotlyTrace
from corymb.report.facts import LabelArray, Numbers, margins

if TYPE_CHECKING:
    from corymb.runs.run import Run

# Okabe and Ito's colours (a lighter blue, for dark pages), then Tol's muted ones: safe for colour-blind readers.
PALETTE = (
    *("#1F83C9", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"),
    *("#999933", "#882255", "#44AA99", "#CC6677", "#8C7BD6", "#DDCC77"),
)
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star", "pentagon", "cross", "hexagon", "triangle-down")
NO_CLUSTER = "#8A8F98"
MOST_CLIENTS = 1500
"""At most this many clients in a figure with a mark for each, evenly sampled."""
IN_FULL = "the CSV report (--format csv) has all"
FEWEST = 20
"""A cluster's box plot has at least this many of its clients, if there are as many."""
MANY = 12
"""More clusters than this have narrower rows in a figure, which is then as wide as the page."""
NARROW = 20
"""Height in pixels of a narrow row: one line of text."""
LONGEST = 40
"""Characters of a name in a figure; longer names are truncated."""
MOST_CELLS = 5000
"""At most this many clients times models in a figure, to keep the page small."""
TIMES = 8
"""The colour scale of losses ends at this multiple of the lowest one."""


def colour(label: int) -> str:
    """The colour of a cluster, the same in every figure."""
    return NO_CLUSTER if label < 0 else PALETTE[label % len(PALETTE)]


def cluster_name(label: int) -> str:
    """The display name of a cluster."""
    return "no cluster" if label < 0 else f"cluster {label}"


def safe(name: str) -> str:
    """Truncate and escape user-supplied text: plotly interprets some HTML tags."""
    return escape(name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…", quote=False)


def thinned(run: Run, losses: Numbers) -> list[int]:
    """Clients with known losses, by cluster and then decreasing margin; evenly sampled if there are too many."""
    labels, margin = run.snapshot.labels.numpy(), margins(losses)
    order = np.lexsort((-margin, np.where(labels < 0, np.iinfo(np.int64).max, labels)))
    return spread(order[np.isfinite(losses[order]).all(1)], labels, losses.shape[1])


def spread(order: LabelArray, clusters: LabelArray, columns: int) -> list[int]:
    """An even sample of clients in the order given, which is by cluster.

    It is small enough for a figure with `columns` values for each client, and has a client of every cluster unless
    there are too many.
    """
    most = max(1, min(MOST_CLIENTS, MOST_CELLS // columns))
    every, rank = max(1, -(-len(order) // most)), np.arange(len(order))
    starts = np.flatnonzero(np.r_[True, clusters[order][1:] != clusters[order][:-1]])
    if len(starts) <= most:
        rank -= np.repeat(starts, np.diff(starts, append=len(order)))
    chosen: list[int] = order[rank % every == 0].tolist()
    return chosen


def how_many(shown: int, run: Run) -> str:
    """A sentence for the caption of a figure that shows only some of the clients; empty if it shows all."""
    n = len(run.names)
    return "" if shown == n else f" {shown:,} of {n:,} clients are shown; {IN_FULL}."


def height_of_rows(n: int, height: int) -> int:
    """The height in pixels of n rows, one for each cluster; rows are narrower if there are many."""
    return n * (height if n <= MANY else min(height, NARROW))


def rounded(value: float) -> float:
    """A value for a figure: five significant digits keep the page small, however small the values are."""
    return float(f"{value:.5g}")


def line(x: list[int], y: list[float], tint: str) -> PlotlyTrace:
    """A line over rounds."""
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": tint, "width": 2.5},
            "hovertemplate": "round %{x}: %{y:,.4~r}<extra></extra>"}  # fmt: skip


def boxes(run: Run, values: Numbers, percent: bool) -> list[PlotlyTrace]:
    """A box plot of clients' values for each cluster."""
    labels = run.snapshot.labels.numpy()
    return [
        _box(run, cluster_name(label), colour(label), values, np.flatnonzero(labels == label), percent)
        for label in run.sizes
    ]


def box_of_all(run: Run, values: Numbers, percent: bool) -> PlotlyTrace:
    """A box plot of all clients' values."""
    return _box(run, "all clients", "$accent", values, np.arange(len(run.names)), percent)


def clients_in(plots: Sequence[PlotlyTrace]) -> int:
    """The number of clients that box plots show."""
    return sum(len(plot["x"]) for plot in plots)


def _box(run: Run, name: str, tint: str, values: Numbers, mine: LabelArray, percent: bool) -> PlotlyTrace:
    """A box plot of some clients (the positions `mine`), with a dot for each client."""
    known = mine[np.isfinite(values[mine])]
    known = known[np.argsort(values[known], kind="stable")]
    most = max(-(-len(known) * MOST_CLIENTS // len(run.names)), FEWEST)
    if len(known) > most:  # sampling evenly by rank preserves the quartiles and both ends
        known = known[np.linspace(0, len(known) - 1, most).round().astype(np.int64)]
    shown = f"{{x:{'.1%' if percent else ',.4~r'}}}"
    return {
        "type": "box",
        "name": name,
        "orientation": "h",
        "x": [rounded(value) for value in values[known]],
        "y": [name] * len(known),
        "text": [safe(run.names[place]) for place in known],
        "hovertemplate": f"%{{text}}: %{shown}<extra></extra>",
        "hoveron": "points",
        "boxpoints": "all",
        "jitter": 0.5,
        "pointpos": 0,
        "marker": {"color": tint, "size": 5, "opacity": 0.55},
        "line": {"color": tint, "width": 1.5},
        "fillcolor": "rgba(0,0,0,0)",
    }


def upright(x: float) -> dict[str, Any]:
    """A dotted vertical line."""
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": "$ink", "width": 1.5, "dash": "dot"}}  # fmt: skip


def level(y: float) -> dict[str, Any]:
    """A dotted horizontal line."""
    return {"type": "line", "y0": y, "y1": y, "xref": "paper", "x0": 0, "x1": 1,
            "line": {"color": "$ink", "width": 1.5, "dash": "dot"}}  # fmt: skip


def is_near(value: float, drawn: Sequence[float], *, spans: float) -> bool:
    """Whether a line at this value fits beside what is drawn: at most so many times its span away.

    A line farther off would squeeze the rest into a corner of the figure.
    """
    span = max(drawn) - min(drawn)
    return min(drawn) - spans * span <= value <= max(drawn) + spans * span


def flag(x: float, text: str, *, left: bool = False) -> dict[str, Any]:
    """A label at the top of a vertical line, to its right or to its left."""
    return {"x": x, "yref": "paper", "y": 1, "text": text, "showarrow": False, "xanchor": "right" if left else "left",
            "xshift": -6 if left else 6, "yanchor": "top", "bgcolor": "$veil"}  # fmt: skip


def label_at(x: float, y: float, text: str, tint: str) -> dict[str, Any]:
    """A label at the right end of a line."""
    return {"x": x, "y": y, "text": text, "showarrow": False, "xanchor": "right", "yshift": 13 if y < 0.9 else -13,
            "font": {"color": tint}}  # fmt: skip
