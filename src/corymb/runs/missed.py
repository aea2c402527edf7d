"""Messages about clients whose data did not count in rounds, or that could not be scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corymb.runs.history import counted

MOST_NAMED = 5
"""At most this many clients are named whose replies were often rejected."""
OFTEN = 4
"""A client is named if its replies were rejected in more than one of this many rounds."""


def often_rejected(rejected: Sequence[Mapping[str, Any]], rounds: int) -> Iterator[str]:
    """Warnings about clients whose replies were rejected in many rounds, so that the models miss their data."""
    times_of = Counter(client for _, client in {(entry["clock"], entry["client"]) for entry in rejected})
    reasons = {entry["client"]: entry["reason"] for entry in rejected}
    often = sorted((-times, client) for client, times in times_of.items() if OFTEN * times > rounds)
    for times, client in often[:MOST_NAMED]:
        reason = reasons[client]
        remedy = "; if its updates are correct, --no_guard accepts them" * ("as long as is usual" in reason)
        yield (
            f"Client {client!r} had its reply rejected in {-times} of {counted(rounds, 'round')} ({reason}): "
            f"its data did not count in those rounds{remedy}."
        )
    if (more := len(often) - MOST_NAMED) > 0:
        who = f"{more:,} more {'client' if more == 1 else 'clients'}"
        yield f"So had {who}, in more than a quarter of the rounds; run.rejected in Python lists all."


def not_scored(names: Sequence[str], clients: int, shown: int = 10) -> str:
    """The clients that could not be scored, as a sentence: a mean over the other clients would hide them.

    >>> not_scored(["site-0", "site-1", "site-2"], 9, shown=2)
    '3 of 9 clients not scored: site-0, site-1, 1 more'
    """
    more = [f"{len(names) - shown} more"] if len(names) > shown else []
    return f"{len(names)} of {counted(clients, 'client')} not scored: {', '.join([*names[:shown], *more])}"
