"""Command lines, TOML files, models and run folders that cannot be used; each is a list of arguments, made in a folder.

`DATA` in an argument stands for a small file of data, `RUN` for the folder of a run that has ended.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.cli.malformed.files import ROWS

Arguments = Callable[[Path, Path], list[str]]
"""From a folder of its own and the folder of a good run to the arguments of `corymb`."""
FAST = ["--rounds", "1", "-q"]


def line(*words):
    """A command line in which DATA and RUN stand for paths."""

    def make(folder, run):
        (folder / "data.csv").write_text(ROWS)
        places = {"DATA": str(folder / "data.csv"), "RUN": str(run), "HERE": str(folder)}
        return [places.get(word, word) for word in words]

    return make


def _lines():
    yield "nothing to run", line("run")
    yield "no algorithm", line("run", "DATA")
    yield "an unknown algorithm", line("run", "DATA", "ifac")
    yield "an unknown command", line("rnu", "DATA", "fedavg")
    yield "an unknown option", line("run", "DATA", "fedavg", "--nosuch", "3")
    yield "an option without its value", line("run", "DATA", "fedavg", "--rounds")
    yield "a third word", line("run", "DATA", "fedavg", "more")
    numbers = ("x", "-1", "0", "nan", "1.5", "", "1e9999")
    for name in ("rounds", "local.steps", "local.batch", "local.epochs", "participants"):
        for value in numbers:
            if (name, value) not in (("participants", "1.5"), ("local.steps", "0")):
                yield f"--{name} {value or 'of nothing'}", line("run", "DATA", "fedavg", f"--{name}={value}", "-q")
    for name in ("steps", "batch", "epochs"):
        yield f"--local.{name} of 21 digits", line("run", "DATA", "fedavg", f"--local.{name}={10**20}", *FAST)
    yield "more participants than one whole", line("run", "DATA", "fedavg", "--participants=1.5", *FAST)
    for value in ("x", "-1", "0", "nan", "inf", "-inf", "1e400", ""):
        yield f"--local.lr {value or 'of nothing'}", line("run", "DATA", "fedavg", f"--local.lr={value}", *FAST)
    for value in ("x", "-1", "nan", "inf", "1e308", "1e400"):
        yield f"--local.proximal {value}", line("run", "DATA", "fedavg", f"--local.proximal={value}", *FAST)
    for value in ("x", "-1", "nan", "inf"):
        yield f"--local.momentum {value}", line("run", "DATA", "fedavg", f"--local.momentum={value}", *FAST)
        yield f"--local.decay {value}", line("run", "DATA", "fedavg", f"--local.decay={value}", *FAST)
        yield f"--mu {value}", line("run", "DATA", "fedprox", f"--mu={value}", *FAST)
        yield f"--clip {value}", line("run", "DATA", "fedavg", f"--clip={value}", *FAST)
        yield f"--max_seconds {value}", line("run", "DATA", "fedavg", f"--max_seconds={value}", *FAST)
    yield "an unknown optimiser", line("run", "DATA", "fedavg", "--local.optimiser", "lbfgs", *FAST)
    yield "an unknown reduction", line("run", "DATA", "fedavg", "--aggregate", "average", *FAST)
    for k in ("0", "-1", "x", "1.5", "999", "nan"):
        yield f"--k {k}", line("run", "DATA", "ifca", f"--k={k}", *FAST)
        yield f"one-shot with --k {k}", line("run", "DATA", "one-shot", f"--k={k}", "-q")
    for value in ("x", "-1", "0", "nan", "inf"):
        yield f"--soft {value}", line("run", "DATA", "ifca", "--k=2", f"--soft={value}", *FAST)
        yield f"--threshold {value}", line("run", "DATA", "sr-fca", f"--threshold={value}", "--rounds=1", "-q")
    for value in ("-0.1", "0.5", "nan", "x"):
        yield f"--trim {value}", line("run", "DATA", "sr-fca", f"--trim={value}", "--rounds=1", "-q")
    yield "restarts and k by evidence", line("run", "DATA", "ifca", "--k=auto", "--restarts=2", *FAST)
    yield "a shared layer that is not there", line("run", "DATA", "ifca", "--k=2", "--shared", "nosuch*", *FAST)
    yield "an unknown start", line("run", "DATA", "ifca", "--k=2", "--init", "guess", *FAST)
    for name, values in {
        "seed": ("x", "1.5", "nan", "-1"),
        "engine": ("fast", ""),
        "device": ("tpu", "cuda:99", "cpu:x"),
        "precision": ("float8", "double"),
        "threads": ("0", "-3", "x", "1000000000"),
        "memory": ("0", "-5", "lots"),
        "kernel": ("quick",),
        "evaluate_every": ("-1", "x"),
        "checkpoint_every": ("0", "-1", "x"),
        "min_replies": ("0", "-1", "x", "99"),
        "dropout": ("maybe",),
        "label_smoothing": ("x", "-0.1", "1", "nan", "inf"),
        "class_weight": ("heavy", "yes=x", "=3", "0=-1", "0=nan"),
        "metric": ("nosuch", "r2"),
        "until": ("tomorrow",),
        "task": ("clustering",),
        "scale": ("log",),
        "missing": ("ignore",),
        "test": ("-0.1", "1.0", "2", "x", "nan"),
        "label": ("nosuch",),
        "client": ("nosuch",),
        "features": ("nosuch", "a,nosuch"),
        "read_limit": ("0", "-1", "x", "10"),
        "seeds": ("x", "3-1", "", "1-", "1--2", "1,1", "0-1000000000000"),
        "model": (
            "nosuch",
            "os",
            ":",
            "os:",
            ":make",
            "os:nosuch",
            "nosuchmodule:make",
            "a b:c",
            "os:system",
            "os:path",
            "json:dumps",
            "sys:exit",
            "builtins:print",
            "math:pi",
            "torch:zeros",
            "a:b:c",
            "..x:y",
        ),
    }.items():
        for value in values:
            yield (
                f"--{name} {value or 'of nothing'}",
                line("run", "DATA", "fedavg", f"--{name}={value}", "--rounds=1", "-q"),
            )
    for command in ("resume", "report", "compare", "assign", "predict", "export", "audit"):
        for what, place in (("nothing", "HERE"), ("a file", "DATA"), ("no such path", "/nosuch/run")):
            words = {
                "compare": [place, place],
                "assign": [place, "DATA"],
                "predict": [place, "DATA", "--cluster", "0"],
                "export": [place, "--cluster", "0"],
            }.get(command, [place])
            yield f"{command} of {what}", line(command, *words)
        yield f"{command} without a run", line(command)
    yield "fewer rounds than before", line("resume", "RUN", "--rounds", "1")
    yield "a negative number of rounds", line("resume", "RUN", "--rounds", "-4")
    for cluster in ("9", "-1", "x"):
        yield f"export of cluster {cluster}", line("export", "RUN", f"--cluster={cluster}", "--out=HERE/m.pt2")
        yield f"predict with cluster {cluster}", line("predict", "RUN", "DATA", f"--cluster={cluster}")
    yield "predict with an unknown client", line("predict", "RUN", "DATA", "--client", "nobody")
    yield "an unknown format of report", line("report", "RUN", "--format", "doc")
    yield "a list of nothing known", line("list", "things")
    yield "tune with a range that is none", line("tune", "DATA", "fedavg", "--param", "local.lr=wide")
    yield "tune of an unknown setting", line("tune", "DATA", "fedavg", "--param", "nosuch=log:1:2")
    yield "reproduce an unknown paper", line("reproduce", "nosuch")


def config(text):
    """A run by a TOML file."""

    def make(folder, run):
        (folder / "data.csv").write_text(ROWS)
        written = text.replace("DATA", json.dumps(str(folder / "data.csv")))
        (folder / "config.toml").write_text(written, encoding="utf-8")
        return ["run", "--config", str(folder / "config.toml"), "-q", "--out", str(folder / "out")]

    return make


GOOD = 'data = DATA\nalgorithm = "fedavg"\nrounds = 1\n'


def _configs():
    yield "a config that is no TOML", config("data = = 3")
    yield "a config of nothing", config("")
    yield "a config that is JSON", config('{"data": "digits"}')
    yield "a config without data", config('algorithm = "fedavg"\n')
    yield "a config without an algorithm", config("data = DATA\n")
    yield "a config with an unknown algorithm", config('data = DATA\nalgorithm = "fedagv"\n')
    yield "a config with a number for an algorithm", config("data = DATA\nalgorithm = 3\n")
    yield "a config with a number for data", config('data = 3\nalgorithm = "fedavg"\n')
    for name in ("rounds", "seed", "evaluate_every", "checkpoint_every", "min_replies", "threads", "local"):
        for value in (
            "2024-01-01",
            "12:30:00",
            "2024-01-01T00:00:00Z",
            '"3"',
            "[1]",
            "{a = 1}",
            "1.5",
            "true",
            "nan",
            "inf",
        ):
            yield (
                f"a config with {name} = {value}",
                config(
                    f"{'' if name == 'rounds' else GOOD}{name} = {value}\n"
                    + ('data = DATA\nalgorithm = "fedavg"\n' if name == "rounds" else "")
                ),
            )
    for name in ("model", "device", "engine", "metric", "client", "label"):
        for value in ("3", "2024-01-01", "[]", "{}", "false", "nan"):
            yield f"a config with {name} = {value}", config(f"{GOOD}{name} = {value}\n")
    yield "a config with an unknown name", config(GOOD + "nosuch = 3\n")
    yield "a config with an unknown name inside", config(GOOD + "[local]\nnosuch = 3\n")
    yield "a config with a date inside", config(GOOD + "[local]\nlr = 2024-01-01\n")
    yield "a config with an infinite step", config(GOOD + "[local]\nlr = inf\n")
    yield "a config with a step of nan", config(GOOD + "[local]\nlr = nan\n")
    yield "a config with one name twice", config(GOOD + "rounds = 2\n")
    yield "a config that is a device", line("run", "--config", "/dev/zero")
    yield "a config that nests too deep", config(GOOD + "local = " + "{a = " * 2000 + "1" + "}" * 2000 + "\n")


def model(text, name="made:make"):
    """A run with a model from the user's module."""

    def make(folder, run):
        (folder / "data.csv").write_text(ROWS)
        (folder / f"{name.partition(':')[0]}.py").write_text(text)
        return ["run", str(folder / "data.csv"), "fedavg", "--rounds", "1", "--model", name, "-q"]

    return make


