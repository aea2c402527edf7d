"""Clients whose replies were rejected."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Dot, Section, Table

if TYPE_CHECKING:
    from corymb.runs.run import Run


NUMBER = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")
"""Reasons that differ in numbers only are of one kind."""
MOST_ROWS = 200
"""At most this many rows; the run has every rejected reply."""


def rejected(runs: Sequence[Run]) -> Table:
    """A row for each client and kind of reason."""
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
    """A row for each client and kind of reason: the number of replies and their rounds; the most frequent first."""
    last = max((int(row["clock"]) for row in run.history), default=1)
    groups: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for entry in run.rejected:  # the clock counts the rounds that are complete: what follows the last one belongs to it
        client, reason, during = str(entry["client"]), str(entry["reason"]), min(int(entry["clock"]) + 1, last)
        groups.setdefault((client, NUMBER.sub("", reason)), []).append((reason, during))
    return [
        {"client": client, "reason": _told(reasons), "replies": str(len(reasons)), "rounds": _span(rounds)}
        for (client, _), found in sorted(groups.items(), key=lambda group: -len(group[1]))
        for reasons, rounds in [list(zip(*found, strict=True))]
    ]


def _told(reasons: Sequence[str]) -> str:
    """Reasons that are the same but for their numbers."""
    return f"{reasons[-1]}{'' if len(set(reasons)) == 1 else ' (the last time)'}"


def _span(rounds: Sequence[int]) -> str:
    return str(rounds[0]) if len(set(rounds)) == 1 else f"{min(rounds)} to {max(rounds)}"


SECTION = Section(order=10, show=rejected)
