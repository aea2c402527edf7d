"""Clients with little data, and notes on how the data were prepared."""

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
    """The number of clients with little data, and notes on dropped, imputed or suspicious values."""
    schema = runs[0].schema
    rows = [{"fact": _WORDS.get(name, name), "value": str(count)} for name, count in schema.clients.items()]
    rows += [{"fact": "note", "value": note} for note in schema.notes]
    return Table("little-data", "Data of the clients", rows, style="facts", prose=("value",)) if rows else None


SECTION = Section(order=30, show=little_data)
