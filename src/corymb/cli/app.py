"""The command line. Results go to stdout, progress and error messages to stderr.

Each command is a separate module, imported when it is called, so that `--help` and `--version` are instant.
"""

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from corymb import __version__
from corymb.cli import Exit
from corymb.settings import InvalidInput, did_you_mean, error_text, printable, require

GLOBAL = ("--help", "-h", "--version")
"""The options of `corymb` itself."""
LONGEST = 900
"""Error messages are truncated to this many characters."""
HELP = "Clustered federated learning: find groups of clients and train one model for each group."


class Command(NamedTuple):
    """A command: the import path of its function, its help text and three examples."""

    place: str
    help: str
    examples: tuple[str, ...]


COMMANDS = {
    "run": Command(
        "corymb.cli.run:run_any",
        "Run an algorithm on data: `corymb run DATA ALGORITHM [settings]`.",
        (
            "corymb run digits ifca --k 4 --restarts 5",
            "corymb run digits fedavg --rounds 20 --local.lr 0.1 --json",
            "corymb run mydata/ ifca --k 3 --model mymodule:network --out runs/mine",
        ),
    ),
    "advise": Command(
        "corymb.cli.advising.advise:advise_on",
        "Should I cluster at all? Compare one model, clusters and local training on held-out training examples: "
        "`corymb advise DATA`.",
        (
            "corymb advise digits",
            "corymb advise table.csv --client hospital --label outcome --metric auc --out advice/",
            "corymb advise mydata/ --seeds 0-2 --json -q",
        ),
    ),
    "resume": Command(
        "corymb.cli.resume:resume",
        "Continue a run that was stopped or killed, or train it longer: `corymb resume RUN [--rounds N]`. "
        "For a finished run, print its result again.",
        (
            "corymb resume runs/digits-ifca-1",
            "corymb resume runs/digits-ifca-1 --rounds 200",
            "corymb resume runs/mine --max_seconds 600 -q",
        ),
    ),
    "tune": Command(
        "corymb.cli.tuning.tune:tune_any",
        "Tune the settings of an algorithm on held-out training examples: "
        "`corymb tune DATA ALGORITHM [--param NAME=RANGE ...]`.",
        (
            "corymb tune digits ifca --k 4 --trials 20",
            "corymb tune digits fedavg --param local.lr=log:0.001:1 --param local.steps=int:1:20",
            "corymb tune digits ifca --trials 50 --out studies/digits  # repeat to continue",
        ),
    ),
    "report": Command(
        "corymb.cli.report:report",
        "Write a report on a run: clusters, quality, stability and cost. `corymb report RUN [RUN ...]`.",
        (
            "corymb report runs/mine",
            "corymb report runs/ifca runs/fedavg runs/alone --out ifca.html",
            "corymb report runs/mine --format png",
        ),
    ),
    "compare": Command(
        "corymb.cli.compare:compare_runs",
        "Compare two runs, or two groups of runs with different seeds.",
        (
            "corymb compare runs/ifca runs/fedavg",
            "corymb compare runs/ifca-seeds runs/fedavg-seeds",
            "corymb compare runs/ifca runs/fedavg --out comparison.html",
        ),
    ),
    "reproduce": Command(
        "corymb.cli.reproduce:reproduce",
        "Run a paper's experiments and compare its claims with our numbers.",
        (
            "corymb reproduce ifca --quick",
            "corymb reproduce ifca/table-1 --cells 'rmnist-1200x200/*/0'",
            "corymb reproduce moment-descent --seeds 2 --workers 1",
        ),
    ),
    "audit": Command(
        "corymb.cli.auditing.audit:audit",
        "Verify that the audit log of a run has not been altered: `corymb audit RUN`.",
        ("corymb audit runs/mine", "corymb audit runs/mine --json", "corymb audit runs/digits-ifca-1"),
    ),
    "assign": Command(
        "corymb.cli.assign:assign_file",
        "Assign a new client to a cluster, or report that none fits: `corymb assign RUN FILE`.",
        (
            "corymb assign runs/digits-ifca-1 newcomer.npz",
            "corymb assign runs/mine hospital-9.csv --json",
            "corymb assign runs/mine newcomer.parquet --model mymodule:network",
        ),
    ),
    "predict": Command(
        "corymb.cli.predict:predict_file",
        "Predict with the model of a client or a cluster: `corymb predict RUN FILE`.",
        (
            "corymb predict runs/mine patients.csv --client hospital-3",
            "corymb predict runs/mine patients.parquet --cluster 1 --out predictions.csv",
            "corymb predict runs/digits-ifca-1 pictures.npz --cluster 0 --json",
        ),
    ),
    "export": Command(
        "corymb.cli.export:export",
        "Export a cluster's model to a file that does not need Corymb: `corymb export RUN --cluster J`.",
        (
            "corymb export runs/digits-ifca-1 --cluster 0",
            "corymb export runs/mine --client hospital-3 --format onnx --out model.onnx",
            "corymb export runs/mine --cluster 0 --model mymodule:network",
        ),
    ),
    "new": Command(
        "corymb.cli.new.algorithm:new_algorithm",
        "Create a template for an algorithm with a test; both run as they are: `corymb new algorithm NAME`.",
        (
            "corymb new algorithm my-average",
            "corymb new algorithm my-average --folder src",
            "corymb run digits my_average:MyAverage --k 4",
        ),
    ),
    "list": Command(
        "corymb.cli.list:show_list",
        "List the available data sets, algorithms, models or faults.",
        ("corymb list data", "corymb list algorithms", "corymb list faults"),
    ),
    "completion": Command(
        "corymb.cli.shell.completion:completion",
        "Print a shell completion script: `corymb completion bash|zsh|fish`.",
        (
            "corymb completion bash > ~/.local/share/bash-completion/completions/corymb",
            "corymb completion zsh > ~/.zfunc/_corymb",
            "corymb completion fish > ~/.config/fish/completions/corymb.fish",
        ),
    ),
    "doctor": Command(
        "corymb.cli.doctor:doctor",
        "Show the environment and run a small self-test.",
        ("corymb doctor", "CORYMB_DATA=/data corymb doctor", "NO_COLOR=1 corymb doctor > machine.txt"),
    ),
}

