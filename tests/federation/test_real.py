"""Algorithms on a real federation: a SuperLink, three SuperNodes and their executors."""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import corymb
from corymb.core.federation import Federation
from corymb.objectives import LinearRegression
from corymb.settings import InvalidInput
from corymb.testing.assertions import assert_same_run
from corymb.testing.cases import CASES, Case, run
from corymb.testing.laws.algorithms import SEED
from tests.federation.conftest import ROOT
from tests.federation.conftest import Federation as Folder
from tests.federation.nodes import LINE, dataset
from tests.two_packages import ALGORITHM, FUNCTIONS, PLACE, write

pytestmark = pytest.mark.flower
NODES = 3


@contextmanager
def reached(federation):
    """The engine of a federation."""
    from corymb.engines.flower.driver import connect
    from corymb.engines.remote import RemoteEngine

    transport = connect(federation.address, secret=federation.state / "secret")
    try:
        yield RemoteEngine(transport, expect=NODES, allow=("corymb.testing.learners",))
    finally:
        transport.close()


@pytest.fixture(scope="module")
def nodes(federation):
    """The engine of the federation; one Flower run for all tests."""
    with reached(federation) as engine:
        yield engine


@pytest.fixture(scope="module")
def classifying_nodes(tmp_path_factory):
    """The engine of a federation whose examples have classes; it is there for these tests only."""
    made = Folder(tmp_path_factory.mktemp("classes"), **{"nodes:clients": "nodes:classified"})
    made.command("flower", "up")
    try:
        with reached(made) as engine:
            yield engine
    finally:
        made.command("flower", "down")


def check(nodes, case):
    """The case's run on the federation is the loop's, and its ledger too."""
    fed, loop = Federation(nodes.open(case.objective())), case.federation("loop")
    got, want = (list(run(case, where, seed=SEED)) for where in (fed, loop))
    assert_same_run(got, want)
    assert vars(fed.ledger) == vars(loop.ledger)


def test_ifca_is_the_run_of_one_process_with_one_message_a_node_a_call(nodes):
    before = nodes.traffic.messages
    check(nodes, Case(replace(LINE.algorithm, rounds=2)))
    assert nodes.traffic.messages - before == NODES * (1 + 2)  # a session is opened, then two calls


def test_cfl_keeps_its_clients_memory_on_the_nodes(nodes, federation):
    check(nodes, CASES["CFL"])
    pages = list((federation.state / "nodes").rglob("0*.safetensors"))
    assert {page.parents[2].name for page in pages} == {f"node-{number}" for number in range(NODES)}


def test_a_run_needs_the_secret(federation):
    from corymb.engines.flower.driver import connect

    with pytest.raises(InvalidInput, match="give the secret"):
        connect(federation.address)


@pytest.mark.flower_all
def test_fit_and_the_command_line_reach_the_nodes_by_their_address(federation, tmp_path):
    done = federation.command(
        *("run", "federation", "ifca", "--k", 2, "--rounds", 2, "--engine", "flower", "--address", federation.address),
        *("--secret", federation.state / "secret", "--nodes", NODES, "--evaluate_every", 0),
        *("--out", tmp_path / "run", "--json", "-q"),
    )
    got = json.loads(done.stdout)
    algorithm = corymb.configure("ifca", dataset(LINE), k=2, rounds=2)
    want = corymb.fit(algorithm, dataset(LINE), engine="loop", precision="float64", evaluate_every=0)
    assert got["labels"] == want.to_dict()["labels"]
    assert got["metrics"]["train_loss"] == pytest.approx(want.metrics["train_loss"], abs=1e-9)
    config = (tmp_path / "run" / "config.toml").read_text()
    assert 'engine = "flower"' in config
    assert Path(json.loads((tmp_path / "run" / "environment.json").read_text())["working_folder"]) == federation.folder


FIRST = {type(case.algorithm).__name__: name for name, case in reversed(CASES.items())}
"""The first case of every algorithm."""
OF_LINES = sorted(name for name in FIRST.values() if CASES[name].learns == "line")
OF_CLASSES = sorted(set(FIRST.values()) - set(OF_LINES))


def test_every_algorithm_has_a_case_and_some_learn_from_other_examples():
    assert len(OF_LINES) + len(OF_CLASSES) == len({type(case.algorithm) for case in CASES.values()})
    assert {"UIFCA", "k-FED", "ClusterGAN"} <= set(OF_CLASSES)


@pytest.mark.flower_all
@pytest.mark.parametrize("name", OF_LINES)
def test_one_case_an_algorithm(nodes, name):
    check(nodes, CASES[name])


@pytest.mark.flower_all
@pytest.mark.parametrize("name", OF_CLASSES)
def test_one_case_an_algorithm_of_those_that_learn_from_other_examples(classifying_nodes, name):
    check(classifying_nodes, CASES[name])


@pytest.mark.flower_all
def test_an_objective_that_a_node_does_not_allow_opens_no_session(nodes):
    with pytest.raises(InvalidInput, match="did not open the session"):
        nodes.open(LinearRegression(3, features=not_there))


@pytest.mark.flower_all
def test_an_algorithm_that_nodes_do_not_allow_ends_at_its_first_call_with_one_line(federation):
    text = (ROOT / "CONTRIBUTING.md").read_text().split("```python")[1].split("```")[0]
    (federation.folder / "elsewhere.py").write_text(text)  # its complete example of an algorithm
    words = ["flower", "run", "elsewhere:SlowAverage", "--rounds", 2, "--model", "linear-regression", "-q"]
    done = federation.command(*words, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "No node can run elsewhere:train_the_model" in done.stderr
    assert "--allow elsewhere (" in done.stderr
    assert "abandoned" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.flower_all
def test_client_functions_of_a_second_package_run_once_the_federation_allows_it(tmp_path):
    made = Folder(tmp_path, **{'"tests"]': f'"tests", "{ALGORITHM}"]'})
    write(made.folder)
    words = ["flower", "run", PLACE, "--model", "linear-regression", "-q", "--json"]
    try:
        made.command("flower", "up", "--nodes", 1)
        refused = made.command(*words, check=False)
        made.command("flower", "down")
        path = made.folder / "federation.toml"
        path.write_text(path.read_text().replace('"tests", ', f'"tests", "{FUNCTIONS}", '))
        made.command("flower", "up", "--nodes", 1)
        done = made.command(*words)
    finally:
        made.command("flower", "down")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert f"--allow {FUNCTIONS} (federation.toml: allow), and restart the node." in refused.stderr
    assert refused.stderr.count("\n") == 1
    result = json.loads(done.stdout)
    assert (len(result["labels"]), result["rejected"]) == (len(dataset(LINE)), [])


@pytest.mark.flower_all
def test_a_node_with_another_version_ends_a_run_with_one_line(tmp_path):
    made = Folder(tmp_path, **{"tests.federation.nodes:clients": "tests.federation.liars:outdated"})
    made.command("flower", "up", "--nodes", 1)
    try:
        done = made.command("flower", "run", "-q", check=False)
    finally:
        made.command("flower", "down")
    assert done.returncode == 2
    assert "Node 'node-0' has corymb 0.0.1, this machine" in done.stderr
    assert done.stderr.count("\n") == 1


def not_there(x):
    return x


not_there.__module__ = "os.path"
