"""`corymb report`: write a report on a run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from corymb.settings import InvalidInput


def report(*runs: Path, out: Path | None = None, format: Literal["html", "md", "csv", "png"] | None = None) -> None:
    """Write a report and print its path.

    Parameters
    ----------
    runs
        Folders of runs. The report is on the first; the others, such as baselines, are compared with it.
    out
        The file to write; by default RUN/report.html.
    format
        html, md (tables), csv (a row per client) or png (the main figures); by default from the extension of --out.
    """
    if not runs:
        raise InvalidInput("Give the folder of a run: corymb report RUN, such as corymb report runs/digits-ifca-1.")
    from corymb.report.html import write_report  # these need torch, which its help does not
    from corymb.runs.run import Run

    print(write_report([Run.load(run) for run in runs], out, format))
