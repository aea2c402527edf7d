"""A reproduction as one self-contained HTML page: its tables, and its figures as inline SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
footer { margin-top: 2rem; font-size: 0.9rem; opacity: 0.8; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.25rem 0.7rem; border-bottom: 1px solid #ddd; vertical-align: top; }
th { border-bottom: 2px solid #888; } svg { max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { body { background: #151515; color: #e8e8e8; } th, td { border-color: #444; }
  svg { background: #fff; } }
"""


def page(title: str, table: str, drawings: Sequence[str], about: str = "") -> str:
    """Render the Markdown of `table.md` as HTML, with SVG drawings after the first table and `about` as a footer."""
    first, *rest = _blocks(table)
    drawn = [f'<div class="wide">{_inside(drawing)}</div>' for drawing in drawings]
    body = "\n".join([first, *drawn, *rest, *([f"<footer>{escape(about)}</footer>"] if about else [])])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _inside(drawing: str) -> str:
    """The svg element of an SVG file, without the XML prologue."""
    return drawing[drawing.index("<svg") :]


def _blocks(table: str) -> Iterator[str]:
    """Convert the Markdown that recipes write (headings, tables, paragraphs) to HTML blocks."""
    for kind, lines in groupby(table.splitlines(), key=_kind):
        rows = list(lines)
        if kind == "table":
            yield _table(rows)
        elif kind == "heading":
            yield from (f"<h2>{_words(row.lstrip('# '))}</h2>" for row in rows)
        elif kind == "text":
            yield f"<p>{' '.join(map(_words, rows))}</p>"


def _kind(line: str) -> str:
    return "table" if line.startswith("|") else "heading" if line.startswith("#") else "text" if line.strip() else ""


def _table(rows: Sequence[str]) -> str:
    head, _, *body = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    first = "".join(f"<th>{_words(cell)}</th>" for cell in head)
    rest = "\n".join("<tr>" + "".join(f"<td>{_words(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f'<div class="wide"><table><thead><tr>{first}</tr></thead>\n<tbody>{rest}</tbody></table></div>'


def _words(text: str) -> str:
    """Escape text and convert Markdown's bold and code."""
    return re.sub(r"`(.+?)`", r"<code>\1</code>", re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text)))
