"""`corymb flower` without Flower's processes: the scaffold, the folder, keys, processes."""

import importlib.util
import inspect
import json
import operator
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from typing import get_type_hints

import pytest

import corymb
from corymb.cli.app import FLOWER, main
from corymb.cli.flower import up as flower_up
from corymb.cli.flower import worker
from corymb.cli.flower.folder import free_port, make_secret, read_federation, split_address, state_of
from corymb.cli.flower.new import new
from corymb.cli.flower.node import node as node_command
from corymb.cli.flower.node_settings import READY, NodeSettings, read_settings, startup_problem, write_settings
from corymb.cli.flower.perform import expected_nodes
from corymb.cli.flower.processes import Process, alive, end, remember, remembered, spawn
from corymb.cli.flower.supervise import RECORD
from corymb.cli.flower.up import _configure_flwr, _still_reading, status
from corymb.cli.flower.worker import node_of
from corymb.cli.options import field_texts
from corymb.cli.request import Request
from corymb.engines import Placement
from corymb.engines.remote import RemoteEngine
from corymb.engines.vectorised.engine import CPU_BUDGET
from corymb.objectives import LinearRegression
from corymb.pids import began
from corymb.runs.remote.engine import FEDERATION
from corymb.runs.remote.engine import federation as federation_of
from corymb.runs.settings import RunSettings
from corymb.settings import InvalidInput
from corymb.testing.engines import DOUBLE
from corymb.testing.remote import InProcess, nodes_of, remote
from corymb.testing.small_data import regression as small_regression
from tests.two_packages import ALGORITHM, FUNCTIONS, PLACE, importable

OBJECTIVE = LinearRegression(3)
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["flower", "new", "my-fed"]) == 0
    assert "corymb flower up --nodes 3" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "my-fed")
    return tmp_path / "my-fed"


def test_the_scaffold_is_a_federation(made, monkeypatch):
    federation = read_federation(made)
    assert (federation.name, federation.nodes, federation.allow) == ("my-fed", 3, ("my_fed",))
    app = tomllib.loads((made / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "corymb.flower_app:server", "clientapp": "corymb.flower_app:app"}
    monkeypatch.syspath_prepend(str(made))
    data = [importlib.import_module("my_fed.data").clients(node="n", number=i, of=3) for i in range(3)]
    assert sum(map(len, data)) == 24
    assert importlib.import_module("my_fed.algorithm").make().k == 4
    assert importlib.import_module("my_fed.model").network()


def test_a_node_of_the_scaffold_holds_its_clients(made, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(made))
    settings = NodeSettings(
        name="a", number=1, of=3, data="my_fed.data:clients", folder=str(tmp_path / "s"), device="cpu"
    )
    write_settings(tmp_path / "node.json", settings)
    assert read_settings(tmp_path / "node.json") == settings
    assert len(node_of(settings).engine.names) == 8


def test_the_memory_of_a_node_is_its_engines_budget(made, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(made))
    given = {"number": 0, "of": 1, "data": "my_fed.data:clients", "folder": str(tmp_path / "s"), "device": "cpu"}
    budget = {memory: node_of(NodeSettings(name="a", memory=memory, **given)).engine.budget for memory in ("auto", 9)}
    assert budget == {"auto": CPU_BUDGET, 9: 9}


def test_a_budget_of_memory_is_called_alike_for_runs_and_for_nodes():
    hints = get_type_hints(node_command, include_extras=True)
    assert hints["memory"].__metadata__[0].help == field_texts(RunSettings)["memory"]


@pytest.mark.parametrize("name", ["1fed", "class", "corymb"])
def test_a_name_that_is_no_package_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="not a valid name for a package"):
        new(name)


