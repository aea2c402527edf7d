"""What a report's sections are made of: figures, tables and text, as plain values that know nothing of a format.

A section is one module in a tab's folder under `corymb.report.sections`. It declares `SECTION`, whose function gets the
runs (the first is the report's subject) and returns what to show, or None where the run has nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from corymb.runs.run import Run

PlotlyTrace = dict[str, Any]


class Figure(NamedTuple):
    """A plotly figure. Colours that begin with `$` are the page's, light or dark, filled in when it is drawn."""

    name: str
    title: str
    caption: str
    data: list[PlotlyTrace]
    layout: dict[str, Any]
    wide: bool = False


class Dot(NamedTuple):
    """A cell that names a cluster, with the cluster's colour."""

    label: int

    def __str__(self) -> str:
        return "none" if self.label < 0 else str(self.label)


TableRow = Mapping[str, str | Dot]


class Table(NamedTuple):
    """A table: rows with the same columns, of which the first names the row."""

    name: str
    title: str
    rows: Sequence[TableRow]
    style: Literal["", "names", "facts"] = ""
    """`names`: rows are named by users. `facts`: settings and their values, without a header."""
    wide: bool = False
    subject: bool = False
    """Whether the first row is highlighted."""
    prose: tuple[str, ...] = ()
    """Columns of text that may take several lines."""
    searchable: bool = False
    """Whether rows can be found by name and downloaded; such a table is left out of Markdown."""
    empty: str = ""
    """Shown in place of a table without rows."""


class Lead(NamedTuple):
    """A paragraph above the other sections of a tab."""

    title: str
    text: str


class Code(NamedTuple):
    """Lines to copy."""

    name: str
    title: str
    lines: Sequence[str]
    wide: bool = True


Content = Figure | Table | Lead | Code


class Section(NamedTuple):
    """A part of the report: what it shows, and its place among the sections of its tab (lower comes first)."""

    order: int
    show: Callable[[Sequence[Run]], Content | None]


class Tab(NamedTuple):
    """A tab of the page, declared as `TAB` in the folder of its sections."""

    title: str
    order: int
    empty: str = ""
    """Shown where none of the tab's sections has anything to show."""
