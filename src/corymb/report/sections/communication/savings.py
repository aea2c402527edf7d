"""The saving against sending every model to every client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Lead, Section
from corymb.report.facts import savings
from corymb.runs.progress import readable_bytes

if TYPE_CHECKING:
    from corymb.runs.run import Run


def show_savings(runs: Sequence[Run]) -> Lead:
    """An introductory sentence on the bytes sent to clients."""
    return Lead("Sent to clients", saving_text(runs[0]))


def saving_text(run: Run) -> str:
    """The saving from sending fewer models, as a sentence."""
    saved = savings(run)
    if saved is None:
        return "This algorithm does not send all models to every client, so there is nothing to save."
    sent, everything = readable_bytes(saved.sent), readable_bytes(saved.everything)
    if saved.share <= 0.005:
        how = "--saving.stable_rounds 3 (in Python saving=Saving())"
        advice = f" With {how}, settled clients receive only their own model." if saved.possible else ""
        return f"Every selected client received all models in every round: {sent}.{advice}"
    return f"Clients received {sent}, {saved.share:.0%} less than the {everything} of all models in every round."


SECTION = Section(order=10, show=show_savings)