DATA = {
    "show": Command(
        "corymb.cli.dataset.show:show",
        "Show the clients, sizes, labels and (if any) images of a data set: `corymb data show DATA`.",
        (
            "corymb data show digits",
            "corymb data show mydata/ --label species",
            "corymb data show table.csv --client hospital --label outcome --task regression",
        ),
    ),
    "get": Command(
        "corymb.cli.dataset.get:get",
        "Download data sets and verify their checksums: `corymb data get NAME`.",
        (
            "corymb data get cifar-rotated",
            "corymb data get mnist-rotated shakespeare",
            "CORYMB_CACHE=/data/corymb corymb data get femnist",
        ),
    ),
}
"""Commands of `corymb data`."""

WITHIN = {"new": "algorithm"}
"""Two-word commands, and their second words."""

FLOWER = {
    "new": Command(
        "corymb.cli.flower.new:new",
        "Create a project folder for a federation: `corymb flower new NAME`.",
        ("corymb flower new myfed", "corymb flower new hospitals", "corymb flower new federations/banks"),
    ),
    "up": Command(
        "corymb.cli.flower.up:up",
        "Start a SuperLink and nodes on this machine.",
        ("corymb flower up --nodes 3", "corymb flower up --nodes 3 --tls", "corymb flower up --nodes 0 --tls"),
    ),
    "node": Command(
        "corymb.cli.flower.node:node",
        "Run one node on the machine that holds its data: "
        "`corymb flower node NAME --superlink HOST:PORT --data MODULE:FUNCTION`.",
        (
            "corymb flower node site-a --superlink 10.0.0.1:8000 --data myfed.data:clients --state /var/corymb",
            "corymb flower node site-a --superlink 10.0.0.1:8000 --data myfed.data:clients --state s --allow myfed",
            "corymb flower node site-a --superlink 10.0.0.1:8000 --data d:f --state s --ca ca.pem --key site-a",
        ),
    ),
    "run": Command(
        "corymb.cli.flower.run:run",
        "Run the federation's algorithm on its nodes, and write the report.",
        (
            "corymb flower run",
            "corymb flower run ifca --k auto --restarts 5 --seed 3 --out runs/three",
            "corymb flower run fedavg --rounds 20 --json -q",
        ),
    ),
    "status": Command(
        "corymb.cli.flower.up:status",
        "Show the federation's processes and how many nodes are online.",
        ("corymb flower status", "corymb flower status --folder myfed", "watch corymb flower status"),
    ),
    "down": Command(
        "corymb.cli.flower.up:down",
        "Stop the federation's processes.",
        ("corymb flower down", "corymb flower down --folder myfed", "corymb flower down && rm -r .federation"),
    ),
    "doctor": Command(
        "corymb.cli.flower.doctor:doctor",
        "Check the requirements of a federation.",
        ("corymb flower doctor", "corymb flower doctor --echo", "corymb flower doctor --folder myfed"),
    ),
}
"""Commands of `corymb flower`."""

