"""The building blocks of a report section: figures, tables and text, as values independent of the output format.

A section is one module in a tab's package under `corymb.report.sections`. It declares `SECTION`, whose function takes
the runs (the first is the report's subject) and returns the content to show, or None if the run has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from corymb.runs.run import Run

PlotlyTrace = dict[str, Any]


class Figure(NamedTuple):
    """A plotly figure. A colour that begins with `$` names a CSS variable of the page, resolved when it is drawn."""

    name: str
    title: str
    caption: str
    data: list[PlotlyTrace]
    layout: dict[str, Any]
    wide: bool = False


class Dot(NamedTuple):
    """A table cell that names a cluster and is shown with the cluster's colour."""

    label: int

    def __str__(self) -> str:
        return "none" if self.label < 0 else str(self.label)


TableRow = Mapping[str, str | Dot]


class Table(NamedTuple):
    """A table. All rows have the same columns; the first column is the row's heading."""

    name: str
    title: str
    rows: Sequence[TableRow]
    style: Literal["", "names", "facts"] = ""
    """`names`: row headings are user-supplied names. `facts`: name-value pairs, shown without a header."""
    wide: bool = False
    subject: bool = False
    """Whether the first row is highlighted."""
    prose: tuple[str, ...] = ()
    """Columns of text that may wrap over several lines."""
    searchable: bool = False
    """Whether the page offers a search field and a CSV download; such tables are omitted from Markdown."""
    empty: str = ""
    """Text shown if the table has no rows."""
    note: str = ""
    """A sentence below the table, such as how many rows are shown."""


class Lead(NamedTuple):
    """An introductory paragraph of a tab."""

    title: str
    text: str


class Code(NamedTuple):
    """Shell commands to copy, one per line."""

    name: str
    title: str
    lines: Sequence[str]
    wide: bool = True


Content = Figure | Table | Lead | Code


class Section(NamedTuple):
    """A part of the report: the function that produces its content, and its position in the tab (lowest first)."""

    order: int
    show: Callable[[Sequence[Run]], Content | None]


class Tab(NamedTuple):
    """A tab of the page, declared as `TAB` in the package of its sections."""

    title: str
    order: int
    empty: str = ""
    """Text shown if none of the tab's sections has content."""
