"""The commands that reproduce the runs and the report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corymb.algorithms.catalogue import is_composed
from corymb.data.catalogue import NAMES
from corymb.lazy import is_place
from corymb.report.content import Code, Section
from corymb.report.words import title_of
from corymb.runs.remote.engine import FEDERATION
from corymb.runs.settings import has_name
from corymb.settings import run_command

if TYPE_CHECKING:
    from corymb.runs.run import Run


SAVED = "data.safetensors"
"""The file for data that exist only in Python."""
COMMAND_LINE = ("corymb", "corymb.exe")
"""What the program is called in the commands of runs from the command line."""


def show_commands(runs: Sequence[Run]) -> Code:
    """Shell commands to copy."""
    return Code("commands", "How to reproduce", commands(runs))


def commands(runs: Sequence[Run]) -> list[str]:
    """The commands that reproduce these runs and, if all were saved, this report."""
    kept = [run.folder for run in runs]
    again = [line for run, folder in zip(runs, kept, strict=True) for line in _again(run, folder)]
    folders = [shlex.quote(str(folder)) for folder in kept if folder is not None]
    return [*again, f"corymb report {' '.join(folders)}"] if len(folders) == len(runs) else again


def can_be_named(data: str) -> bool:
    """Whether a command can name the data: files, built-in data, or the nodes of a federation."""
    return data == FEDERATION or has_name(data)


def _again(run: Run, folder: Path | None) -> list[str]:
    """The command that reproduces a run; if one is not enough, a comment before it says what to do in Python first."""
    data = str(run.config["data"])
    if is_composed(run.config["algorithm"]):
        return [f"# {title_of(run)} was put together in Python: run the same script again, with seed={run.seed}."]
    if can_be_named(data):
        again = _in_full(run, data) if folder is None else run_again(run, folder)
        return [*([_if_dealt_otherwise(data)] if _dealt_in_python(run, data) else []), again]
    first = f"# The data ({data}) came from Python. Save them there, with data.save({SAVED!r}), then:"
    if folder is None:
        return [first, _in_full(run, SAVED)]
    return [first, run_again(run, folder, SAVED)]


def _dealt_in_python(run: Run, data: str) -> bool:
    """Whether built-in data came from Python, which keeps their name however they were dealt to clients."""
    program = str(run.environment.get("command", "")).partition(" ")[0]
    return data in NAMES and program not in COMMAND_LINE


def _if_dealt_otherwise(data: str) -> str:
    way = f"data.save({SAVED!r}), and name that file below"
    return f"# This is for {data} as dealt by default. Dealt otherwise in Python (clients=8, ...), save them: {way}."


def run_again(run: Run, folder: Path, data: str | None = None) -> str:
    """The command that reproduces a saved run; user-defined algorithms and models are named on the command line.

    `data` names the data where the run's own name for them does not.
    """
    algorithm = str(run.config["algorithm"])
    stated = data is not None or is_place(algorithm)
    named = f"{shlex.quote(data or str(run.config['data']))} {algorithm} " if stated else ""
    model = f" --model {run.config['model']}" if is_place(str(run.config["model"])) else ""
    return f"corymb run {named}--config {shlex.quote(str(folder / 'config.toml'))}{model}"


def _in_full(run: Run, data: str) -> str:
    """The command that reproduces an unsaved run, with every setting as an option."""
    given = {name: value for name, value in run.config.items() if name not in ("record", "data", "algorithm", "groups")}
    return run_command(str(run.config["algorithm"]), data, given)


SECTION = Section(order=10, show=show_commands)