GROUPS = {
    "data": ("Download and inspect data sets.", DATA),
    "flower": ("Run a federation of nodes that hold their own data, with Flower.", FLOWER),
}
"""Groups of subcommands, with their help."""


def main(argv: Sequence[str] | None = None, *, loaded: Callable[[], object] = lambda: None) -> int:
    """Run a command and return its exit code. An error is one line on stderr; `--debug` shows the traceback.

    `loaded` is called once the command's modules are imported, before the command runs.
    """
    # Spinning idle threads make a busy machine ten times slower. OpenMP reads this when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    tokens = [_spelled_as_in_python(token) for token in (sys.argv[1:] if argv is None else argv)]
    debug = "--debug" in tokens
    try:
        _check_known(tokens)
        app = make_app(tokens)
        loaded()
        code = app(
            [token for token in tokens if token != "--debug"],
            exit_on_error=False,
            print_error=False,
            verbose=False,
            result_action="return_value",
        )
        sys.stdout.flush()  # a write error is raised here, where it can be explained
        return int(code or Exit.OK)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich ends the process if the reader of stdout has gone
            return Exit.OK
        raise
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        if isinstance(error, BrokenPipeError) and _stdout_closed():
            return Exit.OK
        code, line = explain(error)
        print(f"corymb: {printable(line)[:LONGEST]}", file=sys.stderr)
        return code


def _check_known(tokens: Sequence[str]) -> None:
    """Reject an unknown command. Cyclopts would import all commands first to list them."""
    first, second = [*(token for token in tokens if token != "--debug"), "", ""][:2]
    if first.startswith("-"):
        require(first in GLOBAL, f"Unknown option: {first}. {did_you_mean(first, GLOBAL)}")
    within: Collection[str] = GROUPS[first][1] if first in GROUPS else [WITHIN[first]] if first in WITHIN else ()
    for word, name, known in ((first, first, [*COMMANDS, *GROUPS]), (second, f"{first} {second}", within)):
        valid = word in known or not known or word.startswith("-") or not word
        require(valid, f"There is no command {name!r}. {did_you_mean(word, known)}")


def _stdout_closed() -> bool:
    """Whether the reader of our stdout has closed it, as `head` does; that is not an error."""
    try:
        sys.stdout.flush()
        left = _reader_gone(sys.stdout.fileno())
    except BrokenPipeError:
        left = True
    if left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python complains at exit
    return left


