"""`corymb list`: list the names that other commands accept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal


def show_list(what: Literal["data", "algorithms", "models", "faults"]) -> None:
    """List the available data sets, algorithms, models or faults."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in names_of(what).items():
        table.add_row(name, escape(text))
    Console().print(table)


def names_of(what: str) -> dict[str, str]:
    """Names with their descriptions."""
    table: Mapping[str, Any]
    if what == "algorithms":
        from corymb.algorithms.catalogue import CATALOGUE as table
    elif what == "data":
        from corymb.data.catalogue import NAMES as table
    elif what == "models":
        from corymb.runs.learners import MODELS as table
    else:
        from corymb.faults import KINDS

        return {name: kind.about for name, kind in KINDS.items()}
    return {name: row.description for name, row in table.items()}