MODELS = {
    "a model module that exits": model("import sys\nsys.exit(0)\n"),
    "a model module that exits with a code": model("raise SystemExit(7)\n"),
    "a model module that is interrupted": model("raise KeyboardInterrupt\n"),
    "a model module that raises": model("1 / 0\n"),
    "a model module that is no Python": model("def make(:\n"),
    "a model module that lacks a package": model("import nosuchpackage\n"),
    "a model module that is not UTF-8": model("x = 1\n"),
    "a model function that exits": model("import sys\ndef make():\n    sys.exit(0)\n"),
    "a model function that raises": model("def make():\n    1 / 0\n"),
    "a model function that gives nothing": model("def make():\n    return None\n"),
    "a model function that gives a number": model("def make():\n    return 3\n"),
    "a model function that wants arguments": model("def make(a, b):\n    return None\n"),
    "a model that is a number": model("make = 3\n"),
    "a model that is text": model("make = 'mlp'\n"),
    "a model of another width": model("import torch\ndef make():\n    return torch.nn.Linear(77, 2)\n"),
    "a model with too few outputs": model("import torch\ndef make():\n    return torch.nn.Linear(2, 1)\n"),
    "a model without parameters": model("import torch\ndef make():\n    return torch.nn.ReLU()\n"),
    "a model whose forward raises": model(
        "import torch\nclass M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.Linear(2, 2)\n    def forward(self, x):\n        raise RuntimeError('no')\n"
        "def make():\n    return M()\n"
    ),
    "a model whose forward exits": model(
        "import sys, torch\nclass M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.Linear(2, 2)\n    def forward(self, x):\n        sys.exit(0)\n"
        "def make():\n    return M()\n"
    ),
}


