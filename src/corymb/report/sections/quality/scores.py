"""Every final test score, beside the trivial baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Section, Table
from corymb.report.scores import score_rows

if TYPE_CHECKING:
    from corymb.runs.run import Run


def scores(runs: Sequence[Run]) -> Table | None:
    """A row for each metric, the main one first; docs/metrics.md defines them."""
    rows = score_rows(runs[0])
    return Table("scores", "Test scores", rows, style="names", wide=True, subject=True) if rows else None


SECTION = Section(order=50, show=scores)
