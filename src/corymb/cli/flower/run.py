"""`corymb flower run`: run the federation's algorithm on its nodes, from its folder, and write the report."""

# No postponed annotations here: cyclopts reads them.
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from corymb.algorithms.catalogue import CATALOGUE
from corymb.cli.flower.folder import SUPERLINK, Federation, State, read_federation, state_of
from corymb.cli.flower.processes import remembered
from corymb.cli.summary import print_result
from corymb.core.snapshot import planned_rounds
from corymb.lazy import short_name
from corymb.report.html import write_report
from corymb.runs.defaults import configure, name_of
from corymb.runs.elsewhere.engine import FEDERATION
from corymb.runs.elsewhere.engine import federation as federation_of
from corymb.runs.fit import Watch, start_run
from corymb.runs.folder.layout import new_folder
from corymb.runs.learners import imported
from corymb.runs.progress import RoundLine
from corymb.runs.settings import RunSettings, names
from corymb.settings import from_dict, require


def run(
    *,
    out: Annotated[
        Path | None, Parameter(help="Save the run in this folder; if not given, in a new one under runs/.")
    ] = None,
    seed: Annotated[int | None, Parameter(help="Seed of everything random.")] = None,
    max_seconds: Annotated[float | None, Parameter(help="About how long rounds and evaluation may take.")] = None,
    json: Annotated[bool, Parameter(help="Print the result as one JSON object.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], help="Do not show progress.")] = False,
    folder: Annotated[Path, Parameter(help="The federation's folder.")] = Path(),
) -> int:
    """Run on the nodes that are up; `corymb resume RUN` goes on with a run that was stopped."""
    federation, state = read_federation(folder), state_of(folder)
    options, own = _options(federation)
    own_seed = {} if seed is None else {"seed": seed}
    settings = run_settings(federation, state, {"nodes": expected_nodes(federation, state), **options, **own_seed})
    engine: Any = federation_of(settings, FEDERATION, keeps_memory=False, allow=federation.allow)
    try:
        algorithm = _algorithm(federation, engine, own)
        engine.remembers_from(algorithm)
        place = out or new_folder("runs", f"{federation.name}-{short_name(name_of(algorithm))}")
        with RoundLine(planned_rounds(algorithm)) as line:
            done = start_run(
                algorithm,
                engine,
                federation.model,
                settings,
                out=place,
                max_seconds=max_seconds,
                watch=Watch(None if quiet else line),
                data_name=FEDERATION,
            )
    finally:
        engine.close()
    code = print_result(done, as_json=json)
    if not json:
        with suppress(ModuleNotFoundError):  # a report is drawn with what the extra [report] installs
            print(write_report([done], place / "report.html", None))
    return code


def run_settings(federation: Federation, state: State, options: dict[str, Any]) -> RunSettings:
    """The settings of a run on the federation as it is up here."""
    here = {"engine": "flower", "address": federation.address}
    if state.secret.exists():
        here["secret"] = str(state.secret)
    if state.tls:
        here["ca"] = str(state.ca)
    return from_dict(RunSettings, {**here, **options})


def expected_nodes(federation: Federation, state: State) -> int:
    """How many nodes make the federation complete: those that `up` started here, or what federation.toml says."""
    return sum(process.name != SUPERLINK for process in remembered(state.processes)) or federation.nodes


def _options(federation: Federation) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the run, and settings of an algorithm that is given by name."""
    known = names(RunSettings)
    options = {name: value for name, value in federation.run.items() if name in known}
    return options, {name: value for name, value in federation.run.items() if name not in known}


def _algorithm(federation: Federation, engine: Any, own: dict[str, Any]) -> Any:
    if federation.algorithm in CATALOGUE:
        return configure(federation.algorithm, engine, **own)
    require(
        not own, f"[run] has {', '.join(own)}: the settings of an algorithm of your own are in {federation.algorithm}."
    )
    made = imported(federation.algorithm, "the algorithm")
    return made() if callable(made) and not hasattr(made, "run") else made
