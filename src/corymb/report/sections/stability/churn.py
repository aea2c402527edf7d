"""Churn and agreement of the labels by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Figure, Section
from corymb.report.facts import agreement, kept_rounds, moments, moved_examples, of_examples, repairs
from corymb.report.figures.drawing import PALETTE, flag, label_at, line, upright

if TYPE_CHECKING:
    from corymb.runs.run import Run


def churn(runs: Sequence[Run]) -> Figure | None:
    """The share of clients that changed cluster in each round, and the ARI with the previous round."""
    run = runs[0]
    rows = kept_rounds(run)
    if of_examples(run):
        return _moved(run)
    if len(rows) < 3 or run.clusters < 2:
        return None
    shares = [round(row["churn"], 4) for row in rows[1:]]  # in the first round every client is new
    traces = [line(list(range(2, len(rows) + 1)), shares, "$accent")]
    annotations = [label_at(len(rows), shares[-1], "churn", "$accent")]
    if path := moments(run):
        agreed = [(t, round(value, 4)) for t, value in agreement(path)]
        traces.append(line([t for t, _ in agreed], [value for _, value in agreed], PALETTE[1]))
        annotations.append(label_at(len(rows), agreed[-1][1], "ARI with previous round", PALETTE[1]))
    repaired = [repair.round for repair in repairs(run)]
    layout = {
        "height": 340,
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"range": [-0.04, 1.08], "tickformat": ".0%" if len(traces) == 1 else ""},
        "shapes": [upright(t) for t in repaired],
        "annotations": [*annotations, *(flag(t, "regrouped") for t in repaired[:1])],
    }
    caption = (
        "Churn is the share of clients that changed cluster in a round. Once the clusters have settled, churn is 0 "
        "and the adjusted Rand index (ARI) is 1."
    )
    return Figure("stability", "Churn and agreement by round", caption, traces, layout)


def _moved(run: Run) -> Figure | None:
    """The share of examples that changed cluster in each round, for runs that cluster examples."""
    moved = moved_examples(run)
    if len(moved) < 2:
        return None
    drawn = line([t for t, _ in moved], [round(share, 5) for _, share in moved], "$accent")
    layout = {
        "height": 340,
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"title": {"text": "share of examples"}, "tickformat": ".0%", "rangemode": "tozero"},
    }
    caption = "The share of all examples that changed cluster when clients relabelled them: 0 once a run has settled."
    return Figure("stability", "Examples that changed cluster, by round", caption, [drawn], layout)


SECTION = Section(order=10, show=churn)
