"""`corymb resume`: continue a run that was stopped or killed, or extend a finished one."""

# No postponed annotations here: cyclopts reads them.
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from corymb.algorithms.catalogue import CATALOGUE, is_composed
from corymb.cli.request import Request
from corymb.cli.summary import print_result, with_resume_hint
from corymb.lazy import is_place
from corymb.runs.defaults import class_of
from corymb.runs.fit import Observers, resume_run
from corymb.runs.folder.reader import is_finished, read_clients, read_config, read_environment
from corymb.runs.learners import MODELS
from corymb.runs.plan import rounds_in, with_rounds
from corymb.runs.progress import RoundLine
from corymb.runs.run import Run
from corymb.settings import InvalidInput, require


def resume(
    run: Annotated[Path, Parameter(help="The folder of a run that was stopped, interrupted or killed.")],
    *,
    rounds: Annotated[int | None, Parameter(help="Continue to this many rounds, even if the run has finished.")] = None,
    algorithm: Annotated[str | None, Parameter(help="The run's algorithm, if it is user-defined.")] = None,
    model: Annotated[str | None, Parameter(help="The run's model, if it is user-defined.")] = None,
    max_seconds: Annotated[float | None, Parameter(help="Stop again when this time is up.")] = None,
    address: Annotated[str | None, Parameter(help="The federation's address, if it has moved.")] = None,
    keep_going: Annotated[bool, Parameter(help="Continue a run that diverges.")] = False,
    json: Annotated[bool, Parameter(help="Print the result as one JSON object.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], help="Do not show progress.")] = False,
) -> int:
    """Continue a run to its end, or to more rounds; for a finished run, print its result again."""
    if is_finished(run) and rounds is None:
        return print_result(Run.load(run), as_json=json)
    folder = run.resolve()
    config, environment = read_config(folder), read_environment(folder)
    _check_algorithm(str(config.get("algorithm")), algorithm, run)
    require("data" in config, f"{run} does not record its data: resume it in Python with fit(..., resume=...).")
    if address is not None:
        config = {**config, "address": address}
    request = Request.read(config if rounds is None else _longer(config, rounds))
    own = _own_model(str(request.fit_options.model or ""), model, run)
    started_in = Path(str(environment.get("working_folder", ".")))
    with chdir(started_in if started_in.is_dir() else Path()):  # paths of its data and model are relative to it
        data, settings = request.load(read_clients(folder))
        with RoundLine.of(settings) as line, with_resume_hint(folder):
            done = resume_run(
                folder,
                settings,
                data,
                own or request.fit_options.model,
                max_seconds=max_seconds,
                keep_going=keep_going,
                every_round=rounds is not None,
                observers=Observers(None if quiet else line),
            )
    return print_result(replace(done, folder=run), as_json=json)


def _check_algorithm(recorded: str, given: str | None, run: Path) -> None:
    """Require that a user-defined algorithm is named again, and import it from the working folder."""
    if recorded in CATALOGUE:
        require(given in (None, recorded), f"{run} was run with {recorded!r}: leave out --algorithm.")
        return
    require(
        is_place(recorded),
        f"{run} was started in Python with a user-defined algorithm: resume it there with fit(..., resume=...).",
    )
    require(
        given is not None or not is_composed(recorded),
        f"{run} was run with {recorded.rpartition(':')[2]}, which was put together in Python: resume it there with "
        "fit(..., resume=...).",
    )
    require(
        given == recorded,
        f"{run} was run with a user-defined algorithm: a run folder is data and never decides which code runs, so name "
        f"it again: --algorithm {recorded}.",
    )
    class_of(recorded)


def _own_model(recorded: str, given: str | None, run: Path) -> str | None:
    """The user-defined model, which must be named again: a run folder is data and may not name code to run."""
    if recorded in MODELS or not recorded:
        require(given in (None, recorded), f"{run} was run with the model {recorded!r}: leave out --model.")
        return None
    require(
        given == recorded,
        f"{run} was run with a user-defined model: a run folder is data and never decides which code runs, so name it "
        f"again: --model {recorded}.",
    )
    return given


def _longer(config: dict[str, Any], rounds: int) -> dict[str, Any]:
    before = rounds_in(config)
    if before is None:
        raise InvalidInput(f"{config['algorithm']} has no setting for rounds: leave out --rounds.")
    require(rounds >= before, f"--rounds {rounds}: the run already has {before} planned; give at least {before}.")
    return with_rounds(config, rounds)
