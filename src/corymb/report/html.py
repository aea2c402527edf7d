"""The report of a run: one page that needs no network, or the same facts as Markdown, a table or a picture.

The first run is the report's subject; others stand beside it. Clients' names come from users: the template escapes
them, the figures' values are escaped twice (for plotly, and so that no text ends the script they stand in), and the
page's own policy lets nothing run but its two scripts and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from corymb.report.facts import losses_of, margins, savings, score_of, scores_of
from corymb.report.figures import figures
from corymb.report.figures.drawing import MOST_CELLS, cluster_name, colour
from corymb.report.words import beside, by_cluster, flat, own_name, verdict, warnings_of
from corymb.runs.progress import readable_bytes
from corymb.runs.run import Run, plain
from corymb.settings import InvalidInput, require

Format = Literal["html", "md", "csv", "png"]
TABS = MappingProxyType(
    {
        "overview": "Overview",
        "clusters": "Clusters",
        "quality": "Quality",
        "stability": "Stability",
        "communication": "Communication",
        "clients": "Clients",
        "details": "Details",
    }
)
MOST_ROWS = 1000
"""Clients in the page's table; the csv format has them all."""


class Key(NamedTuple):
    """One of the large numbers at the top."""

    value: str
    name: str


def write_report(runs: Run | Sequence[Run], path: str | Path | None = None, format: Format | None = None) -> Path:
    """Write a report and return where it is.

    Without a path it stands in the first run's folder, or is `report.html` here. The format is that of the path's
    ending, and html otherwise.
    """
    several = [runs] if isinstance(runs, Run) else list(runs)
    require(bool(several), "A report needs at least one run.")
    kind = format or _format_of(path)
    place = Path(path).expanduser() if path is not None else (several[0].folder or Path()) / f"report.{kind}"
    require(not place.is_dir(), f"{place} is a folder: give the report a file name.")
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.part")
    part.write_bytes(WRITERS[kind](several))
    os.replace(part, place)  # a reader never sees half a report
    return place


def _format_of(path: str | Path | None) -> str:
    if path is None or not Path(path).suffix:
        return "html"
    ending = Path(path).suffix[1:].lower().replace("htm", "html").replace("htmll", "html")
    require(ending in WRITERS, f"{path}: a report is one of {', '.join(WRITERS)}; name another ending, or the format.")
    return ending


# ---- html


def as_html(runs: Sequence[Run]) -> bytes:
    """The page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    places = PackageLoader("corymb.report")
    page = Environment(
        loader=places, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).get_template("report.html")
    drawn, scripts = figures(runs), (_plotly(), _part("report.js"))
    text = page.render(
        **_facts(runs),
        tabs=TABS,
        figures=drawn,
        values=as_json({figure.name: {"data": figure.data, "layout": figure.layout} for figure in drawn}),
        plotly=scripts[0],
        script=scripts[1],
        style=_part("report.css"),
        policy=policy(scripts),
    )
    return text.encode()


def _facts(runs: Sequence[Run]) -> dict[str, Any]:
    run = runs[0]
    return {
        "name": own_name(run),
        "run": run,
        "verdict": verdict(runs),
        "warnings": warnings_of(run),
        "keys": keys(run),
        "beside": beside(runs),
        "by_cluster": by_cluster(run),
        "saving": saving_text(run),
        "clients": clients(run)[: max(1, min(MOST_ROWS, MOST_CELLS // run.snapshot.k))],
        "rejected": rejected(run),
        "about": about(run),
        "settings": flat({name: value for name, value in run.config.items() if name != "record"}),
        "commands": commands(runs),
        "cluster_name": cluster_name,
        "colour": colour,
    }


def policy(scripts: Sequence[str]) -> str:
    """What the page may do: run these scripts and no others, fetch nothing."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{code}'" for code in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def as_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element."""
    text = json.dumps(plain(value), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise InvalidInput("An HTML report needs plotly: pip install 'corymb[report]'.") from None
    return str(get_plotlyjs()).replace("\r\n", "\n")  # as a browser reads it, for the hash


@cache
def _part(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


# ---- what all formats tell


def keys(run: Run) -> list[Key]:
    """The numbers to see first."""
    score, shown = score_of(run), [Key(str(len(run.names)), "clients"), Key(str(run.clusters), "clusters")]
    if score is not None:
        shown.append(Key(score.text(run.metrics[f"test_{score.name}"]), f"test {score.words}"))
        shown.append(Key(score.text(run.metrics[f"worst_decile_{score.name}"]), "worst tenth"))
    if "ari" in run.metrics:
        shown.append(Key(f"{run.metrics['ari']:.2f}", "ARI"))
    shown.append(Key(readable_bytes(run.ledger.bytes_down + run.ledger.bytes_up), "sent"))
    return shown


def saving_text(run: Run) -> str:
    """What sending fewer models saved, in a sentence."""
    saved = savings(run)
    if saved is None:
        return "This algorithm does not send all models to everybody, so there is nothing to save on."
    sent, everything = readable_bytes(saved.sent), readable_bytes(saved.everything)
    if saved.share <= 0.005:
        return (
            f"All models went to everybody asked in every round: {sent}. `saving` sends settled clients their own only."
        )
    return (
        f"{sent} went to clients; all models in every round would have been {everything}: {saved.share:.0%} was saved."
    )


def clients(run: Run) -> list[dict[str, Any]]:
    """A row for each client: its cluster, how sure that is, its losses."""
    losses, scores, score = losses_of(run), scores_of(run), score_of(run)
    sure = None if losses is None else margins(losses)
    rows: list[dict[str, Any]] = []
    for place, (name, label) in enumerate(run.labels.items()):
        row: dict[str, Any] = {"client": name, "cluster": label}
        if scores is not None and score is not None:
            row[f"test_{score.name}"] = float(scores[place])
        if sure is not None and losses is not None:
            row["margin"] = float(sure[place])
            row |= {f"loss_{j}": float(loss) for j, loss in enumerate(losses[place])}
        rows.append(row)
    return rows


def rejected(run: Run) -> list[tuple[str, str, int, str]]:
    """Clients whose replies did not count: who, why, how often, in which rounds."""
    entries = Counter((str(entry["client"]), str(entry["reason"])) for entry in run.rejected)
    rounds: dict[tuple[str, str], list[int]] = {}
    for entry in run.rejected:
        rounds.setdefault((str(entry["client"]), str(entry["reason"])), []).append(int(entry["clock"]))
    return [(*key, count, _span(rounds[key])) for key, count in entries.most_common()]


def _span(clocks: Sequence[int]) -> str:
    return str(clocks[0]) if len(set(clocks)) == 1 else f"{min(clocks)} to {max(clocks)}"


def about(run: Run) -> dict[str, str]:
    """On what the run was made. Where on the disk is nobody else's business: a report is shown to others."""
    environment = {name: value for name, value in run.environment.items() if name != "working_folder"}
    record = {name: value for name, value in run.config.get("record", {}).items() if name != "versions"}
    versions = run.config.get("record", {}).get("versions", {})
    return flat(
        {"seed": run.seed, "seconds": f"{run.seconds:.1f}", "versions": versions, **environment, "record": record}
    )


