"""Clients on a Ray cluster give the run of one process; an actor that dies comes back with its clients' memory."""

import os
import time

import pytest
import torch

import corymb
from corymb.core.federation import Federation
from corymb.settings import InvalidInput
from corymb.testing.assertions import assert_same_run
from corymb.testing.cases import CASES, run
from corymb.testing.laws.algorithms import SEED, whole
from corymb.testing.remote import ALLOW

pytestmark = pytest.mark.ray
pytest.importorskip("ray", reason="the extra [ray] is not installed")
ALGORITHMS = ["IFCA", "CFL", "FedSoft", "SR-FCA", "keeper", "moment descent"]


@pytest.fixture
def cluster(tmp_path):
    """An engine of two actors for a case."""
    from corymb.engines.ray import RayTransport
    from corymb.engines.remote import RemoteEngine

    made = []

    def make(case, data=None, **options):
        objective = case.objective()
        transport = RayTransport(
            data or case.data(), objective, actors=2, folder=tmp_path, precision="float64", engine="loop", **options
        )
        made.append(transport)
        return RemoteEngine(transport, allow=ALLOW).open(objective), transport

    yield make
    for transport in made:
        transport.close()


def test_two_actors_give_the_run_of_one_process(cluster):
    for name in ALGORITHMS:
        engine, transport = cluster(CASES[name], allow=ALLOW)
        assert_same_run(list(run(CASES[name], Federation(engine), seed=SEED)), whole(CASES[name], "loop"))
        transport.close()


def test_an_actor_that_is_killed_between_two_calls_of_a_tick_goes_on_with_its_memory(cluster):
    import ray

    case = CASES["keeper"]
    engine, transport = cluster(case, allow=ALLOW)
    calls = []
    ask = engine.run

    def killing(call, ids):
        calls.append(call.version)
        if call.version.call == 3:  # the second question of a round, after a sample was drawn
            ray.kill(transport.actors["actor-1"], no_restart=False)
        return ask(call, ids)

    engine.run = killing
    got = list(run(case, Federation(engine), seed=SEED))
    assert any(version.call == 3 for version in calls)
    assert_same_run(got, whole(case, "loop"))
    assert [at.notes for at in got] == [at.notes for at in whole(case, "loop")]


def test_an_echo_of_the_payload_is_quick(cluster):
    engine, _ = cluster(CASES["IFCA"])
    payload = {"models": torch.zeros(4, 10_000)}
    times = sorted(engine.echo(payload) for _ in range(10))
    assert times[5] < (0.05 if os.getloadavg()[0] < 2 else 1.0), times


def test_fit_takes_a_cluster_instead_of_one_process():
    data = corymb.datasets.digits(clients=6, train=20, test=10)
    algorithm = corymb.IFCA(k=2, rounds=2)
    want = corymb.fit(algorithm, data, device="cpu", precision="float64")
    got = corymb.fit(algorithm, data, engine="ray", nodes=2, device="cpu", precision="float64")
    assert got.to_dict()["labels"] == want.to_dict()["labels"]
    assert got.metrics["test_accuracy"] == pytest.approx(want.metrics["test_accuracy"], abs=1e-9)
    assert got.metrics.keys() == want.metrics.keys()  # the truth of a simulation is known here too


def test_ten_thousand_clients():
    data = corymb.datasets.mixed_regression(clients=10_000, train=4, test=2)
    began = time.perf_counter()
    run = corymb.fit(corymb.IFCA(k=2, rounds=2), data, engine="ray", nodes=2, device="cpu", evaluate_every=0)
    assert len(run.labels) == 10_000
    assert time.perf_counter() - began < 200


def test_an_algorithm_with_memory_needs_a_disk_that_all_machines_see():
    data = corymb.datasets.digits(clients=4, train=20, test=10)
    with pytest.raises(InvalidInput, match="shared=…"):
        corymb.fit(corymb.Alone(rounds=1), data, engine="ray", address="auto")


def test_no_process_is_left_behind():
    import ray

    assert not ray.is_initialized()
