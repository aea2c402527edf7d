"""Advice as one self-contained HTML page: the verdict, the gain of each option, and how the clusters were found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corymb.algorithms.catalogue import CATALOGUE
from corymb.clustering.paired import Difference
from corymb.report.content import Code, Content, Figure, Lead, Tab, Table, TableRow
from corymb.report.figures.drawing import PALETTE, cluster_name, colour, upright
from corymb.report.html import KeyNumber, put, render
from corymb.report.scores import Score
from corymb.report.sections import Filled
from corymb.runs.advising.advice import Advice, Candidate
from corymb.runs.advising.trials import ALONE
from corymb.runs.advising.verdict import MAX_P, MIN_GAIN
from corymb.runs.advising.words import p_words
from corymb.runs.history import counted, readable
from corymb.runs.progress import readable_bytes
from corymb.settings import expanded

VERDICTS = {"alone": "Local training", "one-model": "One model", "clusters": "Clusters"}


def write_advice(advice: Advice, folder: str | Path) -> Path:
    """Write `advice.html` and `advice.json` into a folder; returns the path of the page."""
    place = expanded(folder) / "advice.html"
    put(place, as_page(advice))
    put(place.with_suffix(".json"), json.dumps(advice.to_dict(), indent=1, allow_nan=False).encode())
    return place


def as_page(advice: Advice) -> bytes:
    """The advice as an HTML page."""
    rows: list[TableRow] = list(advice_rows(advice))
    contents: list[Content] = [
        *([_gains(advice)] if any(candidate.gain for candidate in advice.candidates.values()) else []),
        Table("ways", "Options tried", rows, style="names", wide=True),
        Code("next", "Next", [advice.command]),
        Table("how", "How this was decided", _how(advice), style="names", wide=True, prose=("how",)),
    ]
    tabs = [Filled("advice", Tab("Advice", order=10), contents)]
    if advice.clustering:
        tabs.append(Filled("clusters", Tab("Clusters", order=20), _clusters(advice.clustering)))
    return render(
        name="Should I cluster at all?",
        data=advice.data,
        verdict=advice.sentences,
        warnings=advice.cautions,
        keys=_keys(advice),
        tabs=tabs,
    )


def title_of(candidate: Candidate) -> str:
    """The name of an option in tables and figures."""
    if candidate.name == ALONE:
        return "local training"
    if candidate.clusters < 2:
        return "one model" if candidate.name == "fedavg" else f"{CATALOGUE[candidate.name].title}: one cluster"
    return f"{CATALOGUE[candidate.name].title}: {candidate.clusters} clusters"


def advice_rows(advice: Advice) -> list[dict[str, str]]:
    """A row for each option tried, the simplest first."""
    score, judge = (Score(name, lower_is_better=False) for name in (advice.score_name, advice.judge.name))
    rows = []
    for candidate in advice.candidates.values():
        row = {"option": title_of(candidate), "loss": readable(candidate.loss, 3)}
        row[score.words] = score.text(candidate.score)
        if advice.judge.name not in ("loss", advice.score_name):
            row[judge.words] = advice.text(candidate.value)
        columns = _gain_columns(advice, candidate.gain if candidate.is_another else None)
        rows.append({**row, **columns, "rounds": str(candidate.rounds), "seconds": f"{candidate.seconds:.0f}"})
    return rows


def _gain_columns(advice: Advice, gain: Difference | None) -> dict[str, str]:
    if gain is None:
        return {"gain": "–", "share": "–", "clients that gain": "–", "p": "–"}
    return {
        "gain": f"{_signed(advice, gain.mean)} ± {advice.text(gain.error, 2)}",
        "share": _share(gain.size),
        "clients that gain": f"{round(gain.worse * gain.clients)} of {gain.clients}",
        "p": p_words(gain.p).removeprefix("p ").removeprefix("= "),
    }


def _signed(advice: Advice, value: float) -> str:
    return f"{'−' if value < 0 else '+'}{advice.text(abs(value))}"


def _share(size: float) -> str:
    return f"{size:+.0%}".replace("-", "−")


def _keys(advice: Advice) -> list[KeyNumber]:
    chosen = advice.candidates[advice.algorithm]
    models = [KeyNumber(str(advice.clusters), "clusters")] if advice.verdict == "clusters" else []
    shown = [KeyNumber(VERDICTS[advice.verdict], "verdict"), *models]
    shown.append(KeyNumber(advice.text(chosen.value), advice.judge_words))
    if chosen.gain is not None and chosen.is_another:
        shown.append(KeyNumber(_share(chosen.gain.size), "gain"))
        shown.append(KeyNumber(f"{chosen.gain.worse:.0%}", "of clients gain"))
    return [*shown, KeyNumber(str(advice.clients), "clients")]


def _gains(advice: Advice) -> Figure:
    """Each option's gain over the simplest one, with its standard error and the share of clients that gain."""
    shown = [c for c in advice.candidates.values() if c.gain is not None and c.is_another]
    names = [title_of(candidate) for candidate in shown]
    gains = [candidate.gain for candidate in shown if candidate.gain is not None]
    columns = [f"{gain.worse:.0%} of clients gain" for gain in gains]
    return _bars(
        "gains",
        f"Gain in {advice.judge_words} over {title_of(advice.candidates[advice.base])}",
        "Right of the line is better. Bars: mean over clients. Whiskers: ± one standard error.",
        names,
        [(gain.mean, gain.error) for gain in gains],
        columns,
        [PALETTE[place % len(PALETTE)] for place in range(len(names))],
    )


