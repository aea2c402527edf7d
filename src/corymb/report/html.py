"""The report of a run: one self-contained HTML page, or the same content as Markdown, CSV or PNG.

The first run is the report's subject; the others are compared with it. Client names are untrusted input: the template
escapes them, text in figures is escaped twice (for plotly, and so that it cannot close the script element that holds
it), and the page's content security policy allows only its own two scripts and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from corymb.report.content import Content, Figure
from corymb.report.facts import of_examples
from corymb.report.figures.drawing import colour
from corymb.report.png import as_png
from corymb.report.scores import score_of, trivial_of
from corymb.report.sections import Filled, fill
from corymb.report.text import as_csv, as_markdown
from corymb.report.words import ari_of, role_of, seeks_clusters, title_of, verdict, warnings_of
from corymb.runs.folder.files import whole
from corymb.runs.history import counted, plain, readable
from corymb.runs.progress import readable_bytes
from corymb.settings import InvalidInput, expanded, require

if TYPE_CHECKING:
    from markupsafe import Markup

    from corymb.runs.run import Run

Format = Literal["html", "md", "csv", "png"]


class KeyNumber(NamedTuple):
    """One of the large numbers at the top of the page."""

    value: str
    name: str


def write_report(runs: Run | Sequence[Run], path: str | Path | None = None, format: Format | None = None) -> Path:
    """Write a report and return its path.

    Without a path, the report goes into the first run's folder, or into the working directory if the run was not
    saved. The format follows from the path's extension and defaults to html.
    """
    several = list(runs) if isinstance(runs, Sequence) else [runs]
    require(bool(several), "A report needs at least one run.")
    kind = format or _format_of(path)
    place = expanded(path) if path is not None else (several[0].folder or Path()) / f"report.{kind}"
    put(place, WRITERS[kind](several))
    return place


def put(place: Path, page: bytes) -> None:
    """Write a file atomically: a reader never sees it half written."""
    require(not place.is_dir(), f"{place} is a folder: give a file name for the report.")
    place.parent.mkdir(parents=True, exist_ok=True)
    with whole(place) as file:
        file.write(page)


def _format_of(path: str | Path | None) -> str:
    ending = "" if path is None else Path(path).suffix[1:].lower()
    kind = {"": "html", "htm": "html"}.get(ending, ending)
    require(
        kind in WRITERS,
        f"{path}: a report's extension is one of {', '.join(WRITERS)}; use one of them, or pass the format.",
    )
    return kind


def as_html(runs: Sequence[Run]) -> bytes:
    """The report as an HTML page."""
    run = runs[0]
    return render(
        name=title_of(run),
        data=str(run.config["data"]),
        verdict=verdict(runs),
        warnings=warnings_of(run),
        keys=key_numbers(run),
        tabs=fill(runs),
    )


def render(
    *,
    name: str,
    data: str,
    verdict: Sequence[str],
    warnings: Sequence[str],
    keys: Sequence[KeyNumber],
    tabs: Sequence[Filled],
) -> bytes:
    """Render a page: title, verdict, warnings and key numbers at the top, and the tabs below."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("corymb.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["options_whole"] = options_whole
    page = environment.get_template("report.html")
    drawn = [content for filled in tabs for content in filled.contents if isinstance(content, Figure)]
    scripts = (_plotly() if drawn else "", _template("report.js"))
    text = page.render(
        name=name,
        data=data,
        verdict=verdict,
        warnings=warnings,
        keys=keys,
        tabs=tabs,
        kind=_kind,
        colour=colour,
        drawn=drawn,
        values=as_json({figure.name: {"data": figure.data, "layout": figure.layout} for figure in drawn}),
        plotly=scripts[0],
        script=scripts[1],
        style=_template("report.css"),
        policy=policy(scripts),
    )
    return text.encode()


def options_whole(text: str) -> Markup:
    """Text as HTML in which no line ends within the name of a command's option: browsers break after hyphens."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<!\w)--[a-z][\w.]*", r'<span class="option">\g<0></span>', str(escape(text))))


def _kind(content: Content) -> str:
    """The name of the template macro that renders a piece of content."""
    return type(content).__name__.lower()


def key_numbers(run: Run) -> list[KeyNumber]:
    """The key numbers of a run."""
    score = score_of(run)
    shown = [
        KeyNumber(*counted(len(run.names), "client").split()),
        *([KeyNumber(f"{sum(run.points):,}", "examples")] if run.points else []),
        KeyNumber(*_how_many(run).split()),
        *([KeyNumber(f"{run.metrics['purity']:.1%}", "purity")] if run.points and "purity" in run.metrics else []),
    ]
    if score is not None:
        shown.append(KeyNumber(score.text(run.metrics[f"test_{score.name}"]), f"test {score.words}"))
        if (trivial := trivial_of(run, score)) is not None:
            shown.append(KeyNumber(score.text(trivial), "trivial baseline"))
        shown.append(KeyNumber(score.text(run.metrics[f"worst_decile_{score.name}"]), "worst tenth"))
    if (ari := ari_of(run)) is not None:
        shown.append(KeyNumber(f"{ari:.2f}", "ARI with true groups"))
    if (spent := run.metrics.get("epsilon")) is not None:
        shown.append(KeyNumber(readable(spent, 3), f"privacy spent (ε at δ = {run.metrics['delta']:g})"))
    shown.append(KeyNumber(readable_bytes(run.ledger.bytes_down + run.ledger.bytes_up), "sent"))
    return shown


def _how_many(run: Run) -> str:
    """The number of clusters, or of models if the algorithm makes no clusters or the server does not know them."""
    if seeks_clusters(run) and (run.clusters or of_examples(run)):
        return counted(run.clusters, "cluster")
    if seeks_clusters(run):
        return counted(run.snapshot.k, "model")
    return counted(1 if role_of(run) == "global" else len(run.names), "model")


def policy(scripts: Sequence[str]) -> str:
    """The content security policy of a page: only these scripts run, and nothing is fetched."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{code}'" for code in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def as_json(value: Any) -> str:
    """JSON that is safe inside a script element: no text in it can close the element."""
    text = json.dumps(plain(value), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise InvalidInput("An HTML report needs plotly: pip install 'corymb[report]'.") from None
    return str(get_plotlyjs()).replace("\r\n", "\n")  # browsers normalise newlines before they compute the hash


@cache
def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


WRITERS: Mapping[str, Callable[[Sequence[Run]], bytes]] = MappingProxyType(
    {"html": as_html, "md": as_markdown, "csv": as_csv, "png": as_png}
)
