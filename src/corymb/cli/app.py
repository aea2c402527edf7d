"""The command line. Results go to stdout, progress and error messages to stderr.

Commands are modules of their own, imported when they are called, so that help and version appear at once.
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
from corymb.settings import InvalidInput, did_you_mean, printable, require, said

LONGEST = 900
"""Characters of a message."""
HELP = "Clustered federated learning: find the groups of clients and train one model a group."


class Command(NamedTuple):
    """The function of a command, its help, and three examples."""

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
        "Should I cluster at all? Compare one model, clusters and training alone on held-out training examples: "
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
        "For a run that has ended, print its result again.",
        (
            "corymb resume runs/digits-ifca-1",
            "corymb resume runs/digits-ifca-1 --rounds 200",
            "corymb resume runs/mine --max_seconds 600 -q",
        ),
    ),
    "tune": Command(
        "corymb.cli.tuning.tune:tune_any",
        "Search settings of an algorithm by trial, judged on held-out training examples: "
        "`corymb tune DATA ALGORITHM [--param NAME=RANGE ...]`.",
        (
            "corymb tune digits ifca --k 4 --trials 20",
            "corymb tune digits fedavg --param local.lr=log:0.001:1 --param local.steps=int:1:20",
            "corymb tune digits ifca --trials 50 --out studies/digits  # again, to go on",
        ),
    ),
    "report": Command(
        "corymb.cli.report:report",
        "Write a report on a run, `corymb report RUN [RUN ...]`: clusters, quality, stability, cost.",
        (
            "corymb report runs/mine",
            "corymb report runs/ifca runs/fedavg runs/alone --out ifca.html",
            "corymb report runs/mine --format png",
        ),
    ),
    "compare": Command(
        "corymb.cli.compare:compare_runs",
        "Compare two runs, or two groups of runs that differ in their seeds.",
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
        "Verify that the audit log of a run is as it was written: `corymb audit RUN`.",
        ("corymb audit runs/mine", "corymb audit runs/mine --json", "corymb audit runs/digits-ifca-1"),
    ),
    "assign": Command(
        "corymb.cli.assign:assign_file",
        "Find the cluster of a new client, or that none fits: `corymb assign RUN FILE`.",
        (
            "corymb assign runs/digits-ifca-1 newcomer.npz",
            "corymb assign runs/mine hospital-9.csv --json",
            "corymb assign runs/mine newcomer.parquet --model mymodule:network",
        ),
    ),
    "predict": Command(
        "corymb.cli.predict:predict_file",
        "Predict with the model of a client or of a cluster: `corymb predict RUN FILE`.",
        (
            "corymb predict runs/mine patients.csv --client hospital-3",
            "corymb predict runs/mine patients.parquet --cluster 1 --out predictions.csv",
            "corymb predict runs/digits-ifca-1 pictures.npz --cluster 0 --json",
        ),
    ),
    "export": Command(
        "corymb.cli.export:export",
        "Write a cluster's model to a file that needs no Corymb: `corymb export RUN --cluster J`.",
        (
            "corymb export runs/digits-ifca-1 --cluster 0",
            "corymb export runs/mine --client hospital-3 --format onnx --out model.onnx",
            "corymb export runs/mine --cluster 0 --model mymodule:network",
        ),
    ),
    "new": Command(
        "corymb.cli.new.algorithm:new_algorithm",
        "Write an algorithm to start from, with its test: `corymb new algorithm NAME`. Both run as they are.",
        (
            "corymb new algorithm my-average",
            "corymb new algorithm my-average --folder src",
            "corymb run digits my_average:MyAverage --k 4",
        ),
    ),
    "list": Command(
        "corymb.cli.list:show_list",
        "List the names of data, algorithms, models or faults.",
        ("corymb list data", "corymb list algorithms", "corymb list faults"),
    ),
    "completion": Command(
        "corymb.cli.shell.completion:completion",
        "Print a script that completes commands and options in your shell: `corymb completion bash|zsh|fish`.",
        (
            "corymb completion bash > ~/.local/share/bash-completion/completions/corymb",
            "corymb completion zsh > ~/.zfunc/_corymb",
            "corymb completion fish > ~/.config/fish/completions/corymb.fish",
        ),
    ),
    "doctor": Command(
        "corymb.cli.doctor:doctor",
        "Show what this machine has and run a small test on it.",
        ("corymb doctor", "CORYMB_DATA=/data corymb doctor", "NO_COLOR=1 corymb doctor > machine.txt"),
    ),
}

DATA = {
    "show": Command(
        "corymb.cli.dataset.show:show",
        "Show data, `corymb data show DATA`: clients, sizes, labels, and pictures if there are any.",
        (
            "corymb data show digits",
            "corymb data show mydata/ --label species",
            "corymb data show table.csv --client hospital --label outcome --task regression",
        ),
    ),
    "get": Command(
        "corymb.cli.dataset.get:get",
        "Download data sets, `corymb data get NAME`, and compare them with their checksums.",
        (
            "corymb data get cifar-rotated",
            "corymb data get mnist-rotated shakespeare",
            "CORYMB_CACHE=/data/corymb corymb data get femnist",
        ),
    ),
}
"""Commands of `corymb data`."""

WITHIN = {"new": "algorithm"}
"""Commands of two words, and the second word."""

FLOWER = {
    "new": Command(
        "corymb.cli.flower.new:new",
        "Make a folder for a federation: `corymb flower new NAME`.",
        ("corymb flower new myfed", "corymb flower new hospitals", "corymb flower new federations/banks"),
    ),
    "up": Command(
        "corymb.cli.flower.up:up",
        "Start a SuperLink and nodes on this machine.",
        ("corymb flower up --nodes 3", "corymb flower up --nodes 3 --tls", "corymb flower up --nodes 0 --tls"),
    ),
    "node": Command(
        "corymb.cli.flower.node:node",
        "Run one node, where its data are: `corymb flower node NAME --superlink HOST:PORT --data MODULE:FUNCTION`.",
        (
            "corymb flower node site-a --superlink 10.0.0.1:8000 --data myfed.data:clients --state /var/corymb",
            "corymb flower node site-a --superlink 10.0.0.1:8000 --data myfed.data:clients --state s --allow myfed",
            "corymb flower node site-a --superlink 10.0.0.1:8000 --data d:f --state s --ca ca.pem --key site-a",
        ),
    ),
    "run": Command(
        "corymb.cli.flower.run:run",
        "Run the federation's algorithm on its nodes, and write the report.",
        ("corymb flower run", "corymb flower run --seed 3 --out runs/three", "corymb flower run --json -q"),
    ),
    "status": Command(
        "corymb.cli.flower.up:status",
        "Show the federation's processes and how many nodes are online.",
        ("corymb flower status", "corymb flower status --folder myfed", "watch corymb flower status"),
    ),
    "down": Command(
        "corymb.cli.flower.up:down",
        "End the federation's processes.",
        ("corymb flower down", "corymb flower down --folder myfed", "corymb flower down && rm -r .federation"),
    ),
    "doctor": Command(
        "corymb.cli.flower.doctor:doctor",
        "Check what a federation needs.",
        ("corymb flower doctor", "corymb flower doctor --echo", "corymb flower doctor --folder myfed"),
    ),
}
"""Commands of `corymb flower`."""

GROUPS = {
    "data": ("Get data sets, and look at them.", DATA),
    "flower": ("A federation of nodes that hold their own data, on Flower.", FLOWER),
}
"""Commands that are followed by one of several."""


def main(argv: Sequence[str] | None = None, *, loaded: Callable[[], object] = lambda: None) -> int:
    """Run a command and return its exit code. An error is one line on stderr; `--debug` gives the traceback.

    `loaded` is called when the command's modules have been imported, before it is carried out.
    """
    # Waiting threads that spin make a busy machine ten times slower. OpenMP reads this when torch is imported.
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
        sys.stdout.flush()  # here, where it can be explained if it cannot be written
        return int(code or Exit.OK)
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return Exit.OK
        code, line = explain(error)
        print(f"corymb: {printable(line)[:LONGEST]}", file=sys.stderr)
        return code


def _check_known(tokens: Sequence[str]) -> None:
    """Refuse a command that there is not. Cyclopts would import all of them first, to list them."""
    first, second = [*(token for token in tokens if token != "--debug"), "", ""][:2]
    within: Collection[str] = GROUPS[first][1] if first in GROUPS else [WITHIN[first]] if first in WITHIN else ()
    for word, name, known in ((first, first, [*COMMANDS, *GROUPS]), (second, f"{first} {second}", within)):
        there = word in known or not known or word.startswith("-") or not word
        require(there, f"There is no command {name!r}. {did_you_mean(word, known)}")


def _nobody_reads() -> bool:
    """Whether whoever read our output has left, as `head` does: then nothing is wrong, and there is nothing to say."""
    try:
        sys.stdout.flush()
        left = _has_left(sys.stdout.fileno())
    except BrokenPipeError:
        left = True
    if left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it ends
    return left


def _has_left(pipe: int) -> bool:
    """Whether a pipe has no reader: a flush does not tell where nothing is buffered (PYTHONUNBUFFERED)."""
    if not hasattr(select, "poll"):  # Windows
        return False
    asked = select.poll()
    asked.register(pipe, 0)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def make_app(tokens: Sequence[str] = ()) -> Any:
    """The commands; those whose options depend on an algorithm have them if `tokens` name it."""
    from cyclopts import App, Parameter

    spelled = Parameter(name_transform=lambda name: name, negative_bool=())
    first = tuple(command.examples[0] for command in COMMANDS.values())
    app = App(
        name="corymb",
        help=HELP,
        version=__version__,
        default_parameter=spelled,
        help_epilogue=_epilogue(first),
        suppress_keyboard_interrupt=False,  # else Ctrl-C ends the process without a word
    )
    for name, command in COMMANDS.items():
        place: Any = command.place
        if name in ("run", "tune") and name == next(iter(tokens), ""):  # its settings depend on the algorithm
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
            group.command(command.place, name=second, help=command.help, help_epilogue=_epilogue(command.examples))
        app.command(group)
    return app


def _epilogue(examples: Sequence[str]) -> str:
    return "Examples:\n\n" + "\n\n".join(f"`{example}`" for example in examples) + "\n\nMore: docs/command-line.md"


def _spelled_as_in_python(token: str) -> str:
    """`--evaluate-every` is `--evaluate_every`."""
    if not token.startswith("--"):
        return token
    name, equals, value = token.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}"


def explain(error: BaseException) -> tuple[Exit, str]:
    """The exit code for an error, and one line about it."""
    from cyclopts import CycloptsError

    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED, said(error) or "Stopped before the first round was complete: there is no result."
    text = _missing(error) or said(error).strip()
    line = " ".join(text.split()) or type(error).__name__
    if isinstance(error, (InvalidInput, CycloptsError)):
        return Exit.BAD_INPUT, line
    if isinstance(error, OSError):
        return Exit.FILES, line
    if "TooFewReplies" in {kind.__name__ for kind in type(error).__mro__}:  # by name: its module would import torch
        return Exit.TOO_FEW_REPLIES, f"{line}{'' if line.endswith('.') else '.'}{_hint(line)}"
    return Exit.BUG, f"{type(error).__name__}: {line} (unexpected; --debug shows where)"


def _missing(error: BaseException) -> str:
    """What to say where a command was given too few words; empty for any other error."""
    from cyclopts import MissingArgumentError

    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return ""
    words = tuple(error.command_chain or ())
    if error.keyword is not None:
        return f"{error.keyword} wants a value."
    table = GROUPS[words[0]][1] if words and words[0] in GROUPS else COMMANDS
    command = next((table[word] for word in reversed(words) if word in table), None)
    such = "" if command is None else f", as in {command.examples[0]}"
    name = error.argument.name.removeprefix("--").upper()
    return f"corymb {' '.join(words)} lacks {name}{such}. More: corymb {' '.join(words)} --help."


def _hint(line: str) -> str:
    """What to do about replies that were refused for these reasons; empty where there is no telling."""
    if "not finite" in line:
        return " Diverging models cause this: try a smaller --local.lr."
    if "too large" in line:
        return " Diverging models cause this, or data as large: try a smaller --local.lr, or larger units."
    return ""
