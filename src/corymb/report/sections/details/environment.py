"""The seed, the package versions and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corymb.report.content import Section, Table
from corymb.report.words import flat

if TYPE_CHECKING:
    from corymb.runs.run import Run


def environment_table(runs: Sequence[Run]) -> Table:
    """A row for each fact about the run's environment."""
    rows = [{"name": name, "value": value} for name, value in about(runs[0]).items()]
    return Table("environment", "Seed, versions, machine", rows, style="facts", prose=("value",))


def about(run: Run) -> dict[str, str]:
    """The run's environment without its working folder, since reports are shared with others."""
    machine = {name: value for name, value in run.environment.items() if name != "working_folder"}
    record = {name: value for name, value in run.config.get("record", {}).items() if name != "versions"}
    versions = run.config.get("record", {}).get("versions", {})
    return flat({"seed": run.seed, "seconds": f"{run.seconds:.1f}", "versions": versions, **machine, "record": record})


SECTION = Section(order=30, show=environment_table)
