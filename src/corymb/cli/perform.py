"""Carries out `corymb run` once its command line is parsed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from corymb.cli import Exit
from corymb.cli.request import Request, with_file
from corymb.cli.run import Output, seeds_in
from corymb.cli.summary import print_result, with_resume_hint
from corymb.lazy import short_name
from corymb.runs.fit import Observers, start_run
from corymb.runs.folder.layout import check_free, new_folder
from corymb.runs.plan import other_stages
from corymb.runs.progress import RoundLine
from corymb.runs.run import Run
from corymb.runs.settings import DataOptions, names
from corymb.settings import require


def perform(given_values: Mapping[str, Any], output: Output) -> int:
    """Run the algorithm once, or once per seed, and print the result; returns the exit code."""
    values = with_file(output.config, given_values)
    if output.seeds is not None:
        require("seed" not in given_values, "--seeds gives the seed of every run: leave out --seed.")
        return _run_seeds(values, output)
    request = Request.read(values)
    if output.out is not None:
        check_free(output.out)
    data, algorithm = request.load()
    folder = output.out or new_folder("runs", f"{Path(request.data).stem or 'data'}-{short_name(request.algorithm)}")
    if (note := other_stages(algorithm, values.get("rounds"))) and not output.quiet:
        print(f"corymb: {note}", file=sys.stderr)
    line = RoundLine.of(algorithm)
    try:
        with line, with_resume_hint(folder):
            run = start_run(
                algorithm,
                data,
                request.fit_options.model,
                request.settings,
                out=folder,
                max_seconds=request.fit_options.max_seconds,
                observers=Observers(None if output.quiet else line),
                data_name=request.data,
                data_options=request.data_options,
            )
    finally:
        with suppress(OSError):  # removes the folder only if it is empty: the run never started
            folder.rmdir()
    if _on_other_data(values, given_values, run):
        print(
            f"corymb: {output.config} was written by a run on other data than {run.config['data']!r} is here. Data "
            "made in Python are not in it: save them (data.save('data.safetensors')) and give that file.",
            file=sys.stderr,
        )
    return print_result(run, as_json=output.json)


def _on_other_data(values: Mapping[str, Any], given: Mapping[str, Any], run: Run) -> bool:
    """Whether a run by the settings of another had other data, although nobody asked for others."""
    record = values.get("record")  # of a settings file, which anybody may have written
    recorded = record.get("data") if isinstance(record, Mapping) else None
    others = {"data", "seed", *names(DataOptions)} & given.keys()
    return recorded is not None and not others and run.config["record"]["data"] != recorded


def _run_seeds(values: Mapping[str, Any], output: Output) -> int:
    """Run each seed into a subfolder of one folder; stops at the first non-zero exit code."""
    seeds = seeds_in(str(output.seeds))
    name = f"{Path(str(values.get('data') or 'data')).stem}-{short_name(str(values.get('algorithm')))}-seeds"
    parent = new_folder("runs", name) if output.out is None else output.out
    check_free(parent)
    for seed in seeds:
        one = replace(output, config=None, seeds=None, out=parent / f"seed-{seed}")
        if code := perform({**values, "seed": seed}, one):
            return code
    return Exit.OK