def _reader_gone(pipe: int) -> bool:
    """Whether a pipe has no reader: a flush does not tell if nothing is buffered (PYTHONUNBUFFERED)."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def make_app(tokens: Sequence[str] = ()) -> Any:
    """Build the command-line app. Commands whose options depend on an algorithm get them if `tokens` name it."""
    from cyclopts import App, Parameter

    spelled = Parameter(name_transform=lambda name: name, negative_bool=())
    first = tuple(command.examples[0] for command in COMMANDS.values())
    app = App(
        name="corymb",
        help=HELP,
        version=__version__,
        default_parameter=spelled,
        help_epilogue=_epilogue(first),
        suppress_keyboard_interrupt=False,  # otherwise Ctrl-C ends the process silently
    )
    for name, command in COMMANDS.items():
        place: Any = command.place
        if name in ("run", "tune") and name == next(iter(tokens), ""):  # the options depend on the algorithm
            module = importlib.import_module(place.partition(":")[0])
            place = module.command_for(tokens[1:])
        words: Any = {"help": command.help, "help_epilogue": _epilogue(command.examples)}
        if name in WITHIN:
            app.command(within := App(name=name, **words, default_parameter=spelled))
            within.command(place, name=WITHIN[name], **words)
        else:
            app.command(place, name=name, **words)
    for name, (about, commands) in GROUPS.items():
        shown = tuple(command.examples[0] for command in commands.values())
        group = App(name=name, help=about, help_epilogue=_epilogue(shown), default_parameter=spelled)
        for second, command in commands.items():
            place = command.place
            if (name, second) == ("flower", "run") and tuple(tokens[:2]) == (name, second):
                place = importlib.import_module(place.partition(":")[0]).command_for(tokens[2:])
            group.command(place, name=second, help=command.help, help_epilogue=_epilogue(command.examples))
        app.command(group)
    return app


def _epilogue(examples: Sequence[str]) -> str:
    return "Examples:\n\n" + "\n\n".join(f"`{example}`" for example in examples) + "\n\nMore: docs/command-line.md"


def _spelled_as_in_python(token: str) -> str:
    """Spell an option as its Python name: `--evaluate-every` becomes `--evaluate_every`."""
    if not token.startswith("--"):
        return token
    name, equals, value = token.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}"


def explain(error: BaseException) -> tuple[Exit, str]:
    """The exit code of an error, and a one-line message."""
    from cyclopts import CycloptsError

    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED, error_text(error) or "Stopped before the first round was complete; there is no result."
    text = _missing(error) or _left_over(error) or _for_nodes(error) or _with_nested(error) or error_text(error).strip()
    line = " ".join(text.split()) or type(error).__name__
    if isinstance(error, (InvalidInput, CycloptsError)):
        return Exit.BAD_INPUT, line
    if isinstance(error, OSError):
        return Exit.FILES, line
    if "TooFewReplies" in {kind.__name__ for kind in type(error).__mro__}:  # by name: its module would import torch
        return Exit.TOO_FEW_REPLIES, f"{line}{'' if line.endswith('.') else '.'}{_hint(line)}"
    return Exit.BUG, f"{type(error).__name__}: {line} (unexpected; --debug shows where)"


def _missing(error: BaseException) -> str:
    """The message for a missing argument or option value; empty for any other error."""
    from cyclopts import MissingArgumentError

    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return ""
    words = tuple(error.command_chain or ())
    if error.keyword is not None:
        return f"{error.keyword} needs a value."
    table = GROUPS[words[0]][1] if words and words[0] in GROUPS else COMMANDS
    command = next((table[word] for word in reversed(words) if word in table), None)
    such = "" if command is None else f", as in {command.examples[0]}"
    name = error.argument.name.removeprefix("--").upper()
    return f"corymb {' '.join(words)} needs {name}{such}. More: corymb {' '.join(words)} --help."


def _left_over(error: BaseException) -> str:
    """The message for words that belong to nothing, such as the value of a switch; empty for any other error."""
    from cyclopts import UnusedCliTokensError

    if not isinstance(error, UnusedCliTokensError) or not error.unused_tokens:
        return ""
    words = error.unused_tokens
    line = f"{', '.join(map(repr, words))} {'belongs' if len(words) == 1 else 'belong'} to no option."
    if {word.lower() for word in words} & {"true", "false", "yes", "no", "on", "off"}:
        line += " A switch takes no value: --guard turns it on, --no-guard turns it off."
    return line


def _for_nodes(error: BaseException) -> str:
    """The message for an option of `corymb flower node` that is given to `run` or `up`; empty for any other error."""
    from cyclopts import UnknownOptionError

    words = tuple(getattr(error, "command_chain", None) or ())
    if not isinstance(error, UnknownOptionError) or words not in (("flower", "run"), ("flower", "up")):
        return ""
    name = (error.token.keyword or error.token.value).removeprefix("--").partition("=")[0]
    if name not in ("engine", "device", "precision", "memory", "client_seconds", "poll"):
        return ""
    return (
        f"--{name} is an option of each node: `corymb flower node --{name} …`, or, for nodes that `corymb flower up` "
        f"starts, `{name} = …` under [node] in federation.toml."
    )


def _with_nested(error: BaseException) -> str:
    """The message for the name of a nested option without what is before it; empty for any other error."""
    from cyclopts import UnknownOptionError

    if not isinstance(error, UnknownOptionError):
        return ""
    name = (error.token.keyword or error.token.value).removeprefix("--").partition("=")[0]
    known = (own for argument in error.argument_collection for own in argument.names if own.endswith(f".{name}"))
    names = sorted(known, key=lambda own: own.count("."))
    return f"Unknown option: --{name}. Did you mean {' or '.join(names[:3])}?" if names else ""


def _hint(line: str) -> str:
    """A hint on rejected replies, from the reasons in the message; empty if there is none to give."""
    if "not finite" in line:
        return " The models probably diverge: try a smaller --local.lr."
    if "too large" in line:
        return " The models diverge, or the data have very large values: try a smaller --local.lr, or rescale the data."
    return ""