def damaged(name, text, *command):
    """A command on the folder of a run in which one file is another."""

    def make(folder, run):
        shutil.copytree(run, folder / "run")
        (folder / "data.csv").write_text(ROWS)
        place = folder / "run" / name
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        places = {"RUN": str(folder / "run"), "DATA": str(folder / "data.csv"), "OUT": str(folder / "out.html")}
        return [places.get(word, word) for word in command or ("report", "RUN", "--out", "OUT")]

    return make


def _damaged():
    wrong = {
        "nothing": "",
        "no JSON": "{",
        "a list": "[]",
        "a number": "3",
        "null": "null",
        "text": '"a"',
        "other keys": "{}",
    }
    for name in ("result.json", "clients.json", "environment.json"):
        for what, text in wrong.items():
            yield f"{name} is {what}", damaged(name, text)
    for what, text in wrong.items():
        yield f"rounds.jsonl is {what}", damaged("rounds.jsonl", text + "\n")
        yield f"audit.jsonl is {what}", damaged("audit.jsonl", text + "\n", "audit", "RUN")
    rows = {
        "round of text": '{"clock": "a", "moves": 3}',
        "moves in a list": '{"clock": 1, "moves": [1]}',
        "a loss of text": '{"clock": 1, "train_loss": "low", "moves": {}}',
    }
    for what, text in rows.items():
        yield f"rounds.jsonl has a {what}", damaged("rounds.jsonl", text + "\n")
    for what, data in {
        "nothing": b"",
        "zeros": bytes(64),
        "a pickle": b"\x80\x04.",
        "text": b"hello",
        "a long header": (2**62).to_bytes(8, "little") + b"{}",
    }.items():
        for name in ("snapshot.safetensors", "losses.safetensors"):
            yield f"{name} is {what}", damaged(name, data)
        yield (
            f"snapshot.safetensors is {what}, for assign",
            damaged("snapshot.safetensors", data, "assign", "RUN", "DATA"),
        )
    for what, text in {
        "nothing": "",
        "no TOML": "= =",
        "other names": "a = 1",
        "a date": "rounds = 2024-01-01",
    }.items():
        yield f"config.toml is {what}", damaged("config.toml", text, "resume", "RUN", "--rounds", "9")


