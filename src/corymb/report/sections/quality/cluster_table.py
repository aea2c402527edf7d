"""The quality of each cluster, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Section, Table
from corymb.report.words import cluster_rows, seeks_clusters

if TYPE_CHECKING:
    from corymb.runs.run import Run


def cluster_table(runs: Sequence[Run]) -> Table | None:
    """A row for each cluster; None without clusters."""
    return Table("cluster", "Clusters", cluster_rows(runs[0]), wide=True) if seeks_clusters(runs[0]) else None


SECTION = Section(order=40, show=cluster_table)
