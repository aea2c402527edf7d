"""The command line of `corymb run`; `corymb.cli.perform` carries it out.

Help and error messages do not import torch until an algorithm is named: its settings are part of its code, which does.
"""

# No postponed annotations here: cyclopts reads those of functions made inside others.
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from corymb.algorithms.catalogue import CATALOGUE, entry_of, is_composed
from corymb.cli.options import given, options_of
from corymb.lazy import at, is_place, short_name
from corymb.runs.settings import DataOptions, FitOptions, RunSettings
from corymb.settings import InvalidInput, read_toml, require

USAGE = "Give the data and the algorithm: corymb run DATA ALGORITHM, such as corymb run digits ifca --k 4."
DataName = Annotated[
    str | None, Parameter(help="A name (`corymb list data`), a folder with a file for each client, or one file.")
]
AlgorithmName = Annotated[
    str | None,
    Parameter(
        help="A name (`corymb list algorithms`), or your own: package.module:Class. `corymb run DATA ALGORITHM --help` "
        "lists its settings."
    ),
]
DATA, OUTPUT = Group("Your own data", sort_key=3), Group("Output", sort_key=4)
RUN = Group("The run", sort_key=5)
Settings: Any = options_of(RunSettings)
OfFit: Any = options_of(FitOptions)
OfData: Any = options_of(DataOptions)
NO_SETTINGS, NOTHING_FOR_FIT, NOTHING_ON_DATA = Settings(), OfFit(), OfData()


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where settings come from and where results go."""

    config: Path | None = None
    """A TOML file of settings and options; the command line overrides it."""
    out: Path | None = None
    """Save the run in this folder, which must be new or empty; by default a new folder under runs/."""
    seeds: str | None = None
    """Run once per seed (`0-9`, or `0,3,7`), all in one folder. `corymb compare` accepts such folders."""
    json: bool = False
    """Print the result as one JSON object."""
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"])] = False
    """Do not show progress."""


SUITED = (
    "The defaults shown are the algorithm's own. Step sizes, rounds and a few other settings that are not given are "
    "chosen for the data instead."
)
MOST_SEEDS = 10_000
"""The most seeds of one command."""
TO_STDOUT = Output()


def command_for(
    tokens: Sequence[str],
    perform: str = "corymb.cli.perform:perform",
    output_of: Any = Output,
    without_name: Callable[..., int] | None = None,
    usage: str = USAGE,
) -> Callable[..., int]:
    """The command with the settings of the algorithm that `tokens` name.

    `perform` is the import path of the function that carries the command out. It takes the values given and an instance
    of `output_of`. If no algorithm is named, the command is `without_name`, or an error with the text `usage`.
    """
    name = _named_algorithm(tokens, usage)
    if name is None:
        return without_name or run_any
    from corymb.runs.defaults import class_of, from_data  # these need torch

    act, no_output = at(perform), output_of()
    algorithm_class = class_of(name)
    kind: Any = options_of(algorithm_class, leave_out=from_data(algorithm_class))
    none_given, own = kind(), Group(f"Settings of {short_name(name)}", help=SUITED, sort_key=1)

    def run(
        data: DataName = None,
        algorithm: AlgorithmName = None,
        *,
        of_algorithm: Annotated[kind, Parameter(name="*", group=own)] = none_given,
        of_fit: Annotated[OfFit, Parameter(name="*", group=RUN)] = NOTHING_FOR_FIT,
        settings: Annotated[Settings, Parameter(name="*", group=RUN)] = NO_SETTINGS,
        of_data: Annotated[OfData, Parameter(name="*", group=DATA)] = NOTHING_ON_DATA,
        output: Annotated[output_of, Parameter(name="*", group=OUTPUT)] = no_output,
    ) -> int:
        named = {key: value for key, value in (("data", data), ("algorithm", algorithm)) if value is not None}
        options = {**given(settings), **given(of_fit), **given(of_data), **given(of_algorithm)}
        return int(act({**options, **named}, output))

    return run


def run_any(
    data: DataName = None,
    algorithm: AlgorithmName = None,
    *,
    of_fit: Annotated[OfFit, Parameter(name="*", group=RUN)] = NOTHING_FOR_FIT,
    settings: Annotated[Settings, Parameter(name="*", group=RUN)] = NO_SETTINGS,
    of_data: Annotated[OfData, Parameter(name="*", group=DATA)] = NOTHING_ON_DATA,
    output: Annotated[Output, Parameter(name="*", group=OUTPUT)] = TO_STDOUT,
) -> int:
    """The command without an algorithm: it only provides the help."""
    raise InvalidInput(USAGE)


def _named_algorithm(tokens: Sequence[str], usage: str) -> str | None:
    """The algorithm named on the command line or in its settings file; None if only help is requested."""
    words = [token for place, token in enumerate(tokens) if not token.startswith("-") and not is_value(tokens, place)]
    if len(words) > 1 and words[0] in CATALOGUE and words[1] not in CATALOGUE and not is_place(words[1]):
        raise InvalidInput(f"The data come before the algorithm: corymb run {words[1]} {words[0]} ...")
    for token in [*filter(is_place, words), *(token for token in tokens if token in CATALOGUE)]:
        return token
    if "--help" in tokens or "-h" in tokens:
        return None
    if len(words) > 1:
        entry_of(words[1])  # raises, with a suggestion
    if "--config" in tokens[:-1]:
        return _in_file(Path(tokens[tokens.index("--config") + 1]))
    raise InvalidInput(usage)


def _in_file(path: Path) -> str:
    """The algorithm named in a settings file. A file written by a run is data and may not name code."""
    values = read_toml(path)
    name = str(values.get("algorithm"))
    if "record" in values and is_composed(name):
        raise InvalidInput(
            f"{path} was written by a run of {name.rpartition(':')[2]}, which was put together in Python: run it there."
        )
    if "record" in values and is_place(name):
        raise InvalidInput(
            f"{path} was written by a run with a user-defined algorithm: a run folder is data and never decides which "
            f"code runs, so name it: corymb run {values.get('data')} {name} --config {path}."
        )
    if not is_place(name):
        entry_of(name)  # raises, with a suggestion
    return name


def is_value(tokens: Sequence[str], place: int) -> bool:
    """Whether a word of the command line is the value of the option before it."""
    before = tokens[place - 1] if place else ""
    return before.startswith("--") and "=" not in before and before not in ("--json", "--quiet")


def seeds_in(text: str) -> list[int]:
    """Parse the seeds of a command line.

    >>> seeds_in("0-2,7")
    [0, 1, 2, 7]
    """
    try:
        ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
        seeds = list(islice((seed for part in ends for seed in range(part[0], part[-1] + 1)), MOST_SEEDS + 1))
    except ValueError:
        seeds = []
    if not seeds:
        raise InvalidInput(f"--seeds {text} cannot be read: write a range such as 0-9, or numbers such as 0,3,7.")
    require(len(seeds) <= MOST_SEEDS, f"--seeds {text} gives more than {MOST_SEEDS:,} runs: give fewer seeds.")
    require(len(set(seeds)) == len(seeds), f"--seeds {text} repeats a seed: give each once.")
    return seeds
