"""One record a round: what a run did, as plain values that a line of JSON can hold."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from corymb.evaluate import clusters_in_use
from corymb.federation import Ledger
from corymb.snapshot import Snapshot

Round = dict[str, Any]
"""clock, round, stage, train_loss, churn, clusters, asked, replied, rejected, bytes_down, bytes_up, seconds; and
`metrics` where the round was evaluated."""


class Mark(NamedTuple):
    """Where the ledger stood, and which labels clients had, after a round."""

    labels: Tensor | None
    asked: int
    replied: int
    rejected: int
    bytes_down: int
    bytes_up: int

    @staticmethod
    def of(ledger: Ledger, labels: Tensor | None) -> Mark:
        """Where things stand now."""
        return Mark(labels, ledger.asked, ledger.replied, len(ledger.rejected), ledger.bytes_down, ledger.bytes_up)


def record(snapshot: Snapshot, before: Mark, after: Mark, seconds: float) -> Round:
    """The record of the round between two marks."""
    return {
        "clock": snapshot.clock,
        "round": snapshot.round,
        "stage": snapshot.stage,
        "train_loss": snapshot.notes.get("train_loss"),
        "churn": _churn(before.labels, snapshot.labels),
        "clusters": clusters_in_use(snapshot.labels),
        **{name: getattr(after, name) - getattr(before, name) for name in Mark._fields[1:]},
        "seconds": round(seconds, 4),
    }


def _churn(before: Tensor | None, now: Tensor) -> float:
    """The share of all clients whose label is another than a round ago, when nobody had one before the first."""
    changed = now >= 0 if before is None else now != before
    return float(changed.float().mean())
