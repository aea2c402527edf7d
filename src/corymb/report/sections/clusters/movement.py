"""The moves of clients between clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Figure, PlotlyTrace, Section
from corymb.report.facts import kept_rounds, moments
from corymb.report.figures.drawing import cluster_name, colour
from corymb.report.figures.river import BAR, Bar, Stream, river
from corymb.runs.history import counted

if TYPE_CHECKING:
    from corymb.runs.run import Run

LETTER, LINE = 7.5, 16
"""Approximate width of a letter and height of a line of text, in pixels."""


def movement(runs: Sequence[Run]) -> Figure | None:
    """An alluvial diagram of the clients' moves between clusters."""
    run = runs[0]
    path = moments(run)
    if len(path) < 2 or run.clusters < 2:
        return None
    drawn = river(path)
    traces = [
        _streams(label, [s for s in drawn.streams if s.label == label])
        for label in sorted({s.label for s in drawn.streams})
    ]
    names = [
        f"round {drawn.rounds[bar.column]}, {cluster_name(bar.label)}: {counted(bar.clients, 'client')}"
        for bar in drawn.bars
    ]
    handles = {
        "type": "scatter",
        "mode": "markers",
        "x": [bar.column for bar in drawn.bars],
        "y": [bar.top + bar.height / 2 for bar in drawn.bars],
        "text": names,
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": [colour(bar.label) for bar in drawn.bars], "size": 10, "opacity": 0},
    }
    last = len(drawn.rounds) - 1
    ends = [(bar, f"{cluster_name(bar.label)}, {bar.clients:,}") for bar in drawn.bars if bar.column == last]
    bottom = max(bar.top + bar.height for bar in drawn.bars)
    height = max(380, 80 + LINE * len(ends))
    layout = {
        "height": height,
        "shapes": [
            {"type": "rect", "x0": bar.column - BAR, "x1": bar.column + BAR, "y0": bar.top, "y1": bar.top + bar.height,
             "fillcolor": colour(bar.label), "line": {"width": 0}}
            for bar in drawn.bars
        ],
        "annotations": [
            {"x": last + 2 * BAR, "y": bar.top + bar.height / 2, "xanchor": "left", "showarrow": False,
             "text": text}
            for bar, text in _with_room(ends, LINE * bottom / (height - 80))
        ],
        "xaxis": {"tickvals": list(range(last + 1)), "ticktext": [str(t) for t in drawn.rounds],
                  "title": {"text": "round"}, "showgrid": False, "range": [-0.1, last + 0.1]},
        "yaxis": {"visible": False, "range": [bottom + 0.02, -0.02]},
        "margin": {"l": 14, "r": 20 + LETTER * max(len(text) for _, text in ends)},
    }  # fmt: skip
    caption = _moves_caption(run)
    if any(bar.label < 0 for bar in drawn.bars):
        caption += " Grey: clients without a cluster."
    return Figure("movement", "How clients moved", caption, [*traces, handles], layout, wide=True)


def _with_room(ends: Sequence[tuple[Bar, str]], line: float) -> list[tuple[Bar, str]]:
    """The labels from top to bottom, without those that would cover the one before: bars can be thinner than text."""
    shown: list[tuple[Bar, str]] = []
    for bar, text in ends:
        if not shown or bar.top + bar.height / 2 - (shown[-1][0].top + shown[-1][0].height / 2) >= line:
            shown.append((bar, text))
    return shown


def _streams(label: int, streams: Sequence[Stream]) -> PlotlyTrace:
    x, y = [], []
    for stream in streams:
        x += [*stream.x, None]
        y += [*stream.y, None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": _faint(colour(label)),
        "line": {"width": 0, "color": colour(label)},
        "hoverinfo": "skip",
    }


def _faint(code: str) -> str:
    red, green, blue = (int(code[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.38)"


def _moves_caption(run: Run) -> str:
    last = max((t for t, row in enumerate(kept_rounds(run), 1) if row["churn"] > 0 and t > 1), default=None)
    settled = "No client moved after the first round" if last is None else f"The last move was in round {last}"
    best = run.snapshot.notes.get("best_restart")
    kept = "" if best is None else f" Of {run.config.get('restarts')} restarts, only the one that was kept is shown."
    return f"{settled}. Shown are the first and last rounds and those with the most moves.{kept}"


SECTION = Section(order=10, show=movement)
