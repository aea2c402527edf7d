"""CFL: rounds and splits by hand, and clients' ids kept right when a part is split again."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from corymb import datasets
from corymb.algorithms.cfl import CFL
from corymb.clustering.grouping import complete_linkage
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.engines import VectorisedEngine
from corymb.evaluate import cluster_metrics
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.settings import InvalidInput
from corymb.trees import nbytes
from tests import tiny
from tests.contracts.cases import same_bits

every_engine = pytest.mark.parametrize("engine", tiny.ENGINES)
CENTRES = np.array([[3.0, 1.0], [3.0, -1.0], [-3.0, 1.0], [-3.0, -1.0]])
GROUPS = [0, 2, 1, 3, 2, 0, 3, 1, 1, 2, 0, 3]  # so mixed that places in a part are nobody's id


def bowls(centres: np.ndarray, engine: str = "loop") -> Federation:
    """Clients whose loss is ½‖θ − c‖²: one example for each coordinate. A step of lr is θ + lr (c − θ)."""
    n, d = centres.shape
    x = torch.eye(d, dtype=torch.float64).repeat(n, 1) * (d / 2) ** 0.5
    y = torch.tensor(centres.flatten()) * (d / 2) ** 0.5
    return tiny.federation(engine, LinearRegression(d, dtype=torch.float64), tiny.clients(x, y, [d] * n))


def at_zero(n: int, d: int) -> Snapshot:
    return Snapshot(models={"weight": torch.zeros(1, d, dtype=torch.float64)}, labels=torch.full((n,), -1))


@every_engine
def test_a_split_by_hand(engine):
    fed = bowls(np.array([[1.0], [-1.0], [1.2], [-1.2]]), engine)
    run = drive(CFL(settled=0.3, apart=0.5, rounds=2, local=Descent(lr=0.5)), fed, at_zero(4, 1))
    first, second = run
    assert first.notes["mean_update"] == pytest.approx([0.0], abs=1e-15)
    assert first.notes["longest_update"] == pytest.approx([0.6])
    assert first.notes["split"] == [0]
    assert first.labels[[0, 2]].tolist() == [first.labels[0]] * 2
    assert first.labels[[1, 3]].tolist() == [1 - first.labels[0]] * 2
    assert first.models["weight"].flatten().tolist() == pytest.approx([0.0, 0.0], abs=1e-15)
    right = int(first.labels[0])
    assert float(second.models["weight"][right]) == pytest.approx(0.5 * 1.1)
    assert float(second.models["weight"][1 - right]) == pytest.approx(-0.5 * 1.1)
    assert second.notes["split"] == []


@pytest.mark.parametrize(
    ("settled", "apart", "least"),
    [(1e-9, 0.5, 3), (0.3, 0.7, 3), (0.3, 0.5, 5)],
    ids=["mean too long", "members too short", "too few"],
)
def test_no_split_where_a_condition_fails(settled, apart, least):
    fed = bowls(np.array([[1.0], [-1.0], [1.2], [-1.1]]))
    for at in drive(
        CFL(settled=settled, apart=apart, least=least, rounds=2, local=Descent(lr=0.5)), fed, at_zero(4, 1)
    ):
        assert at.k == 1
        assert at.labels.tolist() == [0] * 4


@every_engine
def test_parts_that_are_split_again_keep_their_clients(engine):
    fed = bowls(CENTRES[GROUPS], engine)
    algorithm = CFL(settled=0.05, apart=0.4, rounds=20, local=Descent(lr=0.5))
    snapshots = list(drive(algorithm, fed, at_zero(12, 2)))
    last = snapshots[-1]
    assert last.k == 4
    assert cluster_metrics(last.labels, torch.tensor(GROUPS))["misclustering"] == 0
    for i, group in enumerate(GROUPS):
        assert torch.allclose(last.models["weight"][last.labels[i]], torch.tensor(CENTRES[group]), atol=1e-3)
    splits = [(at.round, at.notes["split"]) for at in snapshots if at.notes["split"]]
    assert [len(split) for _, split in splits] == [1, 2]
    after = snapshots[splits[0][0] - 1]  # first right from left, then up from down
    assert cluster_metrics(after.labels, torch.tensor(GROUPS) // 2)["misclustering"] == 0


def test_the_well_known_mistake_would_not_pass():
    """Public code takes places in a part's matrix for clients' ids; here that puts clients into wrong clusters."""

    def halves(updates: Tensor) -> Tensor:
        return complete_linkage(updates / updates.norm(dim=1, keepdim=True), most=2).labels

    centres, mistaken = torch.tensor(CENTRES[GROUPS]), torch.zeros(12, dtype=torch.int64)
    first = halves(centres)
    mistaken[first == 1] = 1
    for part, number in ((0, 2), (1, 3)):
        mine = mistaken == part if part == 0 else first == 1
        second = halves(centres[mine] - centres[mine].mean(0))
        mistaken[second.nonzero().flatten()] = number  # and not: ids[second == 1]
    assert cluster_metrics(mistaken, torch.tensor(GROUPS))["misclustering"] > 0


def test_updates_are_asked_for_only_when_a_cluster_is_split():
    fed = bowls(CENTRES[GROUPS])
    model, label, number, weight = nbytes({"weight": torch.zeros(2).double()}), 8, 8, 4
    up, splits = 0, 0
    for at in drive(CFL(settled=0.05, apart=0.4, rounds=20, local=Descent(lr=0.5)), fed, at_zero(12, 2)):
        split = at.notes["split"]
        trained = at.k - len(split)
        parts = [*split, *range(trained, at.k)]  # what the clusters that were split are now
        said = 12 * (model + trained * weight + label + 2 * number)
        fetched = int(torch.isin(at.labels, torch.tensor(parts, dtype=torch.int64)).sum()) * model
        assert fed.ledger.bytes_up - up == said + fetched
        up, splits = fed.ledger.bytes_up, splits + len(split)
    assert splits == 3


def test_members_that_did_not_answer_go_with_the_larger_half():
    """Client 4's example is not finite: it never gives a usable reply, and ends no run."""
    centres = np.array([[1.0], [1.1], [1.2], [-1.65], [np.nan], [-1.65]])
    fed = bowls(centres)
    at = list(drive(CFL(settled=0.3, apart=0.5, rounds=1, local=Descent(lr=0.5)), fed, at_zero(6, 1)))[-1]
    assert at.k == 2
    assert at.labels[4] == at.labels[0]
    assert at.labels.tolist() in ([0, 0, 0, 1, 0, 1], [1, 1, 1, 0, 1, 0])


@every_engine
def test_a_run_goes_on_from_any_snapshot_also_after_splits(engine):
    fed = bowls(CENTRES[GROUPS], engine)
    algorithm = CFL(settled=0.05, apart=0.4, rounds=12, local=Descent(lr=0.5))
    whole = list(drive(algorithm, fed, at_zero(12, 2)))
    assert whole[-1].k == 4
    for place in reversed(range(len(whole))):
        rest = list(drive(algorithm, fed, whole[place]))
        assert all(same_bits(got, want) for got, want in zip(rest, whole[place + 1 :], strict=True))


def test_the_clusters_of_inverted_digits_are_found():
    data = datasets.digits_inverted(0)
    fed = Federation(VectorisedEngine(Classification(Network(mlp(64, [32], 10)), 10), data))
    algorithm = CFL(settled=0.4, apart=1.0, rounds=30, local=Descent(lr=0.3, steps=10))
    *_, last = drive(algorithm, fed)
    assert cluster_metrics(last.labels, data.truth)["ari"] == 1.0


@pytest.mark.parametrize("wrong", [{"settled": 0.0}, {"apart": 0.0}, {"rounds": 0}, {"least": 2}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be"):
        replace(CFL(), **wrong)
