"""`corymb advise`: should I cluster at all?"""

# No postponed annotations here: cyclopts reads those of functions made with other classes.
import json as json_text
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from corymb.cli import Exit
from corymb.cli.options import given, options_of
from corymb.cli.request import Request, with_file
from corymb.cli.run import DATA, NOTHING_FOR_FIT, NOTHING_ON_DATA, OUTPUT, RUN, DataName, OfData, OfFit, seeds_in
from corymb.local import Descent
from corymb.report.advice import advice_rows, write_advice
from corymb.runs.advising.advice import Advice
from corymb.runs.advising.advise import NothingToJudge, advise
from corymb.runs.advising.trials import ORDER
from corymb.runs.folder.layout import check_free
from corymb.runs.settings import RunSettings, names
from corymb.settings import InvalidInput, did_you_mean

USAGE = "Give the data: corymb advise DATA, such as corymb advise digits."
Settings: Any = options_of(RunSettings, leave_out=("evaluate_every", "checkpoint_every"))


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Settings shared by all algorithms that are tried; each takes those that it has."""

    rounds: int | None = None
    """Maximum number of rounds after the clusters are found; by default chosen for the data."""
    participants: int | float | None = None
    """Clients per round: a number, a fraction, or all of them."""
    local: Descent | None = None
    """How a client trains a model in a round; by default chosen for the data."""


OfAll: Any = options_of(Shared)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where settings come from and where results go."""

    config: Path | None = None
    """A TOML file of settings and options; the command line overrides it."""
    seeds: str | None = None
    """Repeat all trials with a different split per seed: `0-2`, or `0,3,7`. By default only --seed."""
    out: Path | None = None
    """Write advice.html and advice.json into this folder, which must be new or empty."""
    json: bool = False
    """Print the result as one JSON object."""
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"])] = False
    """Do not show progress."""


ON_PAGE = ("share", "rounds", "seconds")
"""Columns shown only on the page, for lack of room in the terminal."""
NO_SETTINGS, NOTHING_FOR_ALL, TO_STDOUT = Settings(), OfAll(), Output()


def advise_on(
    data: DataName = None,
    *,
    of_all: Annotated[OfAll, Parameter(name="*", group=Group("Settings of all options tried", sort_key=1))] = (
        NOTHING_FOR_ALL
    ),
    of_fit: Annotated[OfFit, Parameter(name="*", group=RUN)] = NOTHING_FOR_FIT,
    settings: Annotated[Settings, Parameter(name="*", group=RUN)] = NO_SETTINGS,
    of_data: Annotated[OfData, Parameter(name="*", group=DATA)] = NOTHING_ON_DATA,
    output: Annotated[Output, Parameter(name="*", group=OUTPUT)] = TO_STDOUT,
) -> int:
    """Compare one model, clusters and local training on held-out training examples, and recommend one."""
    options = {**given(settings), **given(of_fit), **given(of_data), **given(of_all)}
    values = {**options, **({} if data is None else {"data": data})}
    request = _request(with_file(output.config, values))
    folder = None if output.out is None else check_free(output.out)
    try:
        advice = advise(
            request.data_options.load(request.data, request.settings.seed),
            request.fit_options.model,
            seeds=None if output.seeds is None else seeds_in(output.seeds),
            given=request.algorithm_settings,
            progress=not output.quiet,
            max_seconds=request.fit_options.max_seconds,
            data_name=request.data,
            data_options=request.data_options,
            settings=request.settings,
        )
    except NothingToJudge as problem:
        print(f"corymb: {problem}", file=sys.stderr)
        return Exit.DIVERGED
    if folder is not None:
        write_advice(advice, folder)
    if output.json:
        print(json_text.dumps(advice.to_dict(), allow_nan=False))
    else:
        show(advice, folder)
    return Exit.OK


def _request(values: Mapping[str, Any]) -> Request:
    """Parse the request; advise chooses the algorithms itself."""
    if values.get("data") is None:
        raise InvalidInput(USAGE)
    request = Request.read({**values, "algorithm": ORDER[0]})
    for name in request.algorithm_settings:
        if name not in names(Shared):
            raise InvalidInput(f"advise has no setting {name!r}. {did_you_mean(name, names(Shared))}")
    return request


def show(advice: Advice, folder: Path | None) -> None:
    """Print the verdict, a table of the options tried, and the command to run next."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for sentence in advice.sentences:
        console.print(sentence, markup=False, highlight=False, style="bold" if sentence is advice.sentences[0] else "")
    rows = [{name: text for name, text in row.items() if name not in ON_PAGE} for row in advice_rows(advice)]
    table = Table(title=f"On {advice.held_out} held-out examples of {advice.clients} clients", title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right" if name != "option" else "left")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    for line in advice.cautions:
        console.print(line, markup=False, highlight=False)
    if folder is not None:
        console.print(f"Written to {folder}.", markup=False, highlight=False, style="dim")
    console.print(f"Next: {advice.command}", markup=False, highlight=False, soft_wrap=True)
