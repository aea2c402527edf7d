"""Every metric of the last round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Section, Table
from corymb.runs.history import readable

if TYPE_CHECKING:
    from corymb.runs.run import Run


def metrics(runs: Sequence[Run]) -> Table:
    """A row for each metric; what they mean is in docs/metrics.md."""
    rows = [{"metric": name, "value": readable(value)} for name, value in runs[0].metrics.items()]
    return Table("metrics", "Metrics", rows, style="facts")


SECTION = Section(order=50, show=metrics)
