"""The commands that reproduce the runs and the report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corymb.lazy import is_place
from corymb.report.content import Code, Section
from corymb.report.words import flat

if TYPE_CHECKING:
    from corymb.runs.run import Run


def show_commands(runs: Sequence[Run]) -> Code:
    """Shell commands to copy."""
    return Code("commands", "How to reproduce", commands(runs))


def commands(runs: Sequence[Run]) -> list[str]:
    """The commands that reproduce these runs and, if all were saved, this report."""
    kept = [run.folder for run in runs]
    again = [
        run_again(run, folder) if folder is not None else _in_full(run) for run, folder in zip(runs, kept, strict=True)
    ]
    folders = [shlex.quote(str(folder)) for folder in kept if folder is not None]
    return [*again, f"corymb report {' '.join(folders)}"] if len(folders) == len(runs) else again


def run_again(run: Run, folder: Path) -> str:
    """The command that reproduces a saved run; user-defined algorithms and models are named on the command line."""
    data, algorithm = str(run.config["data"]), str(run.config["algorithm"])
    named = f"{shlex.quote(data)} {algorithm} " if is_place(algorithm) else ""
    model = f" --model {run.config['model']}" if is_place(str(run.config["model"])) else ""
    return f"corymb run {named}--config {shlex.quote(str(folder / 'config.toml'))}{model}"


def _in_full(run: Run) -> str:
    """The command that reproduces an unsaved run, with every setting as an option."""
    left_out = ("record", "data", "algorithm", "groups")
    settings = flat({name: value for name, value in run.config.items() if name not in left_out})
    options = " ".join(
        f"--{name} {shlex.quote(value)}" for name, value in settings.items() if value not in ("", "()", "[]")
    )
    return f"corymb run {shlex.quote(str(run.config['data']))} {run.config['algorithm']} {options}"


SECTION = Section(order=10, show=show_commands)
