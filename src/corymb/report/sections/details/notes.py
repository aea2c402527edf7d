"""The algorithm's notes and their meanings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Section, Table
from corymb.report.facts import notes_of
from corymb.report.words import entry_of
from corymb.runs.history import readable

if TYPE_CHECKING:
    from corymb.runs.run import Run

SHOWN = ("number", "numbers", "text", "names")


def notes(runs: Sequence[Run]) -> Table | None:
    """A row for each note that the catalogue explains; notes drawn elsewhere (evidence, events) are left out."""
    entry, found = entry_of(runs[0]), notes_of(runs[0])
    meanings = {} if entry is None else {name: note for name, note in entry.notes.items() if note.kind in SHOWN}
    rows = [
        {"note": name, "value": _written(found[name]), "meaning": note.meaning}
        for name, note in meanings.items()
        if name in found
    ]
    if not rows:
        return None
    return Table("notes", "Final notes of the algorithm", rows, wide=True, prose=("meaning",))


def _written(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_written(one) for one in value[:12]) + (", ..." if len(value) > 12 else "")
    return readable(value) if isinstance(value, float) else str(value)


SECTION = Section(order=15, show=notes)
