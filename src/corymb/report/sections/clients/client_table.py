"""A table of all clients with their clusters, scores and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from corymb.report.content import Dot, Section, Table
from corymb.report.facts import clients
from corymb.report.figures.drawing import IN_FULL, MOST_CELLS
from corymb.runs.history import readable

if TYPE_CHECKING:
    from corymb.runs.run import Run


MOST_ROWS = 1000
"""At most this many clients in the page's table; the CSV report has them all."""


def client_table(runs: Sequence[Run]) -> Table:
    """A row for each client, up to a limit that keeps the page small."""
    run = runs[0]
    most = max(1, min(MOST_ROWS, MOST_CELLS // run.snapshot.k))
    rows = [{name: _cell(value) for name, value in row.items()} for row in clients(run, most)]
    title = "All clients" if len(rows) == len(run.names) else f"The first {len(rows)} of {len(run.names)} clients"
    note = "" if len(rows) == len(run.names) else f"Search and download are of these; {IN_FULL}."
    return Table("client", title, rows, style="names", wide=True, searchable=True, note=note)


def _cell(value: Any) -> str | Dot:
    if isinstance(value, str):
        return value
    return Dot(value) if isinstance(value, int) else readable(value) if math.isfinite(value) else "–"


SECTION = Section(order=20, show=client_table)
