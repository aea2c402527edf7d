"""The distribution of scores within each cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Figure, Section
from corymb.report.facts import final_losses, of_examples
from corymb.report.figures.drawing import MANY, box_of_all, boxes, clients_in, height_of_rows, how_many
from corymb.report.scores import score_of, scores_of, served_worse
from corymb.report.words import seeks_clusters
from corymb.runs.history import counted

if TYPE_CHECKING:
    from corymb.runs.run import Run


def by_cluster(runs: Sequence[Run]) -> Figure | None:
    """A box plot of clients' test scores for each cluster, or of their training losses if no scores were kept.

    Without clusters, one of all clients.
    """
    run = runs[0]
    score, clustered = score_of(run), seeks_clusters(run) and run.clusters > 0
    if of_examples(run):
        return None
    if (scores := scores_of(run)) is not None and score is not None:
        values, what, percent = scores, f"test {score.words}", score.percent
    elif (losses := final_losses(run)) is not None:
        values, what, percent = losses.min(1), "training loss of the best model", False
    else:
        return None
    traces = boxes(run, values, percent) if clustered else [box_of_all(run, values, percent)]
    layout = {
        "height": 110 + height_of_rows(len(traces), 52),
        "xaxis": {"title": {"text": what}, "tickformat": ".0%" if percent else ""},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "margin": {"l": 84, "r": 20},
    }
    caption = f"Each dot is a client's {what}. Boxes span the middle half; outliers deserve a closer look."
    if score is not None and (worse := served_worse(run, score)):
        caption += f" {counted(worse, 'client')} {'does' if worse == 1 else 'do'} no better than {score.trivial}."
    caption += how_many(clients_in(traces), run)
    title = f"{what[0].upper()}{what[1:]} {'by cluster' if clustered else 'of each client'}"
    return Figure("by-cluster", title, caption, traces, layout, wide=len(traces) > MANY)


SECTION = Section(order=10, show=by_cluster)
