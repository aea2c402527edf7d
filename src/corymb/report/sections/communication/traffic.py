"""Bytes sent and received in each round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Figure, PlotlyTrace, Section
from corymb.report.figures.drawing import NO_CLUSTER

if TYPE_CHECKING:
    from corymb.runs.run import Run


def traffic(runs: Sequence[Run]) -> Figure | None:
    """A stacked bar for each round: megabytes sent to clients and received from them."""
    run = runs[0]
    rows = run.history
    if not rows:
        return None
    clocks = [row["clock"] for row in rows]
    traces = [
        _bytes(clocks, [row["bytes_down"] / 1e6 for row in rows], "to clients", "$accent"),
        _bytes(clocks, [row["bytes_up"] / 1e6 for row in rows], "from clients", NO_CLUSTER),
    ]
    caption = "Size of the messages exchanged with clients. It does not depend on the engine."
    layout = {
        "height": 340,
        "barmode": "stack",
        "bargap": 0.08 if len(rows) <= 40 else 0,
        "showlegend": True,
        "xaxis": {"title": {"text": "round"}, "showgrid": False},
        "yaxis": {"title": {"text": "MB"}},
    }
    return Figure("traffic", "Bytes by round", caption, traces, layout, wide=True)


def _bytes(x: list[int], y: list[float], name: str, tint: str) -> PlotlyTrace:
    return {"type": "bar", "x": x, "y": y, "name": name, "marker": {"color": tint, "line": {"width": 0}},
            "hovertemplate": f"round %{{x}}, {name}: %{{y:,.3~r}} MB<extra></extra>"}  # fmt: skip


SECTION = Section(order=20, show=traffic)
