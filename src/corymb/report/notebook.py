"""A run's notebook representation: the verdict, the clusters and the churn by round."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from corymb.report.content import Dot
from corymb.report.facts import kept_rounds, of_examples
from corymb.report.figures.drawing import colour
from corymb.report.words import cluster_rows, title_of, verdict, warnings_of

if TYPE_CHECKING:
    from corymb.runs.run import Run

LEFT = "text-align:left"


def run_html(run: Run) -> str:
    """The HTML of `Run._repr_html_`. All user-supplied text is escaped."""
    data = escape(str(run.config["data"]))
    parts = [
        f"<div style='font-size:1.15em'><b>{escape(title_of(run))}</b> on <b>{data}</b></div>",
        f"<p style='max-width:60em'>{escape(' '.join(verdict([run])))}</p>",
        *(f"<p>⚠ {escape(text)}</p>" for text in warnings_of(run)),
        _clusters(run),
        _churn(run),
    ]
    return f"<div>{''.join(parts)}</div>"


def _clusters(run: Run) -> str:
    rows = cluster_rows(run)
    if not rows:
        return ""
    head = "".join(f"<th style='{LEFT}'>{escape(name)}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(_cell(value) for value in row.values())}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: str | Dot) -> str:
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    return f"<td style='{LEFT}'><span style='color:{colour(value.label)}'>●</span> {value}</td>"


def _churn(run: Run) -> str:
    """A sparkline of the share of clients that changed cluster in each round."""
    churn = [row["churn"] for row in kept_rounds(run)][1:]
    if len(churn) < 2 or run.clusters < 2 or of_examples(run):
        return ""
    points = " ".join(
        f"{120 * place / (len(churn) - 1):.1f},{22 - 20 * share:.1f}" for place, share in enumerate(churn)
    )
    line = f"<polyline points='{points}' fill='none' stroke='{colour(0)}' stroke-width='1.5'/>"
    return f"<div>churn <svg width='120' height='24' role='img' aria-label='churn by round'>{line}</svg></div>"
