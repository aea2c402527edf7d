"""The training loss by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    kept, traces = {row["clock"] for row in kept_rounds(run)}, []
    for stage in dict.fromkeys(_run_of(row) for row in rows):
        mine = [row for row in rows if _run_of(row) == stage and not restart_of(row).startswith("scored-")]
        tint = "$accent" if any(row["clock"] in kept for row in mine) else NO_CLUSTER
        traces.append(line(list(range(1, len(mine) + 1)), [row["train_loss"] for row in mine], tint))
    traces.sort(key=lambda trace: bool(trace["line"]["color"] == "$accent"))  # draw the kept restart on top
    layout = {"height": 320, "xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": "training loss"}}}
    several = len([trace for trace in traces if trace["x"]]) > 1
    last = f"Last value: {readable(rows[-1]['train_loss'], 3)}."
    caption = "Mean over the participating clients, measured before they train. " + (
        "The restart that was kept is in colour." if several else last
    )
    return Figure("training", "Training loss", caption, traces, layout)


def _run_of(row: dict[str, Any]) -> str:
    return restart_of(row).replace("scored-", "restart-")


SECTION = Section(order=30, show=training)
