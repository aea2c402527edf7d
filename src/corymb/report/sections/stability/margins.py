"""How clearly each client's best model beats its second best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corymb.report.content import Figure, Section
from corymb.report.facts import CLEAR_MARGIN, final_losses, margins
from corymb.report.figures.drawing import MANY, boxes, clients_in, flag, height_of_rows, how_many, upright

if TYPE_CHECKING:
    from corymb.runs.run import Run


def show_margins(runs: Sequence[Run]) -> Figure | None:
    """A box plot of clients' margins for each cluster: the second-lowest loss divided by the lowest."""
    run = runs[0]
    losses = final_losses(run)
    if losses is None or run.clusters < 1:
        return None
    sure = margins(losses)
    traces = boxes(run, sure, False)
    largest = float(np.nanmax(sure))
    doubtful = int((sure < CLEAR_MARGIN).sum())
    layout = {
        "height": 110 + height_of_rows(len(traces), 52),
        "xaxis": {"type": "log", "title": {"text": "second-lowest loss ÷ lowest loss"}, "tickangle": 0,
                  "tickvals": _ticks(largest), "range": [-0.04, float(np.log10(largest)) + 0.1]},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "shapes": [upright(CLEAR_MARGIN)],
        "annotations": [flag(float(np.log10(CLEAR_MARGIN)), f"{CLEAR_MARGIN}×")],
        "margin": {"l": 84, "r": 20},
    }  # fmt: skip
    many = "No client is" if not doubtful else "One client is" if doubtful == 1 else f"{doubtful} clients are"
    caption = f"Right of the line, a client's best model fits clearly better than the second best. {many} left of it."
    caption += how_many(clients_in(traces), run)
    return Figure("margins", "How clear each client's cluster is", caption, traces, layout, wide=len(traces) > MANY)


def _ticks(largest: float) -> list[float]:
    """Few enough values of a logarithmic axis from 1 on to be read in a narrow figure."""
    if largest < 2:
        return [1, 1.1, 1.2, 1.5, 2]
    if largest < 100:
        return [1, 2, 5, 10, 30, 100]
    powers = int(np.log10(largest)) + 1
    return [10.0**power for power in range(0, powers + 1, max(1, powers // 4))]


SECTION = Section(order=20, show=show_margins)
