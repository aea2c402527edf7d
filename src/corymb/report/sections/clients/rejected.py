"""Clients whose replies were rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Dot, Section, Table

if TYPE_CHECKING:
    from corymb.runs.run import Run


MOST_ROWS = 200
"""At most this many rows; the run has every rejected reply."""


def rejected(runs: Sequence[Run]) -> Table:
    """A row for each client and reason."""
    rows = rejections(runs[0])
    none = "None: every reply was valid and counted."
    note = f"{MOST_ROWS:,} of {len(rows):,} rows are shown; run.rejected, in Python, has every reply."
    note += " So has audit.jsonl in the run's folder." if runs[0].folder is not None else ""
    return Table(
        "rejected",
        "Rejected clients",
        rows[:MOST_ROWS],
        style="names",
        wide=True,
        prose=("reason",),
        empty=none,
        note=note if len(rows) > MOST_ROWS else "",
    )


def rejections(run: Run) -> list[dict[str, str | Dot]]:
    """A row for each client and reason, with the number of replies and their rounds; the most frequent first."""
    counts = Counter((str(entry["client"]), str(entry["reason"])) for entry in run.rejected)
    rounds: dict[tuple[str, str], list[int]] = {}
    for entry in run.rejected:
        rounds.setdefault((str(entry["client"]), str(entry["reason"])), []).append(int(entry["clock"]))
    return [
        {"client": client, "reason": reason, "replies": str(count), "rounds": _span(rounds[client, reason])}
        for (client, reason), count in counts.most_common()
    ]


def _span(clocks: Sequence[int]) -> str:
    return str(clocks[0]) if len(set(clocks)) == 1 else f"{min(clocks)} to {max(clocks)}"


SECTION = Section(order=10, show=rejected)
