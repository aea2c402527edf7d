"""One record a round: what a run did, as plain values that a line of JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from corymb.core.federation import Ledger
from corymb.core.snapshot import Snapshot
from corymb.evaluate import clusters_in_use

Round = dict[str, Any]
"""clock, round, stage, train_loss, churn, moves, clusters, asked, replied, rejected, bytes_down, bytes_up, notes,
seconds; and `metrics` where it was evaluated. `moves` is {position of a client, as text: its new label} for those whose
label changed, in the first round for all that have one: see `labels_after`. `notes` are the algorithm's own: a repair,
the evidence for k or for a threshold."""


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
        "churn": float(_changed(before.labels, snapshot.labels).float().mean()),
        "moves": _moves(before.labels, snapshot.labels),
        "clusters": clusters_in_use(snapshot.labels),
        **{name: getattr(after, name) - getattr(before, name) for name in Mark._fields[1:]},
        "notes": {name: value for name, value in snapshot.notes.items() if name != "train_loss"},
        "seconds": round(seconds, 4),
    }


def _changed(before: Tensor | None, now: Tensor) -> Tensor:
    """Whose label is another than a round ago; nobody had one before the first."""
    return now >= 0 if before is None else now != before


def _moves(before: Tensor | None, now: Tensor) -> dict[str, int]:
    places = _changed(before, now).nonzero().flatten()
    return dict(zip(map(str, places.tolist()), now[places].tolist(), strict=True))


def labels_after(history: Sequence[Round], rounds: int, n: int) -> list[int]:
    """The labels of n clients after so many rounds of a history, -1 for none.

    >>> labels_after([{"moves": {"0": 1, "2": 0}}, {"moves": {"2": 1}}], 2, 3)
    [1, -1, 1]
    """
    labels = [-1] * n
    for row in history[:rounds]:
        for place, label in row["moves"].items():
            labels[int(place)] = label
    return labels


def plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become null."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
