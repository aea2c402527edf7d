"""CFL: rounds and splits by hand, and clients' ids kept right when a part is split again."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from corymb import datasets
from corymb.algorithms import cfl
from corymb.algorithms.cfl import CFL, bipartition, cosines
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


class Mute:
    """An engine some of whose clients do not answer if no others are asked."""

    def __init__(self, engine, clients):
        self._engine, self._clients = engine, set(clients)

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def run(self, call, ids):
        if not self._clients.issuperset(ids.tolist()):
            yield from self._engine.run(call, ids)


@pytest.mark.parametrize("accept", ["gamma", "evidence"])
def test_a_cluster_that_falls_silent_when_it_is_to_be_split_ends_no_run(accept, caplog):
    """All members of a cluster may be bad: once only they are asked, there is no other reply to continue with."""
    centres = np.where(CENTRES[GROUPS][:, :1] > 0, CENTRES[GROUPS], [[-3.0, 0.0]])  # on the left there is one group
    silent = [i for i, group in enumerate(GROUPS) if group < 2]
    fed = Federation(Mute(bowls(centres)._engine, silent))
    algorithm = CFL(settled=0.05, apart=0.4, rounds=20, local=Descent(lr=0.5), accept=accept)
    *_, last = drive(algorithm, fed, at_zero(12, 2))
    assert last.round == 20
    assert not fed.ledger.rejected
    if accept == "gamma":
        assert "are not split: 0 of 6 clients gave a usable reply" in caplog.text
        assert last.k == 2


def test_the_well_known_mistake_fails_the_test():
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
        bytes_sent = 12 * (model + trained * weight + label + 2 * number)
        fetched = int(torch.isin(at.labels, torch.tensor(parts, dtype=torch.int64)).sum()) * model
        assert fed.ledger.bytes_up - up == bytes_sent + fetched
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
def test_a_run_continues_from_any_snapshot_also_after_splits(engine):
    fed = bowls(CENTRES[GROUPS], engine)
    algorithm = CFL(settled=0.05, apart=0.4, rounds=12, local=Descent(lr=0.5))
    whole = list(drive(algorithm, fed, at_zero(12, 2)))
    assert whole[-1].k == 4
    splits = [place for place in range(1, len(whole)) if whole[place].k > whole[place - 1].k]
    places = range(len(whole)) if engine == "vectorised" else {place - before for place in splits for before in (1, 0)}
    for place in sorted(places, reverse=True):
        rest = list(drive(algorithm, fed, whole[place]))
        assert all(same_bits(got, want) for got, want in zip(rest, whole[place + 1 :], strict=True))


def test_the_clusters_of_inverted_digits_are_found():
    data = datasets.digits_inverted(0)
    fed = Federation(VectorisedEngine(Classification(Network(mlp(64, [32], 10)), 10), data))
    algorithm = CFL(settled=0.4, apart=1.0, rounds=30, local=Descent(lr=0.3, steps=10))
    *_, last = drive(algorithm, fed)
    assert cluster_metrics(last.labels, data.truth)["ari"] == 1.0


# ---- the paper's bipartition


@pytest.mark.parametrize("block", [1, 40, 2**22])
def test_similarities_are_added_up_in_blocks_of_coordinates(block, monkeypatch):
    monkeypatch.setattr(cfl, "BLOCK", block)
    updates = {"a": torch.rand(7, 3, 4), "b": torch.rand(7), "c": torch.rand(7, 9)}
    updates["a"][2], updates["b"][2], updates["c"][2] = 0, 0, 0  # a client that does not move
    which = torch.tensor([True, False, True, True, True, False, True])
    rows = torch.cat([value[which].reshape(5, -1) for value in updates.values()], 1).double()
    found = cosines(updates, which)
    assert torch.allclose(found, torch.nn.functional.cosine_similarity(rows[:, None], rows, dim=2), atol=1e-12)
    assert found[1].abs().max() == 0


def directions(n: int, seed: int, d: int = 3) -> Tensor:
    rows = torch.tensor(np.random.default_rng(seed).normal(size=(n, d)))
    return rows / rows.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("n", [3, 5, 8])
def test_the_cut_is_the_best_of_all_bipartitions(n, seed):
    rows = directions(n, seed)
    similarity = rows @ rows.T
    best = min(
        float(similarity[torch.tensor(side)][:, ~torch.tensor(side)].max())
        for side in itertools.product([False, True], repeat=n)
        if 0 < sum(side) < n
    )
    cut = bipartition(similarity, torch.arange(n))
    assert 0 < int(cut.second.sum()) < n
    assert not cut.second[0]
    assert float(similarity[cut.second][:, ~cut.second].max()) == pytest.approx(best, abs=1e-12)
    assert cut.across == pytest.approx(best, abs=1e-12)


def test_long_clusters_are_not_cut_across():
    """Two arcs of directions: complete linkage would cut an arc, the paper's rule cuts between them."""
    angles = torch.cat([torch.linspace(0, 1.8, 10), torch.linspace(2.4, 4.2, 10)]).double()
    rows = torch.stack([angles.cos(), angles.sin()], dim=1)
    cut = bipartition(rows @ rows.T, torch.arange(20))
    assert cut.second.tolist() == [False] * 10 + [True] * 10
    assert complete_linkage(rows, most=2).labels.tolist() != cut.second.long().tolist()