def test_a_folder_that_is_not_empty_is_left_alone(made, monkeypatch):
    monkeypatch.chdir(made.parent)
    with pytest.raises(InvalidInput, match="not empty"):
        new("my-fed")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["status"], "There is no federation.toml here"),
        (["up"], "There is no federation.toml here"),
        (["run"], "There is no federation.toml here"),
        (["nod"], "nod"),
    ],
)
def test_missing_arguments_are_reported_in_one_line(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["flower", *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_wrong_line_of_the_federations_file_is_named(made):
    path = made / "federation.toml"
    path.write_text(path.read_text().replace("nodes = 3", "nodes = 0"))
    with pytest.raises(InvalidInput, match=r"federation.toml: nodes must be at least 1"):
        read_federation(made)


def test_run_reports_a_missing_federation(made, capsys):
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    path = made / "federation.toml"
    path.write_text(path.read_text().replace(":8000", f":{free_port()}"))
    assert main(["flower", "status"]) == 1
    assert "Nothing answers" in capsys.readouterr().out


def test_a_run_on_a_federation_that_is_not_up_says_so_at_once(made, monkeypatch, capsys):
    (made / "federation.toml").write_text(
        f'name = "x"\ndata = "x:y"\nalgorithm = "ifca"\naddress = "127.0.0.1:{free_port()}"'
    )
    began = time.monotonic()
    assert main(["flower", "run", "--k", "2"]) == 2
    assert time.monotonic() - began < 10
    assert "`corymb flower up` starts the federation" in capsys.readouterr().err


def test_data_are_not_given_to_a_federation(capsys):
    assert main(["run", "digits", "ifca", "--k", "2", "--engine", "flower", "--address", "127.0.0.1:1"]) == 2
    assert "The nodes of a federation hold their data, not 'digits'" in capsys.readouterr().err
    assert main(["run", "federation", "ifca", "--k", "2", "--engine", "flower"]) == 2
    assert "Give the address of the federation" in capsys.readouterr().err


def test_every_command_has_help(capsys):
    for name in FLOWER:
        assert main(["flower", name, "--help"]) == 0
    assert "--client_seconds" in capsys.readouterr().out


@pytest.mark.parametrize("address", ["localhost", "host:0", "host:x", ":80"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(InvalidInput, match="wanted HOST:PORT"):
        split_address(address)


def test_secrets_and_keys_are_for_their_owner_and_stay(tmp_path):
    secret = make_secret(tmp_path / "secret")
    before = secret.read_text()
    assert make_secret(secret).read_text() == before
    assert secret.stat().st_mode & 0o077 == 0
    pytest.importorskip("cryptography")
    from corymb.cli.flower.keys import expiry, make_certificates, make_node_key

    make_certificates(tmp_path / "tls", ["example.org"])
    assert (tmp_path / "tls" / "ca.key").stat().st_mode & 0o077 == 0
    assert expiry(tmp_path / "tls" / "server.pem").year > 2026
    public = make_node_key(tmp_path / "key")
    assert public.startswith(b"ecdsa-sha2-nistp384")
    assert make_node_key(tmp_path / "key") == public


def test_a_certificate_is_for_all_names_by_which_the_superlink_is_reached(tmp_path):
    x509 = pytest.importorskip("cryptography.x509")
    from corymb.cli.flower.keys import make_certificates

    make_certificates(tmp_path, ["10.0.0.5", "203.0.113.5", "example.org", "localhost"])
    names = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes()).extensions
    names = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "example.org"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1", "10.0.0.5", "203.0.113.5"]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("server.invalid:8000", "must be one of this machine's own, or 0.0.0.0 for all of them, and names lists"),
        ("192.0.2.1:8000", "must be one of this machine's own"),  # a documentation address: nobody has it
        ("127.0.0.1:{taken}", "change address"),
    ],
)
def test_up_says_at_once_that_it_cannot_listen_at_an_address(address, says, made, monkeypatch, capsys):
    monkeypatch.setattr(flower_up, "answers", lambda address: False)  # also where a proxy answers for anybody
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # taken, but it does not listen
        address = address.format(taken=other.getsockname()[1])
        path = made / "federation.toml"
        path.write_text(path.read_text().replace("127.0.0.1:8000", address))
        assert main(["flower", "up"]) == 2
    err = capsys.readouterr().err
    assert f"This machine cannot listen at {address} (" in err
    assert says in err
    assert not (made / ".federation").exists()


def test_a_process_is_identified_by_its_start_time(tmp_path):
    process = spawn("sleeper", SLEEP, tmp_path / "logs" / "log", os.environ, tmp_path)
    try:
        remember(tmp_path / "p.json", [process])
        assert remembered(tmp_path / "p.json") == [process]
        assert alive(process)
        assert not alive(process._replace(began="1"))  # another one, with the same pid
        end([process._replace(began="1")])
        assert alive(process)
    finally:
        end([process])
    assert not alive(process)
    assert began(process.pid) == ""
    assert remembered(tmp_path / "none.json") == []


def test_processes_that_end_are_restarted_and_all_end_together(tmp_path):
    command = [sys.executable, "-m", "corymb.cli.flower.supervise", str(tmp_path), "sleeper", *SLEEP]
    keeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def inside():
        found = [process for process in remembered(tmp_path / "processes.json") if alive(process)]
        return found[0] if found else None

    def wait_for(good, seconds=20):
        until = time.monotonic() + seconds
        while not good() and time.monotonic() < until:
            time.sleep(0.1)
        assert good()

    try:
        wait_for(inside)
        first = inside()
        os.kill(first.pid, 9)
        wait_for(lambda: (now := inside()) is not None and now.pid != first.pid)
        second = inside()
    finally:
        keeper.terminate()
        keeper.wait(20)
        keeper.stdout.close()
    assert not alive(second)


SAYS_WHAT_ENDED_IT = """
import pathlib, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: (pathlib.Path(sys.argv[1]).write_text(str(int(number))), sys.exit()))
pathlib.Path(sys.argv[1]).write_text("ready")
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_processes_are_ended_by_the_one_that_started_them_not_by_the_terminal(number, tmp_path):
    note = tmp_path / "note"
    child = [sys.executable, "-c", SAYS_WHAT_ENDED_IT, str(note)]
    command = [sys.executable, "-m", "corymb.cli.flower.supervise", str(tmp_path), "child", *child]
    keeper = subprocess.Popen(command, process_group=0)
    until = time.monotonic() + 30
    while not note.exists() and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(keeper.pid, number)  # as a terminal does with Ctrl-C, or when it is closed
    assert keeper.wait(30) == 0
    assert note.read_text() == str(int(signal.SIGTERM))


def test_all_state_is_in_one_folder(tmp_path):
    state = state_of(tmp_path)
    places = [state.secret, state.ca, state.processes, state.superlink, state.log("x"), state.node("a")]
    assert all(place.is_relative_to(tmp_path / ".federation") for place in places)
    assert not state.tls
    assert Process("a", 1, "2").name == "a"


def test_a_run_waits_for_the_nodes_that_up_started_or_for_those_of_the_file(made):
    federation, state = read_federation(made), state_of(made)
    assert expected_nodes(federation, state) == 3
    remember(state.processes, [Process(name, 1, "0") for name in ("superlink", "node-0", "node-1")])
    assert expected_nodes(federation, state) == 2


def test_a_federation_that_is_not_up_is_wrong_only_where_something_is_to_be_sent(made, capsys):
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    text = (made / "federation.toml").read_text()
    (made / "federation.toml").write_text(text.replace(":8000", f":{free_port()}"))
    assert main(["flower", "doctor", "--folder", str(made)]) == 0
    assert main(["flower", "doctor", "--echo", "--folder", str(made)]) == 1
    assert "WRONG: nothing answers" in capsys.readouterr().out


def test_flwr_is_configured_with_the_federations_address(made):
    state = state_of(made)
    assert _configure_flwr(read_federation(made), state) == "FLWR_HOME=.federation/flower"
    config = tomllib.loads((state.folder / "flower" / "config.toml").read_text())["superlink"]
    assert config == {"default": "corymb", "corymb": {"address": "127.0.0.1:8000", "insecure": True}}


def test_only_the_process_with_the_clients_loads_torch():
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    modules = ["cli.flower." + name for name in ("node", "supervise", "up", "doctor")]
    modules += ["engines.flower." + name for name in ("supernode", "private", "link")]
    code = f"import sys\nfor name in {modules!r}: __import__('corymb.' + name)\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_the_scaffold_says_to_write_is_there(made):
    """Its comments are what a user begins with: the functions that they name exist, with those arguments."""
    text = (made / "my_fed" / "data.py").read_text()
    calls = re.findall(r"`corymb\.([\w.]+)\(", text)
    assert calls == ["datasets.from_folder"]
    found = operator.attrgetter(calls[0])(corymb)
    assert {"label", "features", "classes", "categories"} <= set(inspect.signature(found).parameters)


DATA = """
import corymb

def broken(node, number, of):
    return corymb.nothing_of_that_name

def absent(node, number, of):
    return corymb.datasets.from_folder("nowhere/at/all", label="y")

def nobody(node, number, of):
    return corymb.datasets.digits(clients=4, train=20, test=5).subset([])

def fine(node, number, of):
    return corymb.datasets.digits(clients=4, train=20, test=5)
"""


def write_node(folder, function, **more):
    """A node's folder with its settings, whose data function is one of the above."""
    (folder / "given.py").write_text(DATA)
    more = {"device": "cpu", "runtime": "127.0.0.1:9", "secret": "secret"} | more
    settings = NodeSettings(name="a", number=0, of=1, data=f"given:{function}", folder=str(folder / "sessions"), **more)
    write_settings(folder / "node.json", settings)
    return folder / "node.json"


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("broken", "AttributeError: module 'corymb' has no attribute 'nothing_of_that_name'"),
        ("absent", "nowhere/at/all"),
        ("nobody", "client"),
        ("unknown", "given"),
    ],
)
@pytest.mark.parametrize("seconds", [None, 60.0])
def test_a_node_whose_data_cannot_be_read_says_why_in_a_line(function, says, seconds, tmp_path, monkeypatch, caplog):
    if seconds is not None and function != "broken":
        pytest.skip("the process is the same one")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "given", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(worker, "__spec__", importlib.util.find_spec("corymb.cli.flower.worker"))
    with pytest.raises(SystemExit) as ended:
        worker.main(write_node(tmp_path, function, client_seconds=seconds))
    assert ended.value.code == 2
    assert says in startup_problem(tmp_path)
    assert "\n" not in startup_problem(tmp_path)