def edited(name, change, *command):
    """A command on the folder of a run in which the JSON of one file is changed."""

    def make(folder, run):
        value = json.loads((run / name).read_text())
        change(value)
        return damaged(name, json.dumps(value), *command)(folder, run)

    return make


def each_round(**values):
    """The rounds of a run with other values in each."""

    def make(folder, run):
        rows = [{**json.loads(row), **values} for row in (run / "rounds.jsonl").read_text().splitlines()]
        return damaged("rounds.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))(folder, run)

    return make


def header_of(change):
    """The safetensors file of a snapshot with another header, and the same numbers."""

    def make(folder, run):
        data = (run / "snapshot.safetensors").read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        change(header)
        text = json.dumps(header).encode()
        return damaged("snapshot.safetensors", len(text).to_bytes(8, "little") + text + data[end:])(folder, run)

    return make


def replaced(name, put, *command):
    """A command on the folder of a run in which a file or folder is something else."""

    def make(folder, run):
        arguments = damaged("config.toml", (run / "config.toml").read_bytes(), *command)(folder, run)
        place = folder / "run" / name
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        put(place)
        return arguments

    return make


def _private():
    private = ("fedavg", "--rounds=1", "-q", "--scale=none", "--privacy.least=1")
    for noise in ("1e-300", "1e300", "nan", "-1", "inf"):
        yield (
            f"privacy with noise {noise}",
            line("run", "DATA", *private, "--privacy.clip=1", f"--privacy.noise={noise}"),
        )
    for clip in ("1e38", "0", "nan", "-1"):
        yield f"privacy with clip {clip}", line("run", "DATA", *private, f"--privacy.clip={clip}", "--privacy.noise=1")
    yield "a folder with a null character", line("run", "DATA", "fedavg", *FAST, "--out", "a\0b")
    yield "data with a null character", line("run", "a\0b.csv", "fedavg", *FAST)


def _tampered():
    resume = ("resume", "RUN", "--rounds", "4", "-q")
    metrics = {"text": "<script>", "beyond all floats": 10**400, "in a dict": {"a": 1}, "true": True}
    for what, value in metrics.items():
        change = lambda result, value=value: result["metrics"].update(test_accuracy=value)  # noqa: E731
        yield f"a metric is {what}", edited("result.json", change)
        yield f"a metric is {what}, for compare", edited("result.json", change, "compare", "RUN", "RUN")
    names = {"numbers": [1, 2, 3], "twice the same": ["c0", "c0", "c2"], "too few": ["c0"], "too many": list("abcd")}
    for what, value in names.items():
        for command in (("report", "RUN", "--out", "OUT"), ("predict", "RUN", "DATA"), ("assign", "RUN", "DATA")):
            change = lambda clients, value=value: clients.update(names=value)  # noqa: E731
            yield f"names are {what}, for {command[0]}", edited("clients.json", change, *command)
    yield "a loss beyond all floats", each_round(train_loss=10**400)
    yield "a loss of NaN", each_round(train_loss=float("nan"))
    yield "bytes beyond all floats", each_round(bytes_up=10**400)
    yield "a move of a client that is not there", each_round(moves={"99": 0})
    yield "nested beyond all depth, as TOML", damaged("config.toml", "a = " + "[" * 5000 + "]" * 5000, *resume)
    deep = "[" * 100_000 + "]" * 100_000 + "\n"
    yield "nested beyond all depth, as a log", damaged("audit.jsonl", deep, "audit", "RUN")
    yield "nested beyond all depth, as rounds", damaged("rounds.jsonl", deep)
    headers = {
        "offsets that overlap": lambda header: header["1"].update(data_offsets=header["0"]["data_offsets"]),
        "offsets beyond the file": lambda header: header["0"].update(data_offsets=[0, 2**62]),
        "offsets below 0": lambda header: header["0"].update(data_offsets=[-8, 0]),
        "a shape beyond all memory": lambda header: header["0"].update(shape=[2**32] * 3),
        "a tensor too few": lambda header: header.pop("1"),
        "a class that it names": lambda header: header["__metadata__"].update(corymb='{"class": "os:system"}'),
        "a tree nested beyond all depth": lambda header: header["__metadata__"].update(corymb=deep),
    }
    for what, change in headers.items():
        yield f"safetensors with {what}", header_of(change)
    for name in ("rounds.jsonl", "audit.jsonl", "result.json", "clients.json"):
        yield f"{name} is a pipe", replaced(name, os.mkfifo)
        if name != "audit.jsonl":  # which a report does not read
            yield f"{name} is a folder", replaced(name, Path.mkdir)
        yield f"{name} is a link to nothing", replaced(name, lambda place: place.symlink_to("nosuch"))
    for name in ("memory", "checkpoints"):
        yield (
            f"{name} is a link to a folder",
            replaced(name, lambda place: place.symlink_to(place.parent.parent), *resume),
        )
    yield "the log is a pipe, for audit", replaced("audit.jsonl", os.mkfifo, "audit", "RUN")


LINES: dict[str, Arguments] = {
    **dict(_lines()),
    **dict(_configs()),
    **MODELS,
    **dict(_damaged()),
    **dict(_private()),
    **dict(_tampered()),
}
