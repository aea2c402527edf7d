"""Bytes sent and received in each round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Figure, PlotlyTrace, Section
from corymb.report.figures.drawing import NO_CLUSTER

if TYPE_CHECKING:
    from corymb.runs.run import Run


UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("bytes", 1))


def traffic(runs: Sequence[Run]) -> Figure | None:
    """A stacked bar for each round: the bytes sent to clients and received from them."""
    run = runs[0]
    rows = run.history
    if not rows:
        return None
    clocks = [row["clock"] for row in rows]
    most = max(row["bytes_down"] + row["bytes_up"] for row in rows)
    unit, size = next(((unit, size) for unit, size in UNITS if most >= size), UNITS[-1])
    traces = [
        _bytes(clocks, [row["bytes_down"] / size for row in rows], "to clients", "$accent", unit),
        _bytes(clocks, [row["bytes_up"] / size for row in rows], "from clients", NO_CLUSTER, unit),
    ]
    caption = "Size of the messages exchanged with clients. It does not depend on the engine."
    layout = {
        "height": 340,
        "barmode": "stack",
        "bargap": 0.08 if len(rows) <= 40 else 0,
        "showlegend": True,
        "xaxis": {"title": {"text": "round"}, "showgrid": False},
        "yaxis": {"title": {"text": unit}},
    }
    return Figure("traffic", "Bytes by round", caption, traces, layout, wide=True)


def _bytes(x: list[int], y: list[float], name: str, tint: str, unit: str) -> PlotlyTrace:
    return {"type": "bar", "x": x, "y": y, "name": name, "marker": {"color": tint, "line": {"width": 0}},
            "hovertemplate": f"round %{{x}}, {name}: %{{y:,.3~r}} {unit}<extra></extra>"}  # fmt: skip


SECTION = Section(order=20, show=traffic)
