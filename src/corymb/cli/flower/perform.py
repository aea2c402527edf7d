"""Carries out `corymb flower run` after its command line has been parsed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from corymb.algorithms.catalogue import CATALOGUE
from corymb.cli.flower.folder import STATE, STOCK, SUPERLINK, Federation, State, answers, read_federation, state_of
from corymb.cli.flower.processes import alive, remembered
from corymb.cli.flower.run import Output, algorithm_at, make_importable
from corymb.cli.summary import print_result, with_resume_hint
from corymb.core.snapshot import Algorithm
from corymb.lazy import short_name
from corymb.report.html import write_report
from corymb.runs.defaults import configure, name_of
from corymb.runs.fit import Observers, start_run
from corymb.runs.folder.layout import check_free, new_folder
from corymb.runs.plan import other_stages, rounds_in
from corymb.runs.progress import RoundLine
from corymb.runs.remote.engine import FEDERATION
from corymb.runs.remote.engine import federation as federation_of
from corymb.runs.run import Run
from corymb.runs.settings import RunSettings, names
from corymb.settings import from_dict, merged, require, to_dict

LIMIT = "max_seconds"
SECONDS = 10.0
"""Seconds to wait for a SuperLink on another machine."""


def perform(
    named: str | None,
    of_algorithm: Mapping[str, Any],
    settings_given: Mapping[str, Any],
    of_fit: Mapping[str, Any],
    output: Output,
) -> int:
    """Run on the federation of a folder, print the result and write the report."""
    federation, state = read_federation(output.folder), state_of(output.folder)
    require(
        not state.stock.exists(),
        f"This federation was started with --stock, for Flower's own command: FLWR_HOME={STATE}/flower flwr run . "
        f"{STOCK} --stream. For this one, `corymb flower down` and `up` without --stock.",
    )
    up = any(map(alive, remembered(state.processes)))  # one that is up may be restarting its SuperLink
    there = up or answers(federation.address, SECONDS)
    require(there, f"Nothing answers at {federation.address}: `corymb flower up` starts the federation.")
    make_importable(output.folder)
    if output.out is not None:
        check_free(output.out)
    options, own = options_of_file(federation)
    own = merged(own if named in (None, federation.algorithm) else {}, of_algorithm)
    if (named or federation.algorithm) in CATALOGUE and rounds_in(own) is None:
        options = {"until": "converged", **options}  # rounds given by the user are all run
    options = {"nodes": expected_nodes(federation, state), **options, **settings_given}
    settings = run_settings(federation, state, options)
    model = of_fit.get("model", federation.model)
    engine: Any = federation_of(settings, FEDERATION, keeps_memory=False, allow=federation.allow)
    try:
        algorithm = algorithm_for(federation, named, engine, own, model)
        engine.allow_from(algorithm)
        engine.remembers_from(algorithm)
        if (hint := other_stages(algorithm, own.get("rounds"))) and not output.quiet:
            print(f"corymb: {hint}", file=sys.stderr)
        place = output.out or new_folder("runs", f"{federation.name}-{short_name(name_of(algorithm))}")
        limit = of_fit.get(LIMIT, federation.run.get(LIMIT))
        done = _run(algorithm, engine, model, settings, place, limit, quiet=output.quiet)
    finally:
        engine.close()
    code = print_result(done, as_json=output.json)
    if not output.json:
        with suppress(ModuleNotFoundError):  # reports need the extra [report]
            print(write_report([done], place / "report.html", None))
    return code


def _run(
    algorithm: Algorithm,
    engine: Any,
    model: str | None,
    settings: RunSettings,
    place: Path,
    limit: float | None,
    *,
    quiet: bool,
) -> Run:
    line = RoundLine.of(algorithm)
    observers = Observers(None if quiet else line)
    try:
        with line, with_resume_hint(place):
            return start_run(
                algorithm,
                engine,
                model,
                settings,
                out=place,
                max_seconds=limit,
                observers=observers,
                data_name=FEDERATION,
            )
    finally:
        with suppress(OSError):  # removes the folder only if it is empty, that is, if the run never started
            place.rmdir()


def run_settings(federation: Federation, state: State, options: Mapping[str, Any]) -> RunSettings:
    """The settings of a run on the federation that is up here."""
    here = {"engine": "flower", "address": federation.address}
    if state.secret.exists():
        here["secret"] = str(state.secret)
    if state.tls:
        here["ca"] = str(state.ca)
    return from_dict(RunSettings, {**here, **options})


def expected_nodes(federation: Federation, state: State) -> int:
    """The number of nodes to wait for: those that `up` started here, or as in federation.toml."""
    return sum(process.name != SUPERLINK for process in remembered(state.processes)) or federation.nodes


def options_of_file(federation: Federation) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the run and the settings of the algorithm in federation.toml."""
    known = names(RunSettings)
    options = {name: value for name, value in federation.run.items() if name in known}
    return options, {name: value for name, value in federation.run.items() if name not in (*known, LIMIT)}


def algorithm_for(
    federation: Federation, named: str | None, engine: Any, own: Mapping[str, Any], model: str | None
) -> Algorithm:
    """The algorithm with its settings: defaults for the data, or as returned by the user's function."""
    name = named or federation.algorithm
    if named is not None or name in CATALOGUE:
        return configure(name, engine, model=model, **own)
    given: Algorithm = algorithm_at(name)
    return from_dict(type(given), merged(to_dict(given), own)) if own else given
