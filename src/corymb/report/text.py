"""The report as text: Markdown with the verdict and the tables, or CSV with a row for every client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corymb.report.content import Code, Content, Figure, Lead, Table
from corymb.report.facts import clients
from corymb.report.sections import fill
from corymb.report.words import title_of, verdict, warnings_of
from corymb.runs.history import counted
from corymb.runs.progress import readable_bytes
from corymb.settings import InvalidInput, csv_cell

if TYPE_CHECKING:
    from corymb.runs.run import Run


def as_markdown(runs: Sequence[Run]) -> bytes:
    """The report as Markdown: the verdict, the warnings and every section that is not a figure."""
    run, ledger = runs[0], runs[0].ledger
    sent = f"{readable_bytes(ledger.bytes_down)} down and {readable_bytes(ledger.bytes_up)} up"
    parts = [
        f"# {_cell(title_of(run))} on {_cell(run.config['data'])}",
        " ".join(_cell(sentence) for sentence in verdict(runs)),
        *(f"> {_cell(text)}" for text in warnings_of(run)),
        f"{counted(len(run.history), 'round')}, {sent}, {run.seconds:.1f} seconds.",
    ]
    for filled in fill(runs):
        written = [text for content in filled.contents if (text := _written(content))]
        parts += [f"## {filled.tab.title}", *written] if written else []
    return ("\n\n".join(parts) + "\n").encode()


def _written(content: Content) -> str:
    match content:
        case Lead(text=text):
            return _cell(text)
        case Code(title=title, lines=lines):
            return f"### {_cell(title)}\n\n" + "\n".join(f"    {line}" for line in lines)
        case Table() if not content.searchable:
            note = f"\n\n{_cell(content.note)}" if content.note else ""
            return f"### {_cell(content.title)}\n\n{_table(content.rows) or _cell(content.empty)}{note}"
        case Table() | Figure():
            return ""


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    head = f"| {' | '.join(map(_cell, rows[0]))} |\n|{'---|' * len(rows[0])}"
    return "\n".join([head, *(f"| {' | '.join(_cell(value) for value in row.values())} |" for row in rows)])


def _cell(value: Any) -> str:
    """Escape text for a Markdown table cell."""
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{letter}" if letter in r"\`*[]|" else letter for letter in text)


def as_csv(runs: Sequence[Run]) -> bytes:
    """The report as CSV: one row for each client of each run."""
    pandas = _pandas()
    tables = [
        pandas.DataFrame([{"run": place, "algorithm": run.config["algorithm"], **row} for row in clients(run)])
        for place, run in enumerate(runs)
    ]
    text: str = pandas.concat(tables, ignore_index=True).map(csv_cell).to_csv(index=False)
    return text.encode()


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise InvalidInput("A CSV report needs pandas: pip install 'corymb[report]'.") from None
    return pandas
