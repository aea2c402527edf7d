"""The settings of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Section, Table
from corymb.report.words import flat

if TYPE_CHECKING:
    from corymb.runs.run import Run


def settings(runs: Sequence[Run]) -> Table:
    """A row for each setting."""
    found = flat({name: value for name, value in runs[0].config.items() if name != "record"})
    rows = [{"setting": name, "value": value} for name, value in found.items()]
    return Table("settings", "Settings", rows, style="facts", prose=("value",))


SECTION = Section(order=20, show=settings)