def commands(runs: Sequence[Run]) -> list[str]:
    """What makes these runs again, and this report."""
    kept = [run.folder for run in runs]
    again = [
        f"corymb run --config {shlex.quote(str(folder / 'config.toml'))}" if folder is not None else _said(run)
        for run, folder in zip(runs, kept, strict=True)
    ]
    folders = [shlex.quote(str(folder)) for folder in kept if folder is not None]
    return [*again, f"corymb report {' '.join(folders)}"] if len(folders) == len(runs) else again


def _said(run: Run) -> str:
    """The command line of a run that was not kept; one that was made in Python says its settings."""
    words = {**run.config, "record": None}
    settings = flat({name: value for name, value in words.items() if name not in ("data", "algorithm", "groups")})
    options = " ".join(f"--{name} {shlex.quote(value)}" for name, value in settings.items() if value not in ("", "()"))
    return f"corymb run {shlex.quote(str(run.config['data']))} {run.config['algorithm']} {options}"


# ---- other formats


def as_markdown(runs: Sequence[Run]) -> bytes:
    """The verdict and the tables."""
    run = runs[0]
    parts = [
        f"# {_cell(own_name(run))} on {_cell(run.config['data'])}",
        " ".join(_cell(sentence) for sentence in verdict(runs)),
        *(f"> {_cell(text)}" for text in warnings_of(run)),
        "## Clusters",
        _table(by_cluster(run)),
        "## Quality" if len(runs) == 1 else "## Quality, beside the other runs",
        _table(beside(runs)),
        "## Metrics",
        _table([{"metric": name, "value": f"{value:.4g}"} for name, value in run.metrics.items()]),
        "## Communication",
        f"{readable_bytes(run.ledger.bytes_down)} down and {readable_bytes(run.ledger.bytes_up)} up in "
        f"{run.ledger.rounds} rounds. {saving_text(run)}",
        "## Rejected clients",
        _table([dict(zip(("client", "reason", "replies", "rounds"), row, strict=True)) for row in rejected(run)])
        or "None.",
        "## To make it again",
        "\n".join(f"    {line}" for line in commands(runs)),
        "## Settings and environment",
        _table([{"name": name, "value": value} for name, value in {**flat(run.config), **about(run)}.items()]),
    ]
    return ("\n\n".join(parts) + "\n").encode()


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    head = f"| {' | '.join(map(_cell, rows[0]))} |\n|{'---|' * len(rows[0])}"
    return "\n".join([head, *(f"| {' | '.join(_cell(value) for value in row.values())} |" for row in rows)])


def _cell(value: Any) -> str:
    """Text that Markdown leaves as it is."""
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{letter}" if letter in r"\`*[]|" else letter for letter in text)


def as_csv(runs: Sequence[Run]) -> bytes:
    """A line for each client of each run."""
    pandas = _pandas()
    parts = [
        pandas.DataFrame([{"run": place, "algorithm": run.config["algorithm"], **row} for row in clients(run)])
        for place, run in enumerate(runs)
    ]
    text: str = pandas.concat(parts, ignore_index=True).to_csv(index=False)
    return text.encode()


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise InvalidInput("A csv report needs pandas: pip install 'corymb[report]'.") from None
    return pandas


def as_png(runs: Sequence[Run]) -> bytes:
    """The main figures in one picture."""
    from corymb.report.png import picture

    return picture(runs)


WRITERS: Mapping[str, Callable[[Sequence[Run]], bytes]] = MappingProxyType(
    {"html": as_html, "md": as_markdown, "csv": as_csv, "png": as_png}
)
