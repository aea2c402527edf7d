"""`corymb compare`: compare two runs, or two groups of runs."""

from __future__ import annotations

import json as json_text
from pathlib import Path

from corymb.report.comparison import DIFFERENT, as_page, cells, outcome
from corymb.report.figures.drawing import cluster_name
from corymb.report.html import put
from corymb.runs.compare import Comparison, Confusion, Side, compare, group
from corymb.runs.folder.layout import CONFIG
from corymb.runs.run import Run
from corymb.settings import expanded, require


def compare_runs(a: Path, b: Path, *, metric: str | None = None, out: Path | None = None, json: bool = False) -> None:
    """Show the differences between two runs, or two groups of runs.

    Parameters
    ----------
    a
        The folder of a run, or a folder of runs that differ in their seed.
    b
        A second such folder, to compare with the first.
    metric
        The metric to compare by, such as auc; by default that of A.
    out
        Write an HTML page to this file and print its path.
    json
        Print the comparison as one JSON object.
    """
    if out is not None:
        kind = out.suffix.lower()
        require(kind in (".html", ".htm"), f"{out}: a comparison is an HTML page; use the extension .html.")
    found = compare(read_side(a), read_side(b), metric)
    if out is not None:
        put(expanded(out), as_page(found))
    if json:
        print(json_text.dumps(found.to_dict(), allow_nan=False))
    elif out is not None:
        print(out)
    else:
        show(found)


def read_side(folder: str | Path) -> Side:
    """Load the run in a folder, or the runs in its subfolders."""
    place = expanded(folder)
    if (place / CONFIG).is_file():
        return group(str(folder), [Run.load(place)])
    within = sorted(path.parent for path in place.glob(f"*/{CONFIG}"))
    require(bool(within), f"{place} is not a run and contains none: give the folder of a run, or a folder of runs.")
    return group(str(folder), [Run.load(path) for path in within])


def show(found: Comparison) -> None:
    """Print a comparison as tables."""
    from rich.console import Console

    console = Console()
    console.print(f"A: {found.names[0]}\nB: {found.names[1]}", markup=False, highlight=False)
    console.print(_deltas(found))
    for sentence in outcome(found):
        console.print(sentence, highlight=False)
    if found.confusion is None:
        console.print(DIFFERENT)
        return
    console.print(_confusion(found.confusion))
    if len(found.ari) > 1:
        least = f"at least {min(found.ari):.3f}"
        console.print(f"This is for seed {found.seeds[0]}. Over all seeds, the ARI between A and B is {least}.")


def _deltas(found: Comparison) -> object:
    from rich.table import Table

    several = len(found.seeds) > 1
    title = f"Means over {len(found.seeds)} seeds, paired" if several else None
    caption = "p: paired t-test, Wilcoxon signed-rank test" if several else None
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("")
    for name in ("A", "B", "B − A", *(("± sd", "p (t)", "p (W)") if several else ())):
        table.add_column(name, justify="right")
    for delta in found.deltas:
        table.add_row(*cells(delta, several))
    return table


def _confusion(confusion: Confusion) -> object:
    from rich.table import Table

    caption = f"{confusion.same:.1%} of clients are in the same cluster after matching; ARI {confusion.ari:.3f}"
    table = Table(
        title="Clients by cluster, A against B", caption=caption, title_justify="left", caption_justify="left"
    )
    table.add_column("")
    for label in confusion.columns:
        table.add_column(f"B: {cluster_name(label)}", justify="right")
    for label, counts in zip(confusion.rows, confusion.counts, strict=True):
        table.add_row(f"A: {cluster_name(label)}", *(str(count) if count else "·" for count in counts))
    return table
