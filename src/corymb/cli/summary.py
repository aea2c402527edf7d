"""Print a run: as one JSON object, or as tables of clusters and metrics followed by suggested next steps."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corymb.algorithms.catalogue import CATALOGUE, is_composed
from corymb.algorithms.parts.repair import unwatched
from corymb.cli import Exit
from corymb.lazy import is_place
from corymb.report.scores import cautions, other_metrics, score_rows
from corymb.report.sections.details.commands import can_be_named, run_again
from corymb.report.words import OF_EXAMPLES, evidence_of, sentence, unused_models
from corymb.runs.defaults import class_of
from corymb.runs.folder.layout import CHECKPOINTS
from corymb.runs.history import BUDGET, CONVERGED, counted, divergence, readable, unfinished
from corymb.runs.learners import OWN, default_model
from corymb.runs.missed import not_scored, often_rejected
from corymb.runs.plan import rounds_in
from corymb.runs.progress import readable_bytes
from corymb.runs.run import Run
from corymb.runs.settings import DataOptions, RunSettings, names
from corymb.settings import run_command, to_dict

if TYPE_CHECKING:
    from rich.table import Table

NAMES_SHOWN = 3
OF_THIS_RUN = ("device", "threads", "memory", "cluster_folder", "checkpoint_every", "until")
"""Options left out of a suggested command: they depend on this machine, or follow from `rounds`."""
OF_ALGORITHM = ("k", "rounds", "participants")
"""Suggested settings that belong to the algorithm; the others are options of the run."""


def print_result(run: Run, *, as_json: bool) -> int:
    """Print a run that has finished or was stopped; returns the exit code."""
    if run.stopped == CONVERGED:
        why = f"the training loss stopped falling and no client changes cluster{_continue_hint(run)}"
        print(f"corymb: converged after {counted(len(run.history), 'round')}: {why}", file=sys.stderr)
    elif run.stopped == BUDGET:
        spent = f"ε = {run.metrics['epsilon']:.3g} at δ = {run.metrics['delta']:g}"
        print(f"corymb: privacy budget exhausted after {counted(len(run.history), 'round')}: {spent}", file=sys.stderr)
    elif not run.stopped and (falls := unfinished(run.history, run.config)):
        print(f"corymb: ended after {counted(len(run.history), 'round')}: {falls}", file=sys.stderr)
    elif run.stopped:
        rounds = counted(len(run.history), "round")
        print(f"corymb: stopped ({run.stopped}) after {rounds}{_next_step(run)}", file=sys.stderr)
    if as_json:
        print(json.dumps({**run.to_dict(), "folder": str(run.folder)}, allow_nan=False))
    else:
        show_run(run, run.folder)
    return {"interrupted": Exit.INTERRUPTED, "diverged": Exit.DIVERGED}.get(run.stopped, Exit.OK)


@contextmanager
def with_resume_hint(folder: Path) -> Iterator[None]:
    """On Ctrl-C outside a round, such as in the last evaluation, tell how to resume the run if it has a checkpoint."""
    try:
        yield
    except KeyboardInterrupt:
        if not any((folder / CHECKPOINTS).glob("*")):
            raise
        how = f"corymb resume {shlex.quote(str(folder))}"
        raise KeyboardInterrupt(f"Stopped; the last round was saved. To continue: {how}") from None


def _continue_hint(run: Run) -> str:
    """How to run all planned rounds of a run that converged in fewer."""
    rounds = rounds_in(run.config)
    if rounds is None or run.folder is None:
        return ""
    return f"; {_resume(run)} --rounds {rounds} continues to round {rounds}"


def _resume(run: Run) -> str:
    own = {"algorithm": is_place(str(run.config["algorithm"])), "model": ":" in str(run.config["model"])}
    again = "".join(f" --{name} {run.config[name]}" for name, named in own.items() if named)
    return f"corymb resume {shlex.quote(str(run.folder))}{again}"


def _next_step(run: Run) -> str:
    if run.stopped == "diverged":
        return f": {divergence(run.history, run.config)}. --keep-going continues regardless."
    return f"; to continue: {_resume(run)}"


def show_run(run: Run, folder: Path | None) -> None:
    """Print a run to stdout as tables and sentences."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    clusters = Table(title=f"{run.config['algorithm']} on {escape(str(run.config['data']))}", title_justify="left")
    rows = _clusters(run)
    for name in rows[0]:
        clusters.add_column(name, justify="left" if name == "such as" else "right")
    for row in rows:
        clusters.add_row(*map(escape, row.values()))
    metrics = Table(show_header=False)
    for name, value in other_metrics(run).items():
        metrics.add_row(name, readable(value))
    console.print(clusters, *_scores(run), metrics, sep="\n")
    ledger = run.ledger
    sent = f"{readable_bytes(ledger.bytes_down)} down, {readable_bytes(ledger.bytes_up)} up"
    console.print(
        f"{counted(len(run.history), 'round')} in {run.seconds:.1f} s; {sent}; {len(run.rejected)} replies rejected."
    )
    for line in often_rejected(run.rejected, len(run.history)):
        console.print(escape(line), style="bold", highlight=False, soft_wrap=True)
    if evidence := evidence_of(run):
        console.print(escape(evidence), highlight=False, soft_wrap=True)
    if grew := divergence(run.history, run.config):
        console.print(f"The run diverged: {escape(grew)}.", style="bold", highlight=False, soft_wrap=True)
    if run.not_scored:
        console.print(escape(not_scored(run.not_scored, len(run.names))), style="bold", highlight=False, soft_wrap=True)
    for line in cautions(run):
        console.print(escape(line), style="bold", highlight=False, soft_wrap=True)
    for line in advice(run, folder):
        console.print(escape(line), style="dim", highlight=False, soft_wrap=True)


