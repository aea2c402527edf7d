"""The quality of each cluster, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Section, Table
from corymb.report.words import cluster_rows

if TYPE_CHECKING:
    from corymb.runs.run import Run


def cluster_table(runs: Sequence[Run]) -> Table:
    """A row for each cluster."""
    return Table("cluster", "Clusters", cluster_rows(runs[0]))


SECTION = Section(order=40, show=cluster_table)
