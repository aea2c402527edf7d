import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

import corymb
from corymb.cli import Exit
from corymb.cli.app import COMMANDS, explain, main
from corymb.cli.run import USAGE
from corymb.core.federation import TooFewReplies
from corymb.settings import InvalidInput
from tests.runs import small

ENVIRONMENT = {**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with the user's data in `clinic`, and the user's module."""
    small.folder(tmp_path / "clinic")
    (tmp_path / "corymb_own_nets.py").write_text(
        "from torch import nn\n"
        "def network():\n    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))\n"
        "def wide():\n    return nn.Linear(2, 7)\n"
        "def narrow():\n    return nn.Linear(9, 2)\n"
        "def broken():\n    raise RuntimeError('my own mistake')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    yield tmp_path
    sys.modules.pop("corymb_own_nets", None)


def run_json(line: str, capsys) -> dict:
    code = main([*shlex.split(line), "--json", "-q"])
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    return json.loads(printed.out)


OWN = "run clinic ifca --k 2 --label outcome --rounds 3"


def test_json_is_one_object_on_stdout(here, capsys):
    result = run_json(OWN, capsys)
    wanted = ["labels", "metrics", "not_scored", "clusters", "ledger", "rejected", "seconds", "config", "seed"]
    assert list(result) == [*wanted, "folder"]
    assert result["not_scored"] == []
    assert list(result["labels"]) == [f"hospital-{i}" for i in range(6)]
    assert 0 < result["metrics"]["test_accuracy"] <= 1
    assert result["ledger"]["rounds"] == 6  # three, and the three that standardise
    assert result["rejected"] == []
    assert result["config"].items() >= {"data": "clinic", "algorithm": "ifca", "k": 2, "label": "outcome"}.items()
    assert isinstance(result["clusters"], int)


def test_progress_goes_to_stderr_a_line_a_round(here, capsys):
    assert main([*shlex.split(OWN), "--json"]) == 0
    printed = capsys.readouterr()
    assert [line.split()[:2] for line in printed.err.splitlines()] == [["round", f"{t}/3"] for t in (1, 2, 3)]
    assert len(printed.out.splitlines()) == 1


def test_without_json_there_is_a_table_and_what_to_do_next(here, capsys):
    assert main([*shlex.split(OWN), "-q"]) == 0
    text = capsys.readouterr().out
    assert "hospital-0" in text
    assert "test score" in text
    assert "balanced accuracy" in text
    assert "corymb run clinic fedavg --rounds 3 --label outcome" in text
    assert "runs/clinic-ifca-1" in text


def test_settings_are_spelled_as_in_python(here, capsys):
    line = f"{OWN} --local.lr 0.5 --local.weight_decay 0.01 --participants 0.5 --averaging models --no-repair --seed 3"
    config = run_json(line, capsys)["config"]
    assert config["local"]["lr"] == 0.5
    assert config["local"]["weight_decay"] == 0.01
    assert config["local"]["steps"] == 5  # what suits a table, though other fields of `local` were given
    assert config["participants"] == 0.5
    assert config["repair"] is False
    assert config["seed"] == 3
    assert run_json(line.replace("weight_decay", "weight-decay").replace("no-r", "no_r"), capsys)["config"] == config


def test_a_number_of_participants_is_no_fraction(here, capsys):
    config = run_json(f"{OWN} --participants 3", capsys)["config"]
    assert config["participants"] == 3
    assert isinstance(config["participants"], int)


def test_a_file_of_settings_and_the_command_line_wins(here, capsys):
    (here / "settings.toml").write_text(
        'k = 3\nrounds = 2\nlabel = "outcome"\nseed = 5\n[local]\nlr = 0.7\nsteps = 2\n'
    )
    config = run_json("run clinic ifca --config settings.toml --k 2 --local.steps 4", capsys)["config"]
    assert (config["k"], config["rounds"], config["seed"]) == (2, 2, 5)
    assert (config["local"]["lr"], config["local"]["steps"]) == (0.7, 4)


def test_a_file_may_name_data_and_algorithm(here, capsys):
    (here / "settings.toml").write_text('data = "clinic"\nalgorithm = "fedavg"\nrounds = 1\nlabel = "outcome"\n')
    assert run_json("run --config settings.toml", capsys)["config"]["algorithm"] == "fedavg"


def test_a_kept_run_can_be_loaded_and_run_again(here, capsys):
    first = run_json(f"{OWN} --model corymb_own_nets:network --out runs/one", capsys)
    run = corymb.Run.load(here / "runs" / "one", model="corymb_own_nets:network")
    assert run.labels == first["labels"]
    assert set(run.predict(small.arrays()[0][:4], client="hospital-1")) <= {"ill", "well"}
    again = run_json("run --config runs/one/config.toml --model corymb_own_nets:network", capsys)
    for part in ("labels", "metrics", "ledger", "config"):
        assert again[part] == first[part]


def test_settings_of_a_run_on_other_data_of_the_same_name_are_said_to_be(here, capsys):
    corymb.fit(corymb.FedAvg(rounds=1), corymb.datasets.digits(clients=8)).save("runs/few")
    said = "runs/few/config.toml was written by a run on other data than 'digits' is here"
    for line, other in (("", True), ("--seed 1", False), ("digits", False)):
        assert main(f"run {line} --config runs/few/config.toml --out runs/again{len(line)} -q".split()) == 0
        assert (said in capsys.readouterr().err) == other
    assert main(["run", "--config", "runs/again0/config.toml", "-q"]) == 0
    assert "other data" not in capsys.readouterr().err
    (here / "own.toml").write_text('data = "digits"\nalgorithm = "fedavg"\nrounds = 1\nrecord = "none"\n')
    assert main(["run", "--config", "own.toml", "-q"]) == 0


def test_one_table_with_a_column_of_clients(here, capsys):
    x, y, client = small.prices(clients=4)
    rows = [f"town-{c},{a},{d},{p}" for c, (a, d), p in zip(client, x, y, strict=True)]
    (here / "prices.csv").write_text("\n".join(["town,area,distance,price", *rows]))
    result = run_json("run prices.csv ifca --k 2 --client town --label price --rounds 3 --test 0.3", capsys)
    assert list(result["labels"]) == ["town-0", "town-1", "town-2", "town-3"]
    assert "test_squared_error" in result["metrics"]


def test_mixed_regression_has_its_metrics(here, capsys):
    metrics = run_json("run mixed-regression-ifca ifca --k 2 --rounds 2", capsys)["metrics"]
    assert metrics.keys() >= {"parameter_error", "oracle_error", "ari", "misclustering", "test_squared_error"}


def csv(rows: str, header: str = "a,b,label") -> str:
    return "\n".join([header, *rows.split(), ""])


GOOD = "1,2,0 2,3,1 3,1,0 4,4,1 5,5,0 2,2,1"
BAD_FILES = {
    "empty/x.csv": csv(GOOD),
    "empty/y.csv": csv(""),
    "nan/x.csv": csv(GOOD),
    "nan/y.csv": csv("1,nan,0 2,2,1"),
    "negative/x.csv": csv("1,2,-1 2,2,1"),
    "words/x.csv": csv("1,tall,0 2,2,1"),
    "full/something.txt": "",
    "broken.toml": "k = = 3",
    "type.toml": "k = 'three'",
    "unknown.toml": "k = 3\nrestart = 4",
    "option.toml": "k = 2\nthreads = 'all'",
    "plain.txt": "",
}
BAD = {
    "too few words": ("compare runs/a", "corymb compare needs B, as in corymb compare runs/ifca runs/fedavg"),
    "too few words, two": ("new algorithm", "needs NAME, as in corymb new algorithm my-average. More:"),
    "too few words, group": ("data show", "corymb data show needs DATA, as in corymb data show digits"),
    "k below 1": ("run clinic ifca --k 0 --label outcome", "k must be at least 1"),
    "k above clients": ("run clinic ifca --k 7 --label outcome", "k=7 exceeds the 6 clients"),
    "empty client": ("run empty ifca --k 1", "y.csv has no rows"),
    "nan": ("run nan ifca --k 1", "column 'b': 1 missing cell in"),
    "text in a column": ("run words ifca --k 1", "column 'b': x.csv, row 2, client 'x', is 'tall'"),
    "unknown data": ("run digit ifca --k 1", "Did you mean 'digits'?"),
    "unknown algorithm": ("run clinic ifac --k 1", "Did you mean 'ifca'?"),
    "unknown setting": ("run clinic ifca --k 1 --restart 5", "Did you mean --restarts?"),
    "unknown nested setting": ("run clinic ifca --k 1 --local.step 5", "Did you mean --local.steps?"),
    "unknown option": ("run clinic ifca --k 1 --sede 5", "Did you mean --seed?"),
    "wide model": (f"{OWN} --model corymb_own_nets:wide", "shape [5, 7], wanted [5, 2]"),
    "wide model in a loop": (f"{OWN} --model corymb_own_nets:wide --engine loop", "wanted [16, 2]"),
    "narrow model": (f"{OWN} --model corymb_own_nets:narrow", "The model cannot take this data"),
    "unknown model": (f"{OWN} --model mlpp", "Did you mean 'mlp'?"),
    "unknown function": (f"{OWN} --model corymb_own_nets:netwrk", "Did you mean 'network'?"),
    "unknown module": (f"{OWN} --model corymb_own_nest:network", "no module 'corymb_own_nest'"),
    "not a folder": ("run ./nowhere/at/all ifca --k 1", "does not exist"),
    "a file of no known kind": ("run plain.txt ifca --k 1", "only npz, csv, tsv, jsonl (also .gz) and parquet"),
    "no such column": ("run clinic ifca --k 1", "no column 'label'"),
    "out not empty": (f"{OWN} --out full", "full is not empty"),
    "out is a file": (f"{OWN} --out plain.txt", "plain.txt is a file"),
    "broken toml": ("run clinic ifca --config broken.toml", "broken.toml cannot be read as TOML"),
    "no toml": ("run clinic ifca --config nothing.toml", "nothing.toml cannot be read"),
    "toml that is no text": ("run clinic ifca --config data.bin", "data.bin cannot be read as TOML"),
    "type in toml": ("run clinic ifca --label outcome --config type.toml", "k: "),
    "name in toml": ("run clinic ifca --label outcome --config unknown.toml", "Did you mean 'restarts'?"),
    "option in toml": ("run clinic ifca --label outcome --config option.toml", "threads: "),
    "text for a number": (f"{OWN} --restarts many", "--restarts"),
    "fraction for a whole number": (f"{OWN} --restarts 2.5", "--restarts"),
    "choice": (f"{OWN} --averaging medians", "'models' or 'gradients'"),
    "range": (f"{OWN} --local.lr -1", "local: lr must be positive and at most 1e+18, got -1.0."),
    "steps and epochs": (f"{OWN} --local.steps 2 --local.epochs 2", "Give steps or epochs, not both."),
    "engine": (f"{OWN} --engine lop", "'loop', 'flower' or 'ray'"),
    "device": (f"{OWN} --device gpu", "'auto'"),
    "seed": (f"{OWN} --seed x", "Invalid value for --seed: wanted a whole number (got 'x')."),
    "seed and seeds": (f"{OWN} --seed 3 --seeds 0-1", "--seeds gives the seed of every run: leave out --seed."),
    "k that is no number": ("run clinic ifca --k four", "--k: wanted a whole number or 'auto' (got 'four')."),
    "nodes in one process": (f"{OWN} --nodes 3", "runs all clients in this process: leave out nodes, or give another"),
    "an option of no command": ("--versoin", "Unknown option: --versoin. Did you mean '--version'?"),
    "memory": (f"{OWN} --memory lots", "--memory"),
    "share to test on": (f"{OWN} --test 1.5", "test=1.5"),
    "task": (f"{OWN} --task regression", "regression needs numbers"),
    "no k": ("run clinic ifca --label outcome", "ifca needs k"),
    "more clusters than clients": (
        "run clinic ifca --k 81 --label outcome",
        "k=81 exceeds the 6 clients of 'clinic'",
    ),
    "no truth": ("run clinic oracle --label outcome", "true clusters of 'clinic' are unknown"),
    "no algorithm": ("run clinic", "corymb run DATA ALGORITHM"),
    "no data": ("run ifca --k 2", "corymb run DATA ALGORITHM"),
    "nothing at all": ("run", "corymb run DATA ALGORITHM"),
    "the wrong way round": ("run ifca clinic --k 2", "The data come before the algorithm: corymb run clinic ifca"),
    "no value": ("run clinic ifca --k", "--k needs a value."),
    "a word too many": (f"{OWN} again", "again"),
    "options of one's own for named data": ("run digits ifca --k 2 --label y", "label"),
    "unknown command": ("rnu", "There is no command 'rnu'. Did you mean 'run'?"),
    "unknown command of two words": ("data shoow digits", "There is no command 'data shoow'. Did you mean 'show'?"),
    "unknown second word": ("new algo x", "There is no command 'new algo'."),
    "unknown list": ("list dat", 'Did you mean "data"?'),
    "unknown data to show": ("data show digit", "Did you mean 'digits'?"),
}


@pytest.mark.parametrize(("line", "what"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2(line, what, here, capsys):
    for name, text in BAD_FILES.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    (here / "data.bin").write_bytes(b"\xff\xfe\x00")
    code = main(shlex.split(line))
    printed = capsys.readouterr()
    assert code == Exit.BAD_INPUT
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith("corymb: ")
    assert what in printed.err
    assert printed.out == ""


def test_too_few_replies_have_a_code_and_a_hint(here, capsys):
    code = main(shlex.split(f"{OWN} --local.lr 1e18 -q"))
    assert code == Exit.TOO_FEW_REPLIES
    assert "try a smaller --local.lr" in capsys.readouterr().err


def test_a_model_that_raises_is_a_line_too_and_debug_shows_where(here, capsys):
    line = shlex.split(f"{OWN} --model corymb_own_nets:broken")
    assert main(line) == Exit.BAD_INPUT
    printed = capsys.readouterr().err
    assert "RuntimeError: my own mistake" in printed
    assert len(printed.splitlines()) == 1
    with pytest.raises(InvalidInput, match="my own mistake") as raised:
        main([*line, "--debug"])
    assert isinstance(raised.value.__cause__, RuntimeError)  # whose traceback shows where


def test_an_unexpected_error_is_one_line(here, capsys, monkeypatch):
    monkeypatch.setattr("corymb.cli.perform.start_run", lambda *args, **options: 1 / 0)
    assert main(shlex.split(f"{OWN} -q")) == Exit.BUG
    printed = capsys.readouterr().err
    assert "ZeroDivisionError: division by zero (unexpected; --debug shows where)" in printed
    assert len(printed.splitlines()) == 1


def test_data_that_cannot_be_fetched_have_a_code(here, capsys, monkeypatch):
    monkeypatch.setenv("CORYMB_DATA", str(here / "data"))
    (here / "data" / "mnist").mkdir(parents=True)
    (here / "data" / "mnist" / "mnist.npz").write_bytes(b"nothing")
    assert main(["data", "show", "mnist-rotated"]) == Exit.FILES
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (PermissionError("no"), 4), (TooFewReplies("few"), 3), (ZeroDivisionError(), 1)],
)
def test_every_error_has_a_code_and_a_line(error, code):
    got, line = explain(error)
    assert got == code
    assert line
    assert "\n" not in line


def test_ctrl_c_shows_the_result_so_far(here, capsys, monkeypatch):
    from corymb.runs import progress

    def press(self, row):
        if row["clock"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress.RoundLine, "__call__", press)
    code = main([*shlex.split(OWN), "--json"])
    printed = capsys.readouterr()
    assert code == Exit.INTERRUPTED
    assert json.loads(printed.out)["stopped"] == "interrupted"
    assert "stopped (interrupted) after 2 rounds" in printed.err


def test_lists_name_everything(capsys):
    for what, names in (("data", ["digits", "mixed-regression-ifca"]), ("algorithms", ["ifca"]), ("models", ["mlp"])):
        assert main(["list", what]) == 0
        printed = capsys.readouterr().out
        assert all(name in printed for name in names)


def test_the_doctor_runs_its_test(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "self-test vectorised on cpu: two rounds" in printed
    assert all(word in printed for word in ("python", "torch", "memory", "extra flower", "CORYMB_DATA"))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_three_examples(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert len(COMMANDS[command].examples) == 3
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(example in printed for example in COMMANDS[command].examples)


def test_help_of_an_algorithm_lists_its_settings(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["run", "digits", "ifca", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "Settings of ifca" in printed
    for text in ("--k", "--local.lr", "Step size", "--saving.stable_rounds", "--repair --no_repair", "--seed", "--out"):
        assert text in printed
    assert main(["run", "digits", "oracle", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "--inner.local.lr" in printed
    assert "--groups" not in printed  # comes from the data


def test_help_shows_the_defaults_of_nested_settings_and_the_short_groups_first(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["run", "digits", "ifca", "--help"]) == 0
    printed = capsys.readouterr().out
    for option, default in (("--local.steps", 10), ("--alone.steps", 100)):
        (line,) = [line for line in printed.splitlines() if f"{option} " in line]
        assert f"[default: {default}]" in line
    assert "chosen for the data instead" in " ".join(printed.split())  # those shown are not what a run uses
    wanted = ["Parameters", "Settings of ifca", "--local.…", "Your own data", "Output", "The run", "--alone.…"]
    groups = [line.split(" ─")[0].removeprefix("╭─ ") for line in printed.splitlines() if line.startswith("╭")]
    assert [group for group in groups if group in wanted] == wanted
    assert groups.index("--saving.…") > groups.index("The run")


WITHOUT_TORCH = [
    *("--help", "--version", "list algorithms", "run --help", "tune --help", "report --help", "doctor --help"),
    *("flower --help", "flower up --help", "new algorithm --help"),
    *("rnu", "data shoow", "run", "run digits", "run ifca digits", "run digits ifac", "tune", "report", "list dat"),
]
"""What says how a command is used, or that it is used wrongly before an algorithm is named."""


def test_help_and_refusals_come_without_torch():
    code = (
        "import sys; from corymb.cli.app import main\n"
        "for line in sys.argv[1:]:\n"
        "    main(line.split())\n"
        "    assert 'torch' not in sys.modules, line\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *WITHOUT_TORCH], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_command_in_a_process_of_its_own(tmp_path):
    """The exit code reaches the shell, and a real Ctrl-C stops cleanly."""
    bad = [sys.executable, "-m", "corymb", "run", "digits"]
    done = subprocess.run(bad, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"corymb: {USAGE}\n"
    line = "run mixed-regression-ifca ifca --k 2 --rounds 100000 --json"
    process = subprocess.Popen(
        [sys.executable, "-m", "corymb", *line.split(), "--out", str(tmp_path / "run")],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    process.stderr.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    printed, complaints = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(printed)["stopped"] == "interrupted"
    assert "stopped (interrupted)" in complaints.splitlines()[-1]


@pytest.mark.parametrize("buffered", [True, False])
def test_a_closed_pipe_is_not_an_error(buffered, tmp_path, monkeypatch, capsys):
    """As in `corymb predict RUN FILE | head -1`."""
    corymb.fit(corymb.FedAvg(rounds=1), small.arrays()).save(tmp_path / "run")
    read, write = os.pipe()
    os.close(read)
    written = os.fdopen(write, "wb") if buffered else io.FileIO(write, "w")  # as it is with PYTHONUNBUFFERED
    with io.TextIOWrapper(written, write_through=not buffered) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["export", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--k 4 --repair false", "'false' belongs to no option. A switch takes no value: --guard turns it on"),
        ("--k 4 more words", "'more', 'words' belong to no option."),
        ("--k 4 --lr 0.1", "Unknown option: --lr. Did you mean --local.lr or --alone.lr or "),
        ("--k 4 --clip=3", "Invalid"),
        ("--k 4 --step=3", "Unknown option: --step. Did you mean"),
    ],
)
def test_what_belongs_to_no_option_is_said_with_what_was_meant(words, said, capsys):
    assert main(["run", "digits", "ifca", *words.split(), "--rounds", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line or said == "Invalid"


def test_help_that_is_not_read_to_its_end_is_no_error():
    command = [sys.executable, "-m", "corymb", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_a_process_without_streams_works():
    """As in `corymb … >&-`: the command did its work and then failed to flush what does not exist."""
    for closed in (">&-", ">&- 2>&-"):
        done = subprocess.run(
            f'"{sys.executable}" -m corymb list data {closed}', shell=True, env=ENVIRONMENT, capture_output=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("package", ["httpx", "flwr"])
def test_without_flower_a_federation_says_what_to_install(package, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("corymb.engines.flower.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    line = "run federation ifca --k 2 --engine flower --address 127.0.0.1:9"
    assert main(line.split()) == 2
    assert capsys.readouterr().err == "corymb: Flower is not installed: pip install 'corymb[flower]'.\n"
