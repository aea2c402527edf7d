"""The quality, clusters and cost of each run in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Dot, Section, Table
from corymb.report.scores import score_of, trivial_of
from corymb.report.words import ari_of, seeks_clusters, titles_of
from corymb.runs.progress import readable_bytes

if TYPE_CHECKING:
    from corymb.runs.run import Run


def side_by_side(runs: Sequence[Run]) -> Table | None:
    """A row for each run; None for a single run."""
    run = runs[0]
    if len(runs) < 2:
        return None
    score, agreed, rows = score_of(runs[0]), [ari_of(run) for run in runs], []
    for title, run in zip(titles_of(runs), runs, strict=True):
        row: dict[str, str | Dot] = {"run": title}
        if score is not None:
            row[f"test {score.words}"] = score.text(run.metrics.get(f"test_{score.name}"))
            row["trivial"] = score.text(trivial_of(run, score))
            row["worst tenth"] = score.text(run.metrics.get(f"worst_decile_{score.name}"))
        if any(ari is not None for ari in agreed):
            ari = ari_of(run)
            row["ARI"] = "–" if ari is None else f"{ari:.2f}"
        row["clusters"] = str(run.clusters) if seeks_clusters(run) else "–"
        row["sent"] = readable_bytes(run.ledger.bytes_down + run.ledger.bytes_up)
        row["seconds"] = f"{run.seconds:.1f}"
        rows.append(row)
    return Table("runs", "Side by side", rows, style="names", wide=True, subject=True)


SECTION = Section(order=30, show=side_by_side)
