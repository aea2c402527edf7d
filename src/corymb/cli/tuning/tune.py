"""The command line of `corymb tune`; `corymb.cli.tuning.search` carries it out."""

# No postponed annotations here: cyclopts reads those of functions made inside others.
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from corymb.cli.run import OUTPUT, AlgorithmName, DataName
from corymb.cli.run import command_for as run_command_for
from corymb.settings import InvalidInput

USAGE = "Give the data and the algorithm: corymb tune DATA ALGORITHM, such as corymb tune digits ifca --trials 20."


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What is searched, and where the results go."""

    trials: int = 20
    """Total number of trials, including those already in the folder of a study."""
    param: tuple[str, ...] = ()
    """A setting and its range, such as `local.lr=log:0.001:1`, `k=int:2:8`, `averaging=choice:models,gradients`."""
    config: Path | None = None
    """A TOML file of settings and options; the command line overrides it."""
    out: Path | None = None
    """Keep the study in this folder; repeat the command to continue it."""
    json: bool = False
    """Print the result as one JSON object."""
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"])] = False
    """Do not show progress."""


NOTHING = Tuning()


def command_for(tokens: Sequence[str]) -> Callable[..., int]:
    """The command with the settings of the algorithm that `tokens` name; settings given are fixed, not searched."""
    return run_command_for(tokens, "corymb.cli.tuning.search:search", Tuning, tune_any, USAGE)


def tune_any(
    data: DataName = None,
    algorithm: AlgorithmName = None,
    *,
    output: Annotated[Tuning, Parameter(name="*", group=OUTPUT)] = NOTHING,
) -> int:
    """The command without an algorithm: it only provides the help."""
    raise InvalidInput(USAGE)