def _clusters(run: Run) -> list[dict[str, str]]:
    """A row for each cluster with its number of clients, or of examples if those are clustered."""
    if run.points:
        total = max(sum(run.points), 1)
        return [
            {"cluster": str(label), "examples": f"{size:,}", "share": f"{size / total:.1%}"}
            for label, size in run.sizes.items()
        ]
    return [
        {"cluster": "none" if label < 0 else str(label), "clients": str(size), "such as": members(run, label)}
        for label, size in run.sizes.items()
    ]


def _scores(run: Run) -> list[Table]:
    """The test scores as a table, the main metric first; empty if there were no test examples."""
    from rich.table import Table

    rows = score_rows(run)
    if not rows:
        return []
    table = Table()
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "test score" else "right")
    for row in rows:
        table.add_row(*row.values())
    return [table]


def members(run: Run, label: int) -> str:
    """The first few clients of a cluster."""
    names = [name for name, cluster in run.labels.items() if cluster == label]
    return ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")


def _model_option(run: Run) -> dict[str, str]:
    """The `model` option, if another run on the same data might choose a different model by default."""
    if run.points:  # methods that cluster examples have their own models
        return {}
    model = run.config["model"]
    usual = set() if run.schema.codes else {default_model(run.schema, examples) for examples in (0, sys.maxsize)}
    return {} if usual == {model} or model == OWN else {"model": model}


def _settings_to_repeat(run: Run, other: str) -> dict[str, Any]:
    """The run's options that also apply to a run of another algorithm, so that the two are comparable."""
    usual = to_dict(RunSettings())
    of_run = {name: run.config[name] for name in usual if run.config.get(name, usual[name]) != usual[name]}
    kept = {name: value for name, value in of_run.items() if name not in OF_THIS_RUN}
    rounds = (
        rounds_in(run.config) if run.config.get("until") == "rounds" else None
    )  # otherwise the user did not set them
    own = {"rounds": rounds, "participants": _participants(run)}
    own = {name: value for name, value in own.items() if value is not None and name in names(class_of(other))}
    return {**own, **DataOptions.recorded(run.config).given(), **_model_option(run), **kept}


def _participants(run: Run) -> Any:
    """The run's clients per round, unless they are a number in each cluster, as in SR-FCA."""
    given = run.config.get("participants")
    of_all = isinstance(given, float) or bool(run.history and run.history[-1]["asked"] == given)
    return given if of_all else None


def _command_for(run: Run, algorithm: str, own: dict[str, Any]) -> str:
    """The command that runs another algorithm on the same data, or Python code if the data exist only in Python."""
    data, options = str(run.config["data"]), {**own, **_settings_to_repeat(run, algorithm)}
    if can_be_named(data):
        return run_command(algorithm, data, options)
    of_algorithm = {name: options.pop(name) for name in OF_ALGORITHM if name in options}
    first, rest = ("".join(f", {name}={value!r}" for name, value in some.items()) for some in (of_algorithm, options))
    return f"corymb.fit(corymb.configure({algorithm!r}, data{first}), data{rest})"


def advice(run: Run, folder: Path | None) -> list[str]:
    """Suggested next steps."""
    entry, data = CATALOGUE.get(run.config["algorithm"]), str(run.config["data"])
    lines = []
    if folder is None:
        lines.append("--out DIR saves the run; --json prints the whole result as JSON.")
    else:
        lines.append(f"Saved in {folder}. In Python: corymb.Run.load({str(folder)!r})")
        if can_be_named(data) and not is_composed(run.config["algorithm"]):
            lines.append(f"To run it again: {run_again(run, folder)}")
    if run.points:
        other = next(name for name in OF_EXAMPLES if name != run.config["algorithm"])
        lines.append(f"Compare with another method: {_command_for(run, other, {'k': len(run.points)})}")
    elif entry is None or entry.role != "global":
        baseline = next(name for name, other in CATALOGUE.items() if other.role == "global")
        lines.append(f"Compare with one global model: {_command_for(run, baseline, {})}")
    unused, few = unused_models(run), unwatched(run.config, len(run.names))
    one_start = run.config.get("restarts") == 1 and run.config.get("k") != "auto" and not run.config.get("privacy")
    lines += [unused] if unused else []
    lines += [sentence(few)] if few else []
    if one_start and not unused and not few:
        lines.append("A bad initialisation can lose a cluster: --restarts 5 keeps the best of five.")
    return lines
