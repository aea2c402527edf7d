"""`corymb run`: a run from the command line, a TOML file, or both."""

# No postponed annotations here: cyclopts reads those of functions made inside others.
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, fields, replace
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from corymb.cli.exits import Exit
from corymb.cli.options import given, merged, options_of
from corymb.cli.summary import show_run
from corymb.core.snapshot import Algorithm, planned_rounds
from corymb.data import FederatedDataset, load
from corymb.engines.vectorised.kernels import KernelName
from corymb.runs.catalogue import ALGORITHMS, configure, row_of
from corymb.runs.fit import begin, go_on
from corymb.runs.folder.reader import check_free, is_finished, new_folder
from corymb.runs.learners import Dropout
from corymb.runs.placing import Device, EngineName, Memory, Precision
from corymb.runs.progress import RoundLine
from corymb.runs.run import Run
from corymb.runs.settings import RunSettings, read_config, read_environment
from corymb.settings import InvalidInput, from_dict

WHAT = "Say which data and which algorithm: corymb run DATA ALGORITHM, such as corymb run digits ifca --k 4."


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What can be said of a run beside its data and its algorithm."""

    seed: int = 0
    """Everything random follows from it, data that are made or split included."""
    model: str | None = None
    """A name, or package.module:function; without it, one that suits the data."""
    engine: EngineName = "vectorised"
    """Many clients at once, or one after another."""
    device: Device = "auto"
    precision: Precision = "float32"
    threads: int | None = None
    """Of the CPU."""
    memory: Memory = "auto"
    """Bytes for the clients that are run at once."""
    kernel: KernelName | None = None
    """How the vectorised engine computes; without it, the fastest that fits the model."""
    evaluate_every: int = 10
    """Rounds between evaluations; 0: only at the end."""
    checkpoint_every: int = 1
    """Rounds between checkpoints, from which a run can be resumed."""
    max_seconds: float | None = None
    """Stop after the round in which this time is up."""
    min_replies: int = 1
    """Fewer usable replies, and a round does not count."""
    dropout: Dropout = "refuse"
    """What to do about dropout layers: refuse the model, or switch them off."""
    client: str | None = None
    """Data of your own: the column (in npz: the array) of clients."""
    label: str | None = None
    """Data of your own: the column of labels."""
    test: float | None = None
    """Data of your own: the share of each client's rows to test on."""
    task: Literal["classification", "regression"] | None = None
    """Data of your own: what the labels are."""


