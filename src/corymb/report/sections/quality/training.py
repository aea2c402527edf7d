"""The training loss by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Figure, Section
from corymb.report.facts import kept_rounds, restart_of
from corymb.report.figures.drawing import NO_CLUSTER, line
from corymb.runs.history import readable

if TYPE_CHECKING:
    from corymb.runs.run import Run


def training(runs: Sequence[Run]) -> Figure | None:
    """The training loss by round, a line for each restart."""
    run = runs[0]
    rows = [row for row in run.history if row["train_loss"] is not None]
    if len(rows) < 2:
        return None
    kept, traces = kept_rounds(run), []
    clocks = {row["clock"] for row in kept}
    for restart in dict.fromkeys(map(restart_of, rows)):
        if restart.startswith("scored-"):
            continue
        every = [row for row in run.history if restart_of(row) in ("", restart)] if restart else kept
        mine = [
            (t, row) for t, row in enumerate(every, 1) if restart_of(row) == restart and row["train_loss"] is not None
        ]
        tint = "$accent" if any(row["clock"] in clocks for _, row in mine) else NO_CLUSTER
        traces.append(line([t for t, _ in mine], [row["train_loss"] for _, row in mine], tint))
    traces.sort(key=lambda trace: bool(trace["line"]["color"] == "$accent"))  # draw the kept restart on top
    layout = {"height": 320, "xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": "training loss"}}}
    several = len(traces) > 1
    last = f"Last value: {readable(rows[-1]['train_loss'], 3)}."
    caption = "Mean over the participating clients, measured before they train. " + (
        "The restart that was kept is in colour." if several else last
    )
    return Figure("training", "Training loss", caption, traces, layout)


SECTION = Section(order=30, show=training)
