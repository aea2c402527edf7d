"""Clients with little data, and what was done to data before the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Section, Table

if TYPE_CHECKING:
    from corymb.runs.run import Run

_WORDS = {
    "few_examples": "clients with at most three training examples",
    "one_class": "clients with training examples of one class only",
    "no_test_example": "clients without a test example",
}


def little_data(runs: Sequence[Run]) -> Table | None:
    """How many clients have little data, and notes on what was dropped, filled in or found odd."""
    schema = runs[0].schema
    rows = [{"fact": _WORDS.get(name, name), "value": str(count)} for name, count in schema.clients.items()]
    rows += [{"fact": "note", "value": note} for note in schema.notes]
    return Table("little-data", "The clients' data", rows, style="facts", prose=("value",)) if rows else None


SECTION = Section(order=30, show=little_data)
