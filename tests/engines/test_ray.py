"""Clients on a Ray cluster give the run of one process; an actor that dies comes back with its clients' memory."""

import os
import time

import pytest
import torch

import corymb
from corymb.core.federation import Federation
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.settings import InvalidInput
from corymb.testing.assertions import assert_same_run
from corymb.testing.cases import CASES, Case, run
from corymb.testing.laws.algorithms import SEED, whole
from corymb.testing.remote import ALLOW
from corymb.trees import stack
from tests.federation.liars import Average

pytestmark = pytest.mark.ray
pytest.importorskip("ray", reason="the extra [ray] is not installed")
ALGORITHMS = ["IFCA", "CFL", "FedSoft", "SR-FCA", "keeper", "moment descent"]


# Stands first: the actors of the other tests would take all cores of a small machine.
def test_fit_takes_a_cluster_instead_of_one_process_and_ten_thousand_clients():
    data = corymb.datasets.mixed_regression(n=10_000, m=4, d=3, k=2, test=2)
    algorithm = corymb.IFCA(k=2, rounds=2)
    options = {"device": "cpu", "precision": "float64", "evaluate_every": 0}
    want = corymb.fit(algorithm, data, **options)
    began = time.perf_counter()
    got = corymb.fit(algorithm, data, engine="ray", nodes=2, **options)
    assert time.perf_counter() - began < 200
    assert len(got.labels) == 10_000
    assert got.to_dict()["labels"] == want.to_dict()["labels"]
    assert got.metrics["train_loss"] == pytest.approx(want.metrics["train_loss"], abs=1e-9)
    assert got.metrics.keys() == want.metrics.keys()  # the truth of a simulation is known here too


def test_a_stopped_run_resumes_with_its_client_memory(tmp_path):
    data = corymb.datasets.digits(clients=4, train=20, test=10)
    options = {"device": "cpu", "precision": "float64", "evaluate_every": 0}
    want = corymb.fit(corymb.Alone(rounds=3), data, **options)
    begun = corymb.fit(corymb.Alone(rounds=1), data, engine="ray", nodes=2, out=tmp_path / "run", **options)
    assert begun.config["cluster_folder"] == str(tmp_path / "run" / "actors")
    got = corymb.fit(corymb.Alone(rounds=3), data, resume=tmp_path / "run")
    assert got.metrics["train_loss"] == pytest.approx(want.metrics["train_loss"], abs=1e-9)


def test_a_client_that_never_answers_is_named_and_the_run_goes_on(tmp_path):
    from corymb.engines.ray import RayTransport
    from corymb.engines.remote import RemoteEngine

    case, honest = Case(Average()), Case(Average(hang=False))  # who hangs there, sends NaN here
    options = {"folder": tmp_path, "precision": "float64", "engine": "loop", "allow": ("tests",)}
    transport = RayTransport(case.data(), case.objective(), actors=2, client_seconds=4.0, **options)
    try:
        fed = Federation(RemoteEngine(transport, expect=2, allow=("tests",)).open(case.objective()))
        got = list(run(case, fed, seed=SEED))
    finally:
        transport.close()
    assert_same_run(got, whole(honest, "loop"))
    assert {entry["client"] for entry in fed.ledger.rejected} == {"client-2"}
    assert all("took longer than 4 s" in entry["reason"] for entry in fed.ledger.rejected)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two actors that share the clients of the contract suite, with a session for each test; and their transport."""
    from corymb.engines.ray import RayTransport
    from corymb.engines.remote import RemoteEngine

    case = CASES["IFCA"]
    transport = RayTransport(
        case.data(),
        case.objective(),
        actors=2,
        folder=tmp_path_factory.mktemp("shared"),
        precision="float64",
        engine="loop",
        allow=ALLOW,
    )
    yield RemoteEngine(transport, allow=ALLOW), transport
    transport.close()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_actors_give_the_run_of_one_process(cluster, name):
    fed = Federation(cluster[0].open(CASES[name].objective()))
    assert_same_run(list(run(CASES[name], fed, seed=SEED)), whole(CASES[name], "loop"))


def test_an_echo_of_the_payload_is_quick(cluster):
    """What IFCA sends for rotated MNIST: four perceptrons with 200 hidden units, 2.5 MB to each actor and back."""
    network = Classification(Network(mlp(784, [200], 10)), 10)
    payload = stack([network.init(torch.tensor(seed)) for seed in range(4)])
    times = sorted(cluster[0].echo(payload) for _ in range(10))
    assert times[5] < (0.05 if os.getloadavg()[0] < 2 else 1.0), times
    print(f"echo of the payload: median {times[5] * 1e3:.0f} ms, load {os.getloadavg()[0]:.1f}")


def test_an_actor_that_is_killed_between_two_calls_of_a_tick_goes_on_with_its_memory(cluster):
    import ray

    case = CASES["keeper"]
    engine, transport = cluster[0].open(case.objective()), cluster[1]
    killed, ask = [], engine.run

    def killing(call, ids):
        if call.fn.name.endswith("forget_sometimes") and not killed:  # the second question of a round
            killed.append(call.version)
            ray.kill(transport.actors["actor-1"], no_restart=False)
        return ask(call, ids)

    engine.run = killing
    got, want = list(run(case, Federation(engine), seed=SEED)), whole(case, "loop")
    assert killed
    assert_same_run(got, want)
    assert [at.notes for at in got] == [at.notes for at in want]


def test_an_algorithm_with_memory_needs_a_disk_that_all_machines_see():
    data = corymb.datasets.digits(clients=4, train=20, test=10)
    with pytest.raises(InvalidInput, match="cluster_folder=…"):
        corymb.fit(corymb.Alone(rounds=1), data, engine="ray", address="auto")
