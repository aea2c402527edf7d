"""The geometry of an alluvial diagram: clients by cluster at selected rounds, and the streams between them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from corymb.report.facts import LabelArray, Moment

MOST_STOPS = 9
BAR, GAP, STEPS = 0.05, 0.035, 16  # half a bar's width in columns, gap between bars, points on a curve


class Bar(NamedTuple):
    """A cluster in one round: its position and its number of clients."""

    column: int
    label: int
    top: float
    height: float
    clients: int


class Stream(NamedTuple):
    """Clients moving from one bar to a bar of the next column, as a closed outline."""

    label: int
    """The cluster the stream leads to."""
    x: list[float]
    y: list[float]


class River(NamedTuple):
    """The whole diagram. x is in columns, y in shares of all clients."""

    rounds: list[int]
    bars: list[Bar]
    streams: list[Stream]


def stops(path: Sequence[Moment]) -> list[Moment]:
    """The first and the last round, and the rounds between in which most clients moved, in order."""
    if len(path) <= 2:
        return list(path)
    moved = [int((a.labels != b.labels).sum()) for a, b in itertools.pairwise(path)]
    by_moves = sorted(range(1, len(path) - 1), key=lambda place: (-moved[place - 1], place))
    chosen = [place for place in by_moves if moved[place - 1]][: MOST_STOPS - 2]
    return [path[place] for place in sorted({0, *chosen, len(path) - 1})]


def river(path: Sequence[Moment]) -> River:
    """Lay out the bars and streams of the selected rounds."""
    chosen = stops(path)
    order = _order(chosen)
    columns = [_bars(column, moment.labels, order) for column, moment in enumerate(chosen)]
    streams = []
    for column, (before, after) in enumerate(itertools.pairwise(chosen)):
        streams += _streams(before.labels, after.labels, columns[column], columns[column + 1], order)
    return River([moment.round for moment in chosen], [bar for bars in columns for bar in bars.values()], streams)


def _order(chosen: Sequence[Moment]) -> list[int]:
    """Clusters from top to bottom; clients without a cluster come last."""
    labels = {int(label) for moment in chosen for label in np.unique(moment.labels)}
    return sorted(labels, key=lambda label: (label < 0, label))


def _bars(column: int, labels: LabelArray, order: Sequence[int]) -> dict[int, Bar]:
    bars, top = {}, 0.0
    for label in order:
        clients = int((labels == label).sum())
        height = clients / len(labels)
        if clients:
            bars[label] = Bar(column, label, top, height, clients)
        top += height + GAP  # an empty cluster keeps its gap, so that unchanged streams stay straight
    return bars


def _streams(
    before: LabelArray, after: LabelArray, left: dict[int, Bar], right: dict[int, Bar], order: Sequence[int]
) -> list[Stream]:
    filled = {label: bar.top for label, bar in right.items()}
    streams = []
    for source in order:
        top = left[source].top if source in left else 0.0
        for target in order:
            thick = float(((before == source) & (after == target)).sum()) / len(before)
            if thick:
                streams.append(_outline(left[source].column, top, filled[target], thick, target))
                top, filled[target] = top + thick, filled[target] + thick
    return streams


def _outline(column: int, start: float, end: float, thick: float, label: int) -> Stream:
    along = np.linspace(0, 1, STEPS)
    x = column + BAR + along * (1 - 2 * BAR)
    y = start + (end - start) * along * along * (3 - 2 * along)  # smoothstep: horizontal at both ends
    outline_x = np.concatenate([x, x[::-1], x[:1]])
    outline_y = np.concatenate([y, y[::-1] + thick, y[:1]])
    return Stream(label, outline_x.round(4).tolist(), outline_y.round(4).tolist())
