"""Clients shared out over several devices: here three engines on the CPU, a thread each."""

import pytest
import torch

import corymb
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.engines import LoopEngine, Placement
from corymb.engines.sharded import ShardedEngine, _dealt
from corymb.local import one_hot
from corymb.runs.settings import RunSettings
from corymb.settings import InvalidInput
from corymb.testing import check_engine
from corymb.testing.cases import CASES
from corymb.testing.engines import engine_of
from corymb.testing.laws import algorithms, memory
from corymb.testing.laws.engines import small_federation
from corymb.trees import Params


def three(objective, data, placement):
    return ShardedEngine(objective, data, [placement] * 3)


def cases(*plain):
    """Some cases; the others run in `make soak`."""
    return [pytest.param(name, marks=[] if name in plain else [pytest.mark.soak]) for name in CASES]


@pytest.mark.parametrize("name", cases("FedSoft", "keeper"))
def test_the_run_is_that_of_the_loop(name):
    algorithms.check_same_run(CASES[name], three)
    algorithms.check_same_bytes(CASES[name], three)


@pytest.mark.parametrize("name", cases("keeper"))
def test_the_same_seed_gives_the_same_bits_also_when_resumed(name):
    algorithms.check_looking_changes_nothing(CASES[name], three)
    algorithms.check_resume(CASES[name], three, [0])  # some have one round only


def test_new_examples_reach_every_device():
    memory.check_refresh(three)


@pytest.mark.soak
def test_the_sharded_engine_has_the_whole_interface():
    check_engine(three)


@on_client
def go_far(client: Client, models: Params, far: torch.Tensor) -> Share[torch.Tensor]:
    """The model moved by as much as is said."""
    label = torch.zeros((), dtype=torch.int64)
    return Share({name: value[0] + far for name, value in models.items()}, one_hot(label, 1), label, far)


def test_replies_of_all_devices_are_compared_together():
    """A device whose clients all have long updates would by itself find none of them unusual."""
    found = []
    for engine in (LoopEngine, three):
        fed = small_federation("linear", engine)
        models = {name: value.unsqueeze(0) for name, value in fed.objective.init(corymb.keys.root(0)).items()}
        far = torch.ones(len(fed.names), dtype=torch.float64)
        far[0] = 50.0
        fed.set_clock(seed=0, clock=0)
        replies = fed.clients.near(models).sum(go_far, models, corymb.core.engine.each(far))
        found.append((replies.rejected, replies.value))
    assert found[0][0] == found[1][0]
    assert len(found[0][0]) == 1
    torch.testing.assert_close(found[0][1].total, found[1][1].total)
    assert torch.equal(found[0][1].note, found[1][1].note)


def test_every_device_has_its_share_of_the_examples():
    sizes = torch.tensor([10, 1, 1, 10, 2, 2, 9])
    parts = _dealt(sizes, 3)
    assert sorted(torch.cat(parts).tolist()) == list(range(7))
    assert [int(sizes[part].sum()) for part in parts] == [13, 12, 10]
    assert [len(part) for part in _dealt(sizes[:2], 3)] == [1, 1]


@on_client
def fails(client: Client) -> torch.Tensor:
    """An error at every client."""
    raise ArithmeticError("no client can do this")


def test_an_error_of_all_clients_is_raised():
    fed = small_federation("linear", three)
    fed.set_clock(seed=0, clock=0)
    with pytest.raises(ArithmeticError, match="no client can"):
        fed.clients.map(fails)


def test_a_run_on_several_devices(tmp_path):
    data = corymb.datasets.digits(clients=8, train=20, test=10)
    algorithm = corymb.IFCA(k=2, rounds=2)
    one = corymb.fit(algorithm, data, device="cpu", precision="float64")
    both = corymb.fit(algorithm, data, device="cpu,cpu", precision="float64", out=tmp_path / "run")
    torch.testing.assert_close(both.models, one.models, rtol=1e-9, atol=1e-9)
    longer = corymb.fit(corymb.IFCA(k=2, rounds=3), data, resume=tmp_path / "run")
    assert len(longer.history) == 3
    assert longer.config["device"] == "cpu,cpu"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (dict(device="cpu,gpu"), "no device 'cpu,gpu'"),
        (dict(device="cpu,cpu", engine="loop"), "runs on one device"),
        (dict(device="auto,cpu"), "no device"),
    ],
)
def test_invalid_devices_are_refused(options, wanted):
    with pytest.raises(InvalidInput, match=wanted):
        RunSettings(**options)


def test_an_objective_that_cannot_move_is_refused():
    fed = small_federation("linear", LoopEngine)

    class Fixed:
        init = fed.objective.init

    with pytest.raises(InvalidInput, match="cannot run on several devices"):
        ShardedEngine(Fixed(), Federation(engine_of(fed))._engine.host._data, [Placement()] * 2)
