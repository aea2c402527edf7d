"""What was saved against sending every model to every client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Lead, Section
from corymb.report.facts import savings
from corymb.runs.progress import readable_bytes

if TYPE_CHECKING:
    from corymb.runs.run import Run


def show_savings(runs: Sequence[Run]) -> Lead:
    """A sentence on what was sent to clients."""
    return Lead("Sent to clients", saving_text(runs[0]))


def saving_text(run: Run) -> str:
    """What sending fewer models saved, as a sentence."""
    saved = savings(run)
    if saved is None:
        return "This algorithm does not send all models to everybody, so there is nothing to save on."
    sent, everything = readable_bytes(saved.sent), readable_bytes(saved.everything)
    if saved.share <= 0.005:
        advice = " `saving` sends settled clients only their own." if saved.possible else ""
        return f"All models went to every client asked, in every round: {sent}.{advice}"
    return (
        f"{sent} went to clients; all models in every round would have been {everything}: {saved.share:.0%} was saved."
    )


SECTION = Section(order=10, show=show_savings)
