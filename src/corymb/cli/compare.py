"""`corymb compare`: two runs, or two groups of runs, side by side."""

from __future__ import annotations

import json as json_text
from pathlib import Path

from corymb.report.figures.drawing import cluster_name
from corymb.runs.compare import Comparison, Confusion, Delta, compare, side
from corymb.runs.progress import readable_bytes


def compare_runs(a: Path, b: Path, *, json: bool = False) -> None:
    """Say what is different between two runs, or two groups of runs.

    Parameters
    ----------
    a
        The folder of a run, or one with a run folder for each seed.
    b
        The same, of what it is compared with.
    json
        Print one JSON object.
    """
    found = compare(side(a), side(b))
    if json:
        print(json_text.dumps(found.to_dict(), allow_nan=False))
    else:
        show(found)


def show(found: Comparison) -> None:
    """Print a comparison as tables."""
    from rich.console import Console

    console = Console()
    console.print(f"A: {found.names[0]}\nB: {found.names[1]}", markup=False, highlight=False)
    console.print(_deltas(found))
    if found.confusion is None:
        console.print("The runs had different clients: their clusters cannot be compared.")
        return
    console.print(_confusion(found.confusion))
    if len(found.ari) > 1:
        least = f"{min(found.ari):.3f} at least"
        console.print(f"Above: seed {found.seeds[0]}. Over all seeds the assignments agree with ARI {least}.")


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
        table.add_row(*_cells(delta, several))
    return table


def _cells(delta: Delta, several: bool) -> list[str]:
    in_bytes = delta.name.startswith("bytes_")
    numbers = [delta.a, delta.b, delta.difference]
    cells = [_bytes(number) if in_bytes else f"{number:.4g}" for number in numbers]
    cells[2] = cells[2] if delta.difference < 0 or delta.difference == 0 else f"+{cells[2]}"
    if not several:
        return [delta.name, *cells]
    if delta.spread is None:
        return [delta.name, *cells, "–", "–", "–"]
    spread = _bytes(delta.spread) if in_bytes else f"{delta.spread:.3g}"
    return [delta.name, *cells, spread, f"{delta.t_test:.3g}", f"{delta.wilcoxon:.3g}"]


def _bytes(count: float) -> str:
    return f"-{readable_bytes(-count)}" if count < 0 else readable_bytes(count)


def _confusion(confusion: Confusion) -> object:
    from rich.table import Table

    caption = f"{confusion.same:.1%} of clients are in the same cluster after matching; ARI {confusion.ari:.3f}"
    table = Table(title="Clients, A against B", caption=caption, title_justify="left", caption_justify="left")
    table.add_column("")
    for label in confusion.columns:
        table.add_column(f"B: {cluster_name(label)}", justify="right")
    for label, counts in zip(confusion.rows, confusion.counts, strict=True):
        table.add_row(f"A: {cluster_name(label)}", *(str(count) if count else "·" for count in counts))
    return table
