"""`corymb report`: a page about a run, to look at and to show."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from corymb.report.html import write_report
from corymb.runs.run import Run
from corymb.settings import InvalidInput


def report(*runs: Path, out: Path | None = None, format: Literal["html", "md", "csv", "png"] | None = None) -> None:
    """Write a report and print where it is.

    Parameters
    ----------
    runs
        Folders of runs. The first is the subject; others, such as global and local baselines, stand beside it.
    out
        The report's file; RUN/report.html if not given.
    format
        html, md (tables), csv (a line for each client) or png (the main figures); by the ending of --out if not given.
    """
    if not runs:
        raise InvalidInput("Say which run: corymb report RUN, such as corymb report runs/digits-ifca-1.")
    print(write_report([Run.load(run) for run in runs], out, format))
