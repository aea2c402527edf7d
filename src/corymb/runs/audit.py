"""The audit log: rejected replies with reasons, rounds that did not count, repaired clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from corymb.core.federation import Ledger
from corymb.core.snapshot import Snapshot
from corymb.settings import InvalidInput

COUNTS = ("bytes_down", "bytes_up", "rounds", "asked", "replied")
"""The fields of a ledger that are plain counts."""


class AuditCursor(NamedTuple):
    """How much of the ledger is already in the audit log."""

    rejected: int
    abandoned: int

    @staticmethod
    def of(ledger: Ledger) -> AuditCursor:
        """A cursor at the end of the ledger."""
        return AuditCursor(len(ledger.rejected), len(ledger.abandoned))

    def news(self, ledger: Ledger, at: Snapshot) -> Iterator[dict[str, Any]]:
        """The events of a round that are not in the audit log yet."""
        for what, events in (
            ("abandoned", ledger.abandoned[self.abandoned :]),
            ("rejected", ledger.rejected[self.rejected :]),
        ):
            yield from ({**event, "what": what} for event in events)
        if "collapse" in at.notes:
            yield {"clock": at.clock, "what": "repaired", **at.notes["collapse"]}


def check_same_bits(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Refuse to resume on an engine that would compute different bits (see `Engine.describe`)."""
    for name in (*wanted, *got):
        if wanted.get(name) != got.get(name):
            raise InvalidInput(
                f"The run cannot be resumed exactly: it had {name} {wanted.get(name)}, but here it is {got.get(name)}."
            )