@pytest.mark.parametrize(
    "rows",
    [[[1.0, 0], [1, 0], [1, 0]], [[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]],
    ids=["all alike", "all at right angles"],
)
def test_where_cuts_are_equally_good_there_is_none(rows):
    rows = torch.tensor(rows, dtype=torch.float64)
    assert bipartition(rows @ rows.T, torch.arange(3)) is None


def test_equal_cuts_split_nothing_and_append_no_empty_model():
    algorithm = CFL(settled=9.0, apart=0.1, rounds=2, local=Descent(lr=0.5))
    at = list(drive(algorithm, bowls(np.eye(3) * 2), at_zero(3, 3)))
    assert [(snapshot.k, snapshot.notes["split"]) for snapshot in at] == [(1, [])] * 2


@pytest.mark.parametrize(("gamma_max", "k"), [(0.70, 2), (0.72, 1)])
def test_a_split_must_be_cleaner_than_gamma_max(gamma_max, k):
    """Right angles across: √((1 − 0) / 2) = 0.707."""
    centres = np.array([[1.0, 0], [1.1, 0], [0, 1.0], [0, 1.2]])
    algorithm = CFL(settled=9.0, apart=0.1, rounds=1, gamma_max=gamma_max, local=Descent(lr=0.5))
    (at,) = drive(algorithm, bowls(centres), at_zero(4, 2))
    assert at.k == k
    assert at.notes["split"] == [0] * (k - 1)
    assert len(at.labels.unique()) == k


def test_the_mean_is_weighted_by_examples():
    """Clients of one and three examples, all x = 1: y = 0 and y = 4. A step of ½ on (θ − y)² is all the way."""
    x, y = torch.ones(4, 1, dtype=torch.float64), torch.tensor([0.0, 4, 4, 4], dtype=torch.float64)
    fed = tiny.federation("loop", LinearRegression(1, dtype=torch.float64), tiny.clients(x, y, [1, 3]))
    (at,) = drive(CFL(rounds=1, local=Descent(lr=0.5)), fed, at_zero(2, 1))
    assert float(at.models["weight"]) == pytest.approx(3.0)
    assert at.notes["mean_update"] == pytest.approx([3.0])


@pytest.mark.parametrize(
    "wrong", [{"gamma_max": 1.0}, {"gamma_max": -0.1}, {"settled": 0.0}, {"apart": 0.0}, {"rounds": 0}, {"least": 2}]
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be"):
        replace(CFL(), **wrong)
