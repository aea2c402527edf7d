"""What is kept for each registered client, and what a round that asks a few of many clients allocates."""

import tracemalloc
from types import SimpleNamespace

import pytest
import torch

from corymb.algorithms import FedAvg
from corymb.core.driver import drive
from corymb.core.federation import Cohort, Federation
from corymb.core.names import ClientNames
from corymb.engines import VectorisedEngine
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.objectives import LinearRegression
from tests.allocations import LargeTensors, tensors_alive

N, COHORT = 400_000, 50


def data_of(n: int, *, uneven: bool) -> SimpleNamespace:
    """Clients with 2 training examples and 1 test example, or from 1 to 3 and from 0 to 2."""
    sizes = torch.arange(n) % 3 + 1 if uneven else torch.full((n,), 2)
    parts = {}
    for split, each in (("train", sizes), ("test", sizes - 1)):
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), each.cumsum(0)])
        x = torch.linspace(-1, 1, int(offsets[-1]))[:, None]
        parts[split] = SimpleNamespace(x=x, y=3 * x[:, 0], offsets=offsets)
    return SimpleNamespace(names=tuple(map(str, range(n))), **parts)


def bytes_alive() -> int:
    return sum(tensors_alive().values())


@pytest.mark.parametrize("uneven", [False, True])
def test_sixteen_bytes_are_kept_for_each_registered_client(uneven):
    """A hash of its name and, where clients differ in size, its size. Hashes are numpy's, and so in both counts."""
    data = data_of(N, uneven=uneven)
    before = bytes_alive()
    tracemalloc.start()
    try:
        fed = Federation(VectorisedEngine(LinearRegression(1), data))
        next(drive(FedAvg(rounds=1, participants=COHORT), fed))  # whatever a round needs for the first time
        by_numpy_and_python = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert bytes_alive() - before < (16.2 if uneven else 8.2) * N
    assert by_numpy_and_python < 11 * N  # of which 2 or 3 MB are modules imported meanwhile, and caches


@pytest.mark.parametrize("uneven", [False, True])
def test_a_round_of_a_few_clients_allocates_the_new_labels_only(uneven):
    fed = Federation(VectorisedEngine(LinearRegression(1), data_of(N, uneven=uneven)))
    rounds = drive(FedAvg(rounds=6, participants=COHORT, local=Descent(lr=0.1, steps=2)), fed)
    for _ in range(2):
        next(rounds)
    before = bytes_alive()
    with LargeTensors(N) as large:
        for _ in range(3):
            at = next(rounds)
    assert large.found == 3 * [("index_copy", (N,), torch.int64)]
    assert int((at.labels >= 0).sum()) > 4 * COHORT
    assert bytes_alive() - before < 0.2 * N  # earlier labels are gone


def test_cohorts_of_everybody_are_drawn_without_their_positions():
    fed = Federation(VectorisedEngine(LinearRegression(1), data_of(200_000, uneven=False)))
    named = Federation(fed._engine)
    listed = Cohort(named, torch.arange(200_000))
    with LargeTensors(8 * 200_000) as large:
        sampled, drawn = fed.clients.sample(70), fed.clients.drawn(0.001, fold(root(0), 1))
    assert large.found == []
    assert torch.equal(sampled.ids, listed.sample(70).ids)
    assert torch.equal(drawn.ids, listed.drawn(0.001, fold(root(0), 1)).ids)
    assert torch.equal(fed.clients.ids, listed.ids)


def test_names_are_hashed_once_for_the_engine_and_its_federations():
    data = data_of(9, uneven=True)
    data.names = ClientNames.of(data.names)
    engine = VectorisedEngine(LinearRegression(1), data)
    one, other = Federation(engine), Federation(engine.open(LinearRegression(1)))
    assert one.name_hashes is other.name_hashes is data.names.hashes