def _bars(
    name: str,
    title: str,
    caption: str,
    names: list[str],
    gains: list[tuple[float, float]],
    columns: list[str],
    tints: list[str],
) -> Figure:
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "y": [f"{one}<br>{what}" for one, what in zip(names, columns, strict=True)],
        "x": [mean for mean, _ in gains],
        "error_x": {"type": "data", "array": [error for _, error in gains], "color": "$ink", "thickness": 1.5},
        "marker": {"color": tints, "opacity": 0.75},
        "width": 0.5,
        "hovertemplate": "%{y}: %{x:.3g} ± %{error_x.array:.2g}<extra></extra>",
    }
    layout = {
        "height": 110 + 56 * max(1, len(names)),
        "xaxis": {"title": {"text": "gain"}, "zeroline": False},
        "yaxis": {"autorange": "reversed", "showgrid": False, "automargin": True},
        "margin": {"l": 84, "r": 20},
        "shapes": [upright(0)],
    }
    return Figure(name, title, caption, [trace], layout, wide=True)


def _how(advice: Advice) -> list[TableRow]:
    base = title_of(advice.candidates[advice.base])
    facts = {
        "judged by": f"{advice.judge_words} on {advice.held_out} held-out examples of {advice.clients} clients",
        "rule": f"{base}, unless another option is better by more than {MIN_GAIN:.0%} with p < {MAX_P:g}",
        "test": "paired over clients, one-sided; p-values are nominal",
        "seeds": ", ".join(map(str, advice.seeds)),
        "sent": readable_bytes(sum(candidate.bytes_sent for candidate in advice.candidates.values())),
        **{f"left out: {name}": why for name, why in advice.left_out.items()},
    }
    return [{"what": name, "how": value} for name, value in facts.items()]


def _clusters(notes: Mapping[str, Any]) -> list[Content]:
    """The results of the tests made while searching for clusters."""
    contents: list[Content] = [Lead("evidence", str(notes["evidence"]))]
    gains = list(zip(notes["gain_by_cluster"], notes["gain_error_by_cluster"], strict=True))
    sizes = notes["clients_by_cluster"]
    if len(gains) > 1:
        contents.append(
            _bars(
                "by-cluster",
                "Gain over one model by cluster",
                "Reduction of held-out loss, measured during the search for clusters. Whiskers: ± one standard error.",
                [cluster_name(place) for place in range(len(gains))],
                gains,
                [counted(size, "client") for size in sizes],
                [colour(place) for place in range(len(gains))],
            )
        )
    tested = {"nearest_pair": "closest pair kept apart", "doubtful_pair": "most doubtful pair merged"}
    rows: list[TableRow] = [
        {
            "pair": name,
            "extra loss of a shared model": f"{pair['mean']:.3g} ± {pair['error']:.2g}".replace("-", "−"),
            "relative to the loss": _share(pair["size"]),
            "clients": str(int(pair["clients"])),
            "p": p_words(pair["p"]).removeprefix("p ").removeprefix("= "),
        }
        for note, name in tested.items()
        if (pair := notes.get(note))
    ]
    if rows:
        contents.append(Table("pairs", "Tested pairs of clusters", rows, style="names", wide=True))
    return contents