def test_a_node_that_has_read_its_data_says_so(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "given", raising=False)
    assert startup_problem(tmp_path) is None
    worker.reported(read_settings(write_node(tmp_path, "fine")))
    assert startup_problem(tmp_path) == ""


def test_up_waits_until_nodes_have_read_their_data_and_says_whose_cannot_be_read(made, monkeypatch):
    state = state_of(made)
    for name, problem in {"node-0": "", "node-1": "no such file"}.items():
        state.node(name).mkdir(parents=True)
        (state.node(name) / READY).write_text(json.dumps({"problem": problem}))
    assert _still_reading(state, ["node-0"]) == []
    with pytest.raises(InvalidInput, match=r"node-1 cannot start: no such file \(.*node-1.log\)"):
        _still_reading(state, ["node-0", "node-1"])
    monkeypatch.setattr(flower_up, "WAIT", 0.1)
    assert _still_reading(state, ["node-0", "node-2"]) == ["node-2"]


def test_status_names_a_node_that_cannot_start(made, monkeypatch, capsys):
    state, here = state_of(made), Process("node-0", os.getpid(), began(os.getpid()))
    remember(state.processes, [here])
    state.node("node-0").mkdir(parents=True)
    monkeypatch.setattr(flower_up, "answers", lambda address: True)
    monkeypatch.setattr(flower_up, "online", lambda federation, state: ["1"])
    assert status() == 1
    assert "still reads its data" in capsys.readouterr().out
    for problem, code in (("no such file", 1), ("", 0)):
        (state.node("node-0") / READY).write_text(json.dumps({"problem": problem}))
        assert status() == code
        assert ("cannot start: no such file" in capsys.readouterr().out) == bool(problem)


