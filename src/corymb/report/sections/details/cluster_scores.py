"""Every test score for each cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corymb.report.content import Dot, Section, Table
from corymb.report.facts import of_examples
from corymb.report.scores import scores_in, scores_of
from corymb.report.words import seeks_clusters

if TYPE_CHECKING:
    from corymb.runs.run import Run


def cluster_scores(runs: Sequence[Run]) -> Table | None:
    """A row for each cluster: the mean of every test score over those of its clients for which it is defined."""
    run = runs[0]
    columns = {score: scores_of(run, score) for score in scores_in(run) if score.name in run.by_client}
    if len(columns) < 2 or of_examples(run) or not seeks_clusters(run):
        return None
    labels, rows = run.snapshot.labels.numpy(), []
    for label in run.sizes:
        row: dict[str, str | Dot] = {"cluster": Dot(label)}
        for score, values in columns.items():
            known = [] if values is None else values[(labels == label) & np.isfinite(values)]
            row[f"test {score.words}"] = score.text(float(np.mean(known)) if len(known) else None)
        rows.append(row)
    return Table("cluster-scores", "Test scores by cluster", rows, wide=True)


SECTION = Section(order=17, show=cluster_scores)
