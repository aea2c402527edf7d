"""Clusters by evidence on data: their number is found, none are invented, and a run continues from any snapshot."""

from __future__ import annotations

import pytest
import torch

from corymb.algorithms import CFL, IFCA, SRFCA, LocalKMeans, OneShot
from corymb.algorithms.evidence.merging import MergeByEvidence
from corymb.algorithms.parts.work import Work
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Algorithm, Snapshot, planned_rounds
from corymb.data.built_in.synthetic import mixed_regression
from corymb.data.dataset import FederatedDataset
from corymb.engines import VectorisedEngine
from corymb.evaluate import adjusted_rand_index
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.recipes.evidence_cases import CASES
from tests import tiny
from tests.contracts.cases import same_bits

DIGITS = MergeByEvidence(alone=Descent(lr=0.3, steps=100), work=Work(local=Descent(lr=0.3, steps=10)))
LINES = MergeByEvidence(alone=Descent(lr=0.1, steps=100), work=Work(local=Descent(lr=0.1, steps=10)))


def federation(data: FederatedDataset) -> Federation:
    if data.task == "regression":
        return Federation(VectorisedEngine(LinearRegression(data.train.x.shape[1]), data))
    return Federation(VectorisedEngine(Classification(Network(mlp(64, [32], 10)), 10), data))


def end(algorithm: Algorithm, data: FederatedDataset, seed: int = 0) -> Snapshot:
    *_, at = drive(algorithm, federation(data), seed=seed)
    return at


def slow(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.paper)


@pytest.mark.parametrize(
    "name",
    ["6 clients", "iid 12", "0 and 1 swapped", slow("57 + 3"), slow("Dirichlet .5"), slow("regression, one")],
)
def test_the_number_of_clusters_is_found(name: str) -> None:
    case = CASES[name]
    data = case.make(7)
    at = end(LINES if data.task == "regression" else DIGITS, data)
    assert at.k == at.notes["k"] == case.clusters
    assert data.truth is not None
    assert adjusted_rand_index(at.labels, data.truth) == 1.0
    assert at.notes["evidence"].startswith("One model" if case.clusters == 1 else f"{case.clusters} clusters")


@pytest.mark.paper
def test_with_a_tenth_of_the_clients_a_round() -> None:
    data = CASES["400 × 20"].make(7)
    algorithm = IFCA(k="auto", rounds=6, local=DIGITS.work.local, alone=DIGITS.alone, participants=0.1)
    at = end(algorithm, data)
    assert at.k == 4
    assert data.truth is not None
    known = at.labels >= 0
    assert adjusted_rand_index(at.labels[known], data.truth[known]) > 0.95


def test_cfl_splits_only_what_held_out_examples_keep_apart() -> None:
    local = Descent(lr=0.3, steps=10)
    hasty = CFL(settled=3.0, apart=0.3, rounds=12, local=local)
    wary = CFL(settled=3.0, apart=0.3, rounds=12, local=local, accept="evidence")
    for name in ("6 clients", "iid 12"):
        data = CASES[name].make(7)
        assert end(hasty, data).k > CASES[name].clusters
        at = end(wary, data)
        assert at.k == CASES[name].clusters


@pytest.mark.parametrize(
    "algorithm",
    [
        LocalKMeans(k="auto", alone=LINES.alone),
        OneShot(k="auto", alone=LINES.alone),
        SRFCA(alone=LINES.alone, local=LINES.work.local, rounds=3, refinements=1),
    ],
    ids=["local k-means", "one-shot", "SR-FCA"],
)
def test_others_find_their_number_in_the_same_way(algorithm: Algorithm) -> None:
    data = mixed_regression(8, n=36, m=30, d=10, k=3)
    at = end(algorithm, data)
    assert at.k == 3
    assert data.truth is not None
    assert adjusted_rand_index(at.labels, data.truth) == 1.0


def test_a_line_is_one_cluster_and_a_third_of_the_clients_a_round_are_enough_for_two() -> None:
    one = end(LINES, mixed_regression(7, n=30, m=30, d=10, k=1))
    assert one.k == 1
    algorithm = IFCA(k="auto", rounds=4, local=LINES.work.local, alone=LINES.alone, participants=0.33)
    data = mixed_regression(7, n=60, m=30, d=10, k=2)
    at = end(algorithm, data)
    assert at.k == 2
    assert data.truth is not None
    known = at.labels >= 0
    assert adjusted_rand_index(at.labels[known], data.truth[known]) == 1.0


def test_more_clusters_than_groups_are_found() -> None:
    data = mixed_regression(7, n=48, m=30, d=10, k=6)
    few = MergeByEvidence(alone=LINES.alone, work=LINES.work, groups=4)
    snapshots = list(drive(few, federation(data), seed=0))
    assert snapshots[-1].k == 6
    assert len(snapshots) <= planned_rounds(few)


@pytest.mark.parametrize("engine", tiny.ENGINES)
@pytest.mark.parametrize("sizes", [(6, 9), (1, 1, 1, 8), (5,)], ids=["two", "hardly any examples", "one"])
def test_the_smallest_federations(engine: str, sizes: tuple[int, ...]) -> None:
    fed = tiny.federation(engine, LinearRegression(3, dtype=torch.float64), tiny.regression(sizes, (0,) * len(sizes)))
    snapshots = list(drive(LINES, fed, seed=0))
    assert snapshots[-1].stage == "found"
    assert snapshots[-1].k == 1


@pytest.mark.parametrize("engine", tiny.ENGINES)
def test_a_search_continues_from_any_snapshot(engine: str) -> None:
    sizes, truth = (16, 19, 22, 17, 16, 18, 20, 15), (0, 1, 0, 1, 0, 0, 1, 1)
    fed = tiny.federation(engine, LinearRegression(3, dtype=torch.float64), tiny.regression(sizes, truth))
    quick = MergeByEvidence(alone=Descent(lr=0.1, steps=10), work=Work(local=Descent(lr=0.1, steps=5)))
    whole = list(drive(quick, fed, seed=3))
    stages = [at.stage for at in whole]
    assert {"settle", "weigh", "train", "split", "found"} <= set(stages)
    assert whole[-1].k == 2
    for place in map(stages.index, sorted(set(stages))):  # contract laws go on from every one
        rest = list(drive(quick, fed, whole[place]))
        assert len(rest) == len(whole) - place - 1
        if rest:
            same_bits(rest[-1], whole[-1])


@pytest.mark.parametrize("clients", [100, 1_000, 1_000_000])
def test_groups_are_doubled_only_while_there_are_clients_whose_models_are_grouped(clients: int) -> None:
    groups, groupings = LINES.groups, 1
    while LINES._more_groups(groups, clients):
        groups, groupings = 2 * groups, groupings + 1
        assert groups <= min(clients, 1000) // 2
    assert groupings <= 5
    assert planned_rounds(LINES) >= 5 * groupings + 3 * LINES.looks
