"""Clients that drop out, drawn again in every call; `python -m benchmarks.dropout` runs every algorithm, five seeds."""

import pytest

import corymb
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.engines import VectorisedEngine
from corymb.evaluate import adjusted_rand_index
from corymb.faults import Fault, inject
from corymb.models import Network, mlp
from corymb.objectives import Classification

benchmark = pytest.importorskip("benchmarks.dropout")


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("name", ["SR-FCA", "CFL", "Local-KMeans", "moment descent"])
def test_a_run_finishes(name, share):
    assert benchmark.problem(name, [Fault("dropout", share=share, always=False)], seed=0) == ""


@pytest.mark.parametrize("name", ["SR-FCA", "ONE_SHOT-IFCA"])
def test_seven_clients_half_silent_are_enough_where_clusters_are_found_once(name, monkeypatch):
    monkeypatch.setattr(benchmark, "TIMES", 1)
    assert benchmark.problem(name, [Fault("dropout", share=0.5, always=False)], seed=1) == ""  # ended so, once


def test_ifca_finds_the_clusters_with_a_third_lost():
    data = corymb.datasets.digits(seed=0, clients=40).in_order()
    engine = VectorisedEngine(Classification(Network(mlp(64, [32], 10)), 10), data)
    fed = Federation(inject(engine, [Fault("dropout", share=0.3, always=False)]))
    *_, at = drive(corymb.IFCA(k=4, rounds=5, init="one-shot"), fed)
    assert adjusted_rand_index(at.labels, data.truth) == 1.0
    assert fed.ledger.replied < 0.8 * fed.ledger.asked
