"""Carries out `corymb tune` once its command line is parsed."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corymb.cli import Exit
from corymb.cli.request import Request, with_file
from corymb.cli.tuning.tune import Tuning
from corymb.runs.history import counted, plain, readable
from corymb.runs.tuning.space import read_space
from corymb.runs.tuning.study import Trial, Tuned, tune
from corymb.settings import to_dict


def search(given_values: Mapping[str, Any], output: Tuning) -> int:
    """Run the search and print the best settings; returns the exit code."""
    try:
        return _search(given_values, output)
    except KeyboardInterrupt:
        rest = "repeat the command to continue" if output.out else "use --out to be able to continue"
        print(f"corymb: stopped; {rest}.", file=sys.stderr)
        return Exit.INTERRUPTED


def _search(given_values: Mapping[str, Any], output: Tuning) -> int:
    request = Request.read(with_file(output.config, given_values))
    found = tune(
        request.algorithm,
        request.data_options.load(request.data, request.settings.seed),
        request.fit_options.model,
        trials=output.trials,
        params=read_space(output.param),
        given=request.algorithm_settings,
        out=output.out,
        progress=None if output.quiet else _Lines(output.trials),
        data_name=request.data,
        data_options=request.data_options.given(),
        settings=request.settings,
    )
    if output.json:
        print(json_module.dumps(plain(_as_json(found)), allow_nan=False))
        return Exit.OK
    lost = sum(trial.score is None for trial in found.trials)
    trials = f"{counted(len(found.trials), 'trial')}{f', of which {lost} diverged' if lost else ''}"
    print(f"Best of {trials}: {_words(found.settings)}")
    print(f"{found.metric} {readable(found.score)} on held-out training examples; test examples were not used.")
    print(found.command)
    return Exit.OK


@dataclass(frozen=True)
class _Lines:
    """A line on stderr for each trial."""

    total: int

    def __call__(self, number: int, trial: Trial, best: float | None) -> None:
        score = "diverged" if trial.score is None else readable(trial.score)
        top = "" if best is None else f"  best {readable(best)}"
        print(f"trial {number}/{self.total}  {score}{top}  {_words(trial.settings)}", file=sys.stderr, flush=True)


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "the defaults"


def _as_json(found: Tuned) -> dict[str, Any]:
    return {
        "settings": found.settings,
        "score": found.score,
        "metric": found.metric,
        "command": found.command,
        "algorithm": to_dict(found.algorithm),
        "trials": [{"settings": trial.settings, "score": trial.score} for trial in found.trials],
    }
