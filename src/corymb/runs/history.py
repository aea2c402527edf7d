"""The record of a round: what happened in it, as plain values for a line of JSON."""

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
seconds, and `metrics` if the round was evaluated. `moves` maps the position of each client whose label changed, as
text, to its new label; in the first round, of all clients with a label: see `labels_after`. `notes` come from the
algorithm: a repair, say, or the evidence for k or for a threshold."""


class Mark(NamedTuple):
    """The labels of the clients and the counts of the ledger after a round."""

    labels: Tensor | None
    asked: int
    replied: int
    rejected: int
    bytes_down: int
    bytes_up: int

    @staticmethod
    def of(ledger: Ledger, labels: Tensor | None) -> Mark:
        """The present labels and counts."""
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
    """Which clients have a new label; before the first round nobody had one."""
    return now >= 0 if before is None else now != before


def _moves(before: Tensor | None, now: Tensor) -> dict[str, int]:
    places = _changed(before, now).nonzero().flatten()
    return dict(zip(map(str, places.tolist()), now[places].tolist(), strict=True))


def labels_after(history: Sequence[Round], rounds: int, n: int) -> list[int]:
    """The labels of n clients after the first rounds of a history, -1 for none.

    >>> labels_after([{"moves": {"0": 1, "2": 0}}, {"moves": {"2": 1}}], 2, 3)
    [1, -1, 1]
    """
    labels = [-1] * n
    for row in history[:rounds]:
        for place, label in row["moves"].items():
            labels[int(place)] = label
    return labels


def readable(value: float) -> str:
    """A number with four digits that count, and no exponent where a reader expects none.

    >>> readable(33763.2), readable(0.12345), readable(1e-7)
    ('33,760', '0.1235', '1e-07')
    """
    text = f"{value:.4g}"
    return f"{float(text):,.0f}" if "e+" in text and abs(value) < 1e15 else text


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "cluster"), counted(2, "cluster")
    ('1 cluster', '2 clusters')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def plain(value: Any) -> Any:
    """The same value with infinities and NaN, which JSON does not have, as null."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
