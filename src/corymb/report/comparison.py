"""A comparison of two runs, or two groups of runs, as one self-contained HTML page in the layout of a report."""

from __future__ import annotations

import math

from corymb.report.content import Content, Tab, Table, TableRow
from corymb.report.figures.drawing import cluster_name
from corymb.report.html import KeyNumber, render
from corymb.report.scores import Score
from corymb.report.sections import Filled
from corymb.runs.compare import Comparison, Confusion, Delta
from corymb.runs.history import readable
from corymb.runs.progress import readable_bytes

DIFFERENT = "The clusters cannot be compared: the runs have different clients, or cluster examples instead of clients."


def as_page(found: Comparison) -> bytes:
    """The comparison as an HTML page."""
    contents: list[Content] = [_deltas(found)]
    if found.confusion is not None:
        contents.append(_confusion(found.confusion))
    tab = Filled("comparison", Tab("Comparison", order=10), contents)
    return render(
        name="B against A",
        data="",
        verdict=[f"A is {found.names[0]}.", f"B is {found.names[1]}.", *outcome(found), *agreement(found)],
        warnings=[] if found.confusion is not None else [DIFFERENT],
        keys=_keys(found),
        tabs=[tab],
    )


def outcome(found: Comparison) -> list[str]:
    """Which side is better by the main metric, beside the trivial baseline; empty if unknown."""
    by_name = {delta.name: delta for delta in found.deltas}
    test, trivial = by_name.get(f"test_{found.metric}"), by_name.get(f"trivial_{found.metric}")
    if test is None or not math.isfinite(test.difference):
        return []
    score = Score(found.metric, found.lower_is_better)
    seeds = len(found.seeds)
    mean = "mean " if seeds > 1 else ""
    who = f"A and B have the same {mean}" if found.better is None else f"{found.better} has the better {mean}"
    values = f"A {score.text(test.a)}, B {score.text(test.b)}"
    beside = "" if trivial is None or not math.isfinite(trivial.a) else f"; {score.trivial}: {score.text(trivial.a)}"
    return [f"{who}test {score.words}: {values}{beside}.", *_chance(test, seeds)]


def _chance(test: Delta, seeds: int) -> list[str]:
    """How surely the two groups of runs differ, as a sentence; empty without a test."""
    if test.t_test is None or test.wilcoxon is None:
        return []
    tests = f"p = {_p_text(test.t_test)} by the paired t-test, {_p_text(test.wilcoxon)} by Wilcoxon's"
    return [f"Over {seeds} seeds, the difference has {tests.replace('= <', '<')}."]


def agreement(found: Comparison) -> list[str]:
    """How far the clusters of the two sides agree, in sentences; empty if they cannot be compared."""
    if found.confusion is None:
        return []
    seed = f" (seed {found.seeds[0]})" if len(found.ari) > 1 else ""
    same = (
        f"{found.confusion.same:.1%} of clients are in the same cluster after matching; ARI {found.confusion.ari:.3f}"
    )
    over_all = (
        [f"Over all seeds the ARI between A and B is at least {min(found.ari):.3f}."] if len(found.ari) > 1 else []
    )
    return [f"{same}{seed}.", *over_all]


def _keys(found: Comparison) -> list[KeyNumber]:
    words = Score(found.metric, found.lower_is_better).words if found.metric else ""
    tests = [delta for delta in found.deltas if delta.name == f"test_{found.metric}"]
    shown = [KeyNumber(cells(delta, False)[3], f"test {words}, B − A") for delta in tests]
    return [*shown, *([] if found.confusion is None else [KeyNumber(f"{found.confusion.ari:.2f}", "ARI of A and B")])]


def _deltas(found: Comparison) -> Table:
    several = len(found.seeds) > 1
    columns = ["", "A", "B", "B − A", *(("± sd", "p (t)", "p (W)") if several else ())]
    rows: list[TableRow] = [dict(zip(columns, cells(delta, several), strict=True)) for delta in found.deltas]
    tests = "with paired t-test (t) and Wilcoxon test (W)"
    title = f"Means over {len(found.seeds)} seeds, {tests}" if several else "Metrics and costs"
    return Table("differences", title, rows, wide=True)


def _confusion(confusion: Confusion) -> Table:
    rows: list[TableRow] = [
        {"": f"A: {cluster_name(label)}"}
        | {
            f"B: {cluster_name(column)}": str(count) if count else "·"
            for column, count in zip(confusion.columns, counts, strict=True)
        }
        for label, counts in zip(confusion.rows, confusion.counts, strict=True)
    ]
    return Table("clusters", "Clients by cluster, A against B", rows, wide=True)


def cells(delta: Delta, several: bool) -> list[str]:
    """A row of text: the metric's name, A, B, B − A and, for groups of runs, the spread and both p-values."""
    in_bytes = delta.name.startswith("bytes_")
    numbers = [delta.a, delta.b, delta.difference]
    texts = [_bytes(number) if in_bytes else readable(number) for number in numbers]
    texts[2] = texts[2] if delta.difference < 0 or delta.difference == 0 else f"+{texts[2]}"
    if not several:
        return [delta.name, *texts]
    if delta.spread is None:
        return [delta.name, *texts, "–", "–", "–"]
    spread = _bytes(delta.spread) if in_bytes else readable(delta.spread, 3)
    return [delta.name, *texts, spread, *map(_p_text, (delta.t_test, delta.wilcoxon))]


def _p_text(p: float | None) -> str:
    return "–" if p is None else "< 0.0001" if p < 1e-4 else readable(p, 3)


def _bytes(count: float) -> str:
    return f"-{readable_bytes(-count)}" if count < 0 else readable_bytes(count)