DataName = Annotated[
    str | None, Parameter(help="A name (`corymb list data`), a folder with a file for each client, or one file.")
]
AlgorithmName = Annotated[
    str | None,
    Parameter(help="A name (`corymb list algorithms`); `corymb run DATA ALGORITHM --help` lists its settings."),
]
OWN = ("client", "label", "test", "task")
OPTIONS: Any = options_of(RunOptions)
NO_OPTIONS = OPTIONS()


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where results go."""

    config: Path | None = None
    """A TOML file of settings and options; the command line wins."""
    out: Path | None = None
    """Keep the run in this folder, which must be new or empty; without it, in a new one under runs/."""
    seeds: str | None = None
    """Several runs in one folder, one a seed: `0-9`, or `0,3,7`. `corymb compare` takes such folders."""
    json: bool = False
    """Print the result as one JSON object."""
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"])] = False
    """No progress."""


TO_STDOUT = Output()


def command_for(tokens: Sequence[str]) -> Callable[..., int]:
    """The command with the settings of the algorithm that `tokens` name."""
    name = _named_algorithm(tokens)
    if name is None:
        return run_any
    row = ALGORITHMS[name]
    kind: Any = options_of(row.algorithm, leave_out=row.from_data)
    none_given = kind()

    def run(
        data: DataName = None,
        algorithm: AlgorithmName = None,
        *,
        settings: Annotated[kind, Parameter(name="*", group=f"Settings of {name}")] = none_given,
        options: Annotated[OPTIONS, Parameter(name="*", group="The run")] = NO_OPTIONS,
        output: Annotated[Output, Parameter(name="*", group="Output")] = TO_STDOUT,
    ) -> int:
        return _run(data, algorithm, merged(given(options), given(settings)), output)

    return run


def run_any(
    data: DataName = None,
    algorithm: AlgorithmName = None,
    *,
    options: Annotated[OPTIONS, Parameter(name="*", group="The run")] = NO_OPTIONS,
    output: Annotated[Output, Parameter(name="*", group="Output")] = TO_STDOUT,
) -> int:
    """What `run` is where no algorithm is named."""
    raise InvalidInput(WHAT)


def _named_algorithm(tokens: Sequence[str]) -> str | None:
    """The algorithm that is meant, from the command line or else from the file it names; None where help is asked."""
    for token in tokens:
        if token in ALGORITHMS:
            return token
    if "--help" in tokens or "-h" in tokens:
        return None
    words = [token for place, token in enumerate(tokens) if not token.startswith("-") and not _is_value(tokens, place)]
    if len(words) > 1:
        row_of(words[1])  # complains, with a guess
    if "--config" in tokens[:-1]:
        name = _read_config(Path(tokens[tokens.index("--config") + 1])).get("algorithm")
        row_of(str(name))
        return str(name)
    raise InvalidInput(WHAT)


def _is_value(tokens: Sequence[str], place: int) -> bool:
    before = tokens[place - 1] if place else ""
    return before.startswith("--") and "=" not in before and before not in ("--json", "--quiet")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as TOML: {error}") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None


def _run(data: str | None, algorithm: str | None, said: Mapping[str, Any], output: Output) -> int:
    if output.seeds is not None:
        return _run_seeds(data, algorithm, said, output)
    values = merged(_read_config(output.config) if output.config else {}, said)
    values.pop("record", None)  # what a finished run's config.toml tells beside its settings
    data, algorithm = data or values.pop("data", None), algorithm or values.pop("algorithm", None)
    if data is None or algorithm is None:
        raise InvalidInput(WHAT)
    values = {name: value for name, value in values.items() if name not in ("data", "algorithm")}
    options, settings = _split(values)
    if output.out is not None:
        check_free(output.out)
    federation, chosen = _loaded(data, algorithm, settings, options)
    folder = output.out or new_folder("runs", f"{Path(data).stem or 'data'}-{algorithm}")
    line = RoundLine(planned_rounds(chosen))
    try:
        with line:
            run = begin(
                chosen,
                federation,
                options.model,
                RunSettings(**{field.name: getattr(options, field.name) for field in fields(RunSettings)}),
                out=folder,
                max_seconds=options.max_seconds,
                progress=None if output.quiet else line,
                said={"data": data, **_about(options)},
            )
    finally:
        with suppress(OSError):  # only an empty one goes: nothing was begun
            folder.rmdir()
    return report(run, as_json=output.json)


def _run_seeds(data: str | None, algorithm: str | None, said: Mapping[str, Any], output: Output) -> int:
    """A run for each seed, all in one folder; the first that does not end well is the last."""
    seeds = _numbers(str(output.seeds))
    parent = new_folder("runs", f"{Path(data or 'data').stem}-{algorithm}-seeds") if output.out is None else output.out
    check_free(parent)
    for seed in seeds:
        one = replace(output, seeds=None, out=parent / f"seed-{seed}")
        if code := _run(data, algorithm, {**said, "seed": seed}, one):
            return code
    return Exit.OK


def _numbers(text: str) -> list[int]:
    """Seeds as they are written on the command line.

    >>> _numbers("0-2,7")
    [0, 1, 2, 7]
    """
    try:
        ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
        seeds = [seed for part in ends for seed in range(part[0], part[-1] + 1)]
    except ValueError:
        seeds = []
    if not seeds:
        raise InvalidInput(f"--seeds {text} cannot be read: write a range such as 0-9, or numbers such as 0,3,7.")
    return seeds


def _about(options: RunOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in OWN if getattr(options, name) is not None}


def _loaded(
    data: str, algorithm: str, settings: Mapping[str, Any], options: RunOptions
) -> tuple[FederatedDataset, Algorithm]:
    federation: FederatedDataset = load(data, seed=options.seed, **_about(options))
    return federation, configure(algorithm, federation, **settings)


def report(run: Run, *, as_json: bool) -> int:
    """Print a run that has ended or was stopped; the exit code."""
    if run.stopped:
        print(
            f"corymb: stopped ({run.stopped}) after {len(run.history)} rounds; "
            f"to go on: corymb resume {shlex.quote(str(run.folder))}",
            file=sys.stderr,
        )
    if as_json:
        print(dumps({**run.to_dict(), "folder": str(run.folder)}, allow_nan=False))
    else:
        show_run(run, run.folder)
    return Exit.INTERRUPTED if run.stopped == "interrupted" else Exit.OK


def resume(
    run: Annotated[Path, Parameter(help="The folder of a run that was stopped, interrupted or killed.")],
    *,
    max_seconds: Annotated[float | None, Parameter(help="Stop again after the round in which this time is up.")] = None,
    json: Annotated[bool, Parameter(help="Print the result as one JSON object.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], help="No progress.")] = False,
) -> int:
    """Go on with a run to its end; one that has ended prints its result again."""
    if is_finished(run):
        return report(Run.load(run), as_json=json)
    folder = run.resolve()
    config, environment = read_config(folder), read_environment(folder)
    name = str(config.pop("algorithm", None))
    if name not in ALGORITHMS or "data" not in config:
        raise InvalidInput(f"{run} was begun in Python, with an algorithm of its own: fit(..., resume=...) resumes it.")
    options, settings = _split({key: value for key, value in config.items() if key not in ("record", "data")})
    there = Path(str(environment.get("working_folder", ".")))
    with chdir(there if there.is_dir() else Path()):  # where its data and its model are
        federation, chosen = _loaded(str(config["data"]), name, settings, options)
        with RoundLine(planned_rounds(chosen)) as line:
            progress = None if quiet else line
            done = go_on(folder, chosen, federation, options.model, max_seconds=max_seconds, progress=progress)
    return report(replace(done, folder=run), as_json=json)


def _split(values: Mapping[str, Any]) -> tuple[RunOptions, dict[str, Any]]:
    """Options of a run, and settings of its algorithm."""
    own = {field.name for field in fields(RunOptions)}
    options = from_dict(RunOptions, {name: value for name, value in values.items() if name in own})
    return options, {name: value for name, value in values.items() if name not in own}
