"""The final metrics that are not test scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Section, Table
from corymb.report.scores import other_metrics
from corymb.runs.history import readable

if TYPE_CHECKING:
    from corymb.runs.run import Run


def metrics(runs: Sequence[Run]) -> Table | None:
    """A row for each metric; docs/metrics.md defines them."""
    rows = [{"metric": name, "value": readable(value)} for name, value in other_metrics(runs[0]).items()]
    return Table("metrics", "Other metrics", rows, style="facts") if rows else None


SECTION = Section(order=60, show=metrics)
