"""`make demo`: IFCA and its baselines on rotated digits with four hidden groups of clients, in under a minute."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from corymb.cli.dataset.show import describe
from corymb.data import digits
from corymb.report.html import write_report
from corymb.runs.defaults import configure
from corymb.runs.fit import fit
from corymb.runs.folder.layout import new_folder
from corymb.runs.progress import RoundLine, readable_bytes
from corymb.runs.run import Run


class DemoRun(NamedTuple):
    """One run of the demo: a row of its table."""

    title: str
    algorithm: str
    settings: dict[str, Any]


ROWS = (
    DemoRun("IFCA, best of 3", "ifca", {"k": 4, "restarts": 3}),
    DemoRun("global (FedAvg)", "fedavg", {}),
    DemoRun("local (alone)", "alone", {}),
    DemoRun("oracle", "oracle", {}),
)


def main(rows: Sequence[DemoRun] = ROWS, *, parent: str | Path = "runs") -> None:
    """Run the demo, print a table and write a report."""
    data = digits()
    describe(data)
    folder, runs = new_folder(parent, "demo"), []
    for row in rows:
        print(row.title, file=sys.stderr)
        algorithm = configure(row.algorithm, data, **row.settings)
        with RoundLine.of(algorithm) as line:
            show_line = line if sys.stderr.isatty() else None
            # The runs are too small to benefit from a second thread.
            run = fit(algorithm, data, threads=1, progress=show_line, evaluate_every=0)
        runs.append(replace(run, folder=run.save(folder / row.algorithm)))
    show(rows, runs)
    print(f"Report (open it in a browser): {write_report(runs, folder / 'report.html')}")


def show(rows: Sequence[DemoRun], runs: Sequence[Run]) -> None:
    """Print the runs side by side."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Rotated digits: 80 clients in four hidden groups", title_justify="left")
    for name in ("", "test accuracy", "worst decile", "ARI", "clusters", "sent", "seconds"):
        table.add_column(name, justify="right" if name else "left", no_wrap=not name)
    for row, run in zip(rows, runs, strict=True):
        metrics = run.metrics
        table.add_row(
            row.title,
            f"{metrics['test_accuracy']:.1%}",
            f"{metrics['worst_decile_accuracy']:.1%}",
            f"{metrics['ari']:.2f}" if "ari" in metrics else "–",
            str(run.clusters),
            readable_bytes(run.ledger.bytes_down + run.ledger.bytes_up),
            f"{run.seconds:.1f}",
        )
    Console().print(table)
    Console().print("For your own data: corymb run FOLDER ifca --k 3. More: corymb --help, README.md", style="dim")


if __name__ == "__main__":
    main()