def test_status_says_that_a_process_was_killed(made, monkeypatch, capsys):
    state = state_of(made)
    remember(state.processes, [Process("node-0", os.getpid(), "another time")])
    state.node("node-0").mkdir(parents=True)
    (state.node("node-0") / READY).write_text(json.dumps({"problem": ""}))
    monkeypatch.setattr(flower_up, "answers", lambda address: True)
    monkeypatch.setattr(flower_up, "online", lambda federation, state: ["1"])  # Flower takes a minute to notice
    assert status() == 1
    said = capsys.readouterr().out
    assert f"it ended: it was killed, or its log says why ({state.log('node-0')})" in said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("run federation ifca --k 2 --engine flower --address localhost", "wanted HOST:PORT"),
        ("run federation ifca --k 2 --engine flower --address 127.0.0.1:9 --label outcome", "leave out --label here"),
        (
            "run federation ifca --k 2 --engine flower --address 127.0.0.1:9 --device cuda",
            "Nodes choose their own device",
        ),
        ("run federation ifca --k 2", "'federation' stands for the data held by the nodes of a federation: corymb run"),
        ("flower node a --superlink here --data x:y --state s", "wanted HOST:PORT"),
        ("flower node a --superlink here:1 --data x:y --state s --ca no.pem", "There is no file no.pem"),
        ("flower node a/b --superlink here:1 --data x:y --state s", "A node's name has letters, digits"),
        ("flower node a --superlink here:1 --data x:y --state s --engine flower", 'Choose from: "vectorised"'),
        ("flower node a --superlink here:1 --data x:y --state s --precision half", 'Choose from: "float32"'),
        ("flower node a --superlink here:1 --data x:y --state s --number 3 --of 3", "wanted 0 to 2 with --of 3, got 3"),
        ("flower node a --superlink here:1 --data x:y --state s --poll 0", "--poll must be positive, got 0"),
        ("flower node a --superlink here:1 --data x:y --state s --client_seconds -1", "--client_seconds must be pos"),
        ("flower node a --superlink here:1 --data x:y --state s --memory 0", "memory must be 'auto' or bytes, got 0"),
        ("flower node a --superlink here:1 --data x:y --state s --memory 1.5", "wanted a whole number or 'auto'"),
        ("flower up --memory 9", "--memory is an option of each node: `corymb flower node --memory"),
        ("flower run --precision=float64", "`precision = …` under [node] in federation.toml"),
        ("flower node a --superlink here:1 --data x:y --state s --memory 9 --engine loop", "leave out --memory"),
        ("run federation ifca --k 2 --engine flower --address 127.0.0.1:9 --memory 9", "Nodes choose their own memory"),
    ],
)
def test_typing_errors_are_refused_before_anything_is_sent(line, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_cannot_write_its_state_says_which_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    state = tmp_path / "file" / "state"
    assert main(["flower", "node", "a", "--superlink", "here:1", "--data", "x:y", "--state", str(state)]) == 4
    line = capsys.readouterr().err
    assert f"cannot keep anything in {state} (Not a directory)" in line
    assert line.count("\n") == 1


def test_what_an_algorithm_of_densities_reads_is_for_nodes_to_say():
    on_nodes = {"data": "federation", "algorithm": "kfed", "engine": "flower", "address": "127.0.0.1:9"}
    assert Request.read(on_nodes).data_options.given() == {}
    assert Request.read(on_nodes | {"task": "density", "record": {}}).data_options.given() == {"task": "density"}


def test_nodes_compute_as_they_were_started(monkeypatch):
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    nodes = nodes_of(LinearRegression(3), small_regression(), Placement())
    transport = InProcess({name: node.answer for name, node in nodes.items()})
    monkeypatch.setattr("corymb.engines.flower.driver.connect", lambda address, **files: transport)
    asked = RunSettings(engine="flower", address="127.0.0.1:9")
    assert federation_of(asked, FEDERATION, keeps_memory=False).describe()["precision"] == "float32"
    with pytest.raises(InvalidInput, match="The nodes compute in float32, not in float64"):
        federation_of(replace(asked, precision="float64"), FEDERATION, keeps_memory=False)


def test_nodes_are_ended_before_the_superlink_that_they_sign_off_at(made, monkeypatch, capsys):
    state, ended = state_of(made), []
    remember(state.processes, [Process(name, 1, "") for name in ("superlink", "node-0", "node-1")])
    remember(state.superlink / RECORD, [Process("superlink", 2, "")])
    remember(state.node("node-0") / RECORD, [Process("supernode", 3, ""), Process("worker", 4, "")])
    monkeypatch.setattr(flower_up, "end", lambda some, seconds: ended.append([process.name for process in some]))
    monkeypatch.setattr(flower_up, "alive", lambda process: not ended)
    assert main(["flower", "down"]) == 0
    assert ended == [["node-0", "node-1"], ["supernode", "worker"], ["superlink"], ["superlink"]]
    assert "6 processes ended." in capsys.readouterr().out


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_another_federation_at_the_same_address_is_not_taken_for_this_one(command, made, monkeypatch, capsys):
    for module in ("up", "doctor"):
        monkeypatch.setattr(f"corymb.cli.flower.{module}.answers", lambda address: True)
    assert main(["flower", command]) in (1, 2)
    output = capsys.readouterr()
    assert "this federation was not started from this folder" in output.out + output.err


class Asked:
    """What `corymb flower run` asked to be run."""

    def __init__(self, monkeypatch, code=0):
        monkeypatch.setattr(sys, "path", [*sys.path])
        for name in [name for name in sys.modules if name.startswith("my_fed")]:
            monkeypatch.delitem(sys.modules, name)
        self.engine = remote(OBJECTIVE, small_regression(), Placement())
        monkeypatch.setattr("corymb.cli.flower.perform.answers", lambda address, seconds: True)
        monkeypatch.setattr("corymb.cli.flower.perform.federation_of", self.connect)
        monkeypatch.setattr("corymb.cli.flower.perform.start_run", self.start)
        monkeypatch.setattr("corymb.cli.flower.perform.print_result", lambda run, as_json: code)
        monkeypatch.setattr("corymb.cli.flower.perform.write_report", lambda runs, path, how: path)

    def connect(self, settings, data, *, keeps_memory, allow):
        return self.engine

    def start(self, algorithm, engine, model, settings, **options):
        self.algorithm, self.model, self.settings, self.options = algorithm, model, settings, options


def test_the_settings_of_the_algorithm_are_options_of_flower_run(made, monkeypatch, capsys):
    asked = Asked(monkeypatch)
    line = ["--restarts", "5", "--local.lr", "0.1", "--patience", "60", "--max-seconds", "9", "-q"]
    assert main(["flower", "run", *line]) == 0, capsys.readouterr().err
    assert asked.algorithm == corymb.IFCA(k=4, rounds=4, local=corymb.Descent(lr=0.1, steps=10), restarts=5)
    assert (asked.settings.patience, asked.settings.evaluate_every, asked.settings.nodes) == (60, 2, 3)
    assert (asked.options["max_seconds"], asked.model) == (9, "my_fed.model:network")
    assert main(["flower", "run", "--help"]) == 0
    output = capsys.readouterr().out
    assert "--restarts" in output
    assert "--patience" in output
    assert re.search(r"--rounds[^┃]*?default: 4\]", output)  # as the user's function has it
    assert "--kernel" not in output  # nodes choose theirs


def test_another_algorithm_is_named_on_the_command_line_of_flower_run(made, monkeypatch, capsys):
    asked = Asked(monkeypatch)
    with (made / "federation.toml").open("a") as file:
        file.write("k = 3\nrounds = 2\nmax_seconds = 7\n")
    assert main(["flower", "run", "--seed", "3", "sr-fca", "--refinements", "1", "--model", "linear-regression"]) == 0
    assert (type(asked.algorithm).__name__, asked.algorithm.refinements) == ("SRFCA", 1)
    assert (asked.settings.seed, asked.settings.until, asked.model) == (3, "converged", "linear-regression")
    assert asked.options["max_seconds"] == 7
    assert main(["flower", "run"]) == 0  # a function of the user's own, with the file's settings
    assert (asked.algorithm.k, asked.algorithm.rounds, asked.settings.until) == (3, 2, "rounds")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("sr-fac", "There is no algorithm 'sr-fac'. Did you mean 'sr-fca'"),
        ("ifca --restrats 3", "--restarts"),
        ("--kernel grouped", "--kernel"),
        ("fedavg --k 3", "--k"),
    ],
)
def test_typing_errors_at_flower_run_are_reported_in_a_line(line, says, made, monkeypatch, capsys):
    Asked(monkeypatch)
    assert main(["flower", "run", *line.split()]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("allowed", [True, False])
def test_client_functions_of_a_second_package_run_where_nodes_allow_it(allowed, made, monkeypatch, capsys):
    importable(made, monkeypatch)
    nodes = nodes_of(OBJECTIVE, small_regression(), DOUBLE)
    for node in nodes.values():
        node.allow = (*node.allow, ALGORITHM, *([FUNCTIONS] if allowed else []))
    engine = RemoteEngine(InProcess({name: node.answer for name, node in nodes.items()})).open(OBJECTIVE)
    monkeypatch.setattr("corymb.cli.flower.perform.answers", lambda address, seconds: True)
    monkeypatch.setattr("corymb.cli.flower.perform.federation_of", lambda *given, **options: engine)
    line = ["flower", "run", PLACE, "--model", "linear-regression", "-q", "--json"]
    assert main(line) == (0 if allowed else 2)
    output = capsys.readouterr()
    if allowed:
        assert len(json.loads(output.out)["labels"]) == 6
    else:
        assert f"No node can run {FUNCTIONS}:train_apart." in output.err
        assert f"--allow {FUNCTIONS} (federation.toml: allow)" in output.err
        assert output.err.count("\n") == 1


def test_a_run_that_never_started_leaves_no_folder(made, monkeypatch, capsys):
    Asked(monkeypatch)

    def refuse(*given, **options):
        raise InvalidInput("not on these data")

    monkeypatch.setattr("corymb.cli.flower.perform.start_run", refuse)
    assert main(["flower", "run", "-q"]) == 2
    assert list((made / "runs").iterdir()) == []


def test_a_federation_for_flwr_run_is_not_run_by_corymb(made, monkeypatch, capsys):
    Asked(monkeypatch)
    state_of(made).stock.parent.mkdir()
    state_of(made).stock.touch()
    assert main(["flower", "run", "-q"]) == 2
    assert "FLWR_HOME=.federation/flower flwr run . corymb --stream" in capsys.readouterr().err
