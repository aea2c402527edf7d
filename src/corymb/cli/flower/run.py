"""`corymb flower run`: its command line. `corymb.cli.flower.perform` carries it out.

As with `corymb run`, the settings of the algorithm are options: of the one named, or of that in federation.toml.
"""

# No postponed annotations here: cyclopts reads those of functions made inside others.
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from corymb.algorithms.catalogue import CATALOGUE, entry_of
from corymb.cli.flower.folder import FILE, read_federation
from corymb.cli.options import given, options_of
from corymb.cli.run import is_value
from corymb.lazy import at, is_place, short_name
from corymb.runs.settings import FitOptions, RunSettings
from corymb.settings import InvalidInput

OF_NODES = ("engine", "device", "precision", "threads", "memory", "kernel", "client_seconds", "cluster_folder")
"""Options of a run that nodes choose, or that do not apply to a federation."""
OF_FOLDER = ("address", "ca", "secret")
"""Options that follow from the federation's folder."""
Settings: Any = options_of(RunSettings, leave_out=(*OF_NODES, *OF_FOLDER))
OfFit: Any = options_of(FitOptions)
NO_SETTINGS, NOTHING_FOR_FIT = Settings(), OfFit()
RUN, OUTPUT = Group("The run", sort_key=3), Group("Output", sort_key=4)
PERFORM = "corymb.cli.flower.perform:perform"
AlgorithmName = Annotated[
    str | None,
    Parameter(
        help="A name (`corymb list algorithms`), or your own: package.module:Class; if not given, federation.toml's."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where the federation is, and where results go."""

    out: Path | None = None
    """Save the run in this folder, which must be new or empty; if not given, in a new folder under runs/."""
    json: bool = False
    """Print the result as one JSON object."""
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"])] = False
    """Do not show progress."""
    folder: Path = Path()
    """The federation's folder."""


TO_STDOUT = Output()


def command_for(tokens: Sequence[str]) -> Callable[..., int]:
    """The command with the settings of its algorithm as options, if the algorithm is known."""
    kind, name, like = _algorithm(tokens)
    if kind is None:
        return run
    from corymb.runs.defaults import from_data  # which needs torch

    options: Any = options_of(kind, leave_out=from_data(kind), like=like)
    none_given, own = options(), Group(f"Settings of {name}", sort_key=1)

    def run_one(
        algorithm: AlgorithmName = None,
        *,
        of_algorithm: Annotated[options, Parameter(name="*", group=own)] = none_given,
        of_fit: Annotated[OfFit, Parameter(name="*", group=RUN)] = NOTHING_FOR_FIT,
        settings: Annotated[Settings, Parameter(name="*", group=RUN)] = NO_SETTINGS,
        output: Annotated[Output, Parameter(name="*", group=OUTPUT)] = TO_STDOUT,
    ) -> int:
        return int(at(PERFORM)(algorithm, given(of_algorithm), given(settings), given(of_fit), output))

    return run_one


def run(
    algorithm: AlgorithmName = None,
    *,
    of_fit: Annotated[OfFit, Parameter(name="*", group=RUN)] = NOTHING_FOR_FIT,
    settings: Annotated[Settings, Parameter(name="*", group=RUN)] = NO_SETTINGS,
    output: Annotated[Output, Parameter(name="*", group=OUTPUT)] = TO_STDOUT,
) -> int:
    """Run on the nodes that are up; `corymb resume RUN` goes on with a run that was stopped."""
    return int(at(PERFORM)(algorithm, {}, given(settings), given(of_fit), output))


def _algorithm(tokens: Sequence[str]) -> tuple[Any, str, Any]:
    """The class, the name and the settings of the algorithm that is named, here or in federation.toml."""
    words = [token for place, token in enumerate(tokens) if not token.startswith("-") and not is_value(tokens, place)]
    named = next(iter(words), None)
    if named is None:
        folder = Path(tokens[tokens.index("--folder") + 1]) if "--folder" in tokens[:-1] else Path()
        folder = next((Path(token[9:]) for token in tokens if token.startswith("--folder=")), folder)
        if not (folder / FILE).exists():
            return None, "", None
        make_importable(folder)
        named = read_federation(folder).algorithm
        if named not in CATALOGUE:
            return type(mine := algorithm_at(named)), named, mine
    if not is_place(named):
        entry_of(named)  # raises, with a suggestion
    from corymb.runs.defaults import class_of

    return class_of(named), short_name(named), None


def make_importable(folder: Path) -> None:
    """Make the modules in the federation's folder importable from any working folder."""
    if str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))


def algorithm_at(place: str) -> Any:
    """The algorithm at `module:name`: the object itself, or what that function returns."""
    from corymb.runs.learners import imported

    found = imported(place, "the algorithm")
    algorithm = found() if callable(found) and not hasattr(found, "run") else found
    if isinstance(algorithm, type) or not hasattr(algorithm, "run"):
        what = algorithm.__name__ if isinstance(algorithm, type) else type(algorithm).__name__
        raise InvalidInput(f"{place} gives {what}: wanted an algorithm, such as corymb.IFCA(k=4).")
    return algorithm
