"""The server's view of a federation: samples of clients, keys, and the ledger."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corymb.core.averaging import Reduction
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation, each
from corymb.core.snapshot import Snapshot
from corymb.keys import root
from corymb.local import one_hot
from corymb.objectives import LinearRegression
from corymb.settings import InvalidInput
from corymb.trees import take
from tests.tiny import SIZES, farthest, federation, regression

N = len(SIZES)
MANY = 60


def fed_of(n: int = N, order=None) -> Federation:
    data = regression([1] * n) if n != N else regression()
    return federation("loop", LinearRegression(3, dtype=torch.float64), data if order is None else data.at(order))


@on_client
def nothing(client: Client, *given, **options):
    return client.train.weight.sum()


@on_client
def into_two(client: Client, models):
    return Share({"w": torch.ones(3)}, one_hot(torch.tensor(1), 2), torch.tensor(1), torch.ones(2))


# ---- cohorts


def test_a_cohort_knows_names_and_sizes_of_its_clients():
    fed = fed_of()
    assert len(fed.clients) == N
    some = fed.clients[[4, 1]]
    assert some.ids.tolist() == [4, 1]
    assert some.names == ["client-4", "client-1"]
    assert some.sizes.tolist() == [SIZES[4], SIZES[1]]
    assert fed.clients[torch.tensor([False, True, False, False, True, False])].ids.tolist() == [1, 4]
    assert fed.clients[2:].ids.tolist() == [2, 3, 4, 5]
    assert some[[1]].ids.tolist() == [1]  # places in this cohort


@on_client
def move_by(client: Client, model, step):
    return Share({"w": model["w"] + step}, torch.ones(1))


CHOICES = {
    "sample": lambda cohort: cohort.sample(MANY - 1),
    "drawn": lambda cohort: cohort.drawn(0.99999, root(0)),
    "slice": lambda cohort: cohort[:],
    "where": lambda cohort: cohort.where(torch.ones(MANY, dtype=torch.bool)),
    "part": lambda cohort: cohort.split(1)[0],
}


@pytest.mark.parametrize("chosen", CHOICES)
def test_replies_of_some_clients_are_expected_near_the_same_models(chosen):
    fed, models = fed_of(MANY), {"w": torch.zeros(1, 3, dtype=torch.float64)}
    fed = fed.averaged_by(Reduction("median"))
    near = CHOICES[chosen](fed.clients.near(models))
    steps = torch.ones(MANY, 1, dtype=torch.float64).index_fill(0, torch.tensor([3]), 900)
    steps[4] = 3.0
    replies = near.sum(move_by, take(models, 0), each(steps[near.ids]))
    assert [name for name, _ in replies.rejected] == ["client-3"]
    assert replies.value.mean(models)["w"].tolist() == [[1.0] * 3]  # the median


def test_some_clients_keep_the_starts_of_their_own_rows():
    fed = fed_of()
    models, by = {"w": torch.zeros(2, 3)}, torch.eye(2)[torch.arange(N) % 2]
    assert torch.equal(fed.clients.near(models, by)[[3, 0]]._near.by, by[[3, 0]])
    assert torch.equal(fed.clients.near(models, by).where(torch.arange(N) > 3)._near.by, by[4:])


@pytest.mark.parametrize(("participants", "n"), [(1, 1), (7, 7), (60, 60), (99, 60), (0.1, 6), (1.0, 60), (1e-9, 1)])
def test_a_sample_is_as_large_as_asked_for_and_in_order(participants, n):
    ids = fed_of(MANY).clients.sample(participants).ids.tolist()
    assert len(ids) == n
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("participants", [0, -1, 0.0, -0.5, 1.5, float("nan")])
def test_a_sample_of_no_clients_or_too_many_is_refused(participants):
    with pytest.raises(InvalidInput, match="participants"):
        fed_of().clients.sample(participants)


def test_without_a_number_all_clients_are_sampled():
    assert fed_of().clients.sample(None).ids.tolist() == list(range(N))


def test_samples_follow_names_seed_clock_and_the_number_of_the_draw():
    fed, order = fed_of(MANY), list(reversed(range(MANY)))
    moved = fed_of(MANY, order)
    drawn = []
    for seed, clock in ((0, 0), (0, 1), (1, 0)):
        for one in (fed, moved):
            one.set_clock(seed=seed, clock=clock)
        for _ in range(2):
            names = [set(one.clients.sample(20).names) for one in (fed, moved)]
            assert names[0] == names[1]
            drawn.append(frozenset(names[0]))
    assert len(set(drawn)) == 6
    fed.set_clock(seed=0, clock=0)
    assert set(fed.clients.sample(20).names) == drawn[0]


def test_all_clients_are_equally_likely_to_be_sampled():
    fed, seen = fed_of(MANY), torch.zeros(MANY)
    for clock in range(400):
        fed.set_clock(seed=0, clock=clock)
        seen[fed.clients.sample(6).ids] += 1
    assert float(((seen - 40) ** 2 / 36).sum()) < 150  # 59 degrees of freedom


def test_another_client_changes_a_sample_little():
    """One more client replaces at most one member of the sample."""
    all_of_them, but_one = fed_of(MANY), fed_of(MANY, range(1, MANY))
    one, other = (set(fed.clients.sample(20).names) for fed in (all_of_them, but_one))
    assert len(one - other) <= 1


@settings(max_examples=20)
@given(st.integers(1, 9))
def test_a_split_has_each_client_once(n):
    parts = fed_of(MANY).clients.split(n)
    assert len(parts) == n
    assert sorted(i for part in parts for i in part.ids.tolist()) == list(range(MANY))
    assert {len(part) for part in parts} <= {MANY // n, MANY // n + 1}


# ---- keys


def test_the_servers_keys_follow_seed_clock_and_purpose():
    fed = fed_of()
    keys = set()
    for seed in (0, 1):
        for clock in (0, 1):
            fed.set_clock(seed=seed, clock=clock)
            keys |= {int(fed.key("a")), int(fed.key("b")), int(fed.draw("a")), int(fed.draw("a"))}
            keys.add(int(fed.evaluation().key("a")))
            assert int(fed.key("a")) in keys  # asked again, the same
    assert len(keys) == 4 * 5


def test_a_call_advances_the_draws_of_a_tick_and_an_evaluation_does_not():
    fed = fed_of()
    first = int(fed.draw("a"))
    fed.set_clock(seed=0, clock=0)
    fed.evaluation().clients.map(nothing)
    fed.evaluation().draw("a")
    assert int(fed.draw("a")) == first
    fed.set_clock(seed=0, clock=0)
    fed.clients.map(nothing)
    assert int(fed.draw("a")) != first


def test_a_sub_federation_shares_clock_keys_and_ledger():
    fed = fed_of()
    some = fed.only(fed.clients[[1, 3]])
    fed.set_clock(seed=5, clock=7)
    assert (some.seed, some.clock) == (5, 7)
    assert int(some.key("a")) == int(fed.key("a"))
    replies = some.clients.map(nothing)
    assert replies.clients.ids.tolist() == [1, 3]
    assert replies.value.tolist() == [SIZES[1], SIZES[3]]
    assert fed.ledger.asked == 2
    drawn = int(fed.draw("a"))
    fed.set_clock(seed=5, clock=7)
    fed.clients.map(nothing)
    assert int(some.draw("a")) == drawn


# ---- the ledger


def test_the_ledger_counts_what_each_client_is_sent_and_sends():
    fed = fed_of()
    models = {"w": torch.zeros(2, 3), "b": torch.zeros(2, dtype=torch.float64)}
    fed.clients[[0, 1, 2]].map(nothing, models, each({"x": torch.zeros(3, 5)}), 7, flag=True, more=torch.zeros(4))
    down = 2 * 3 * 4 + 2 * 8 + 5 * 4 + 4 * 4
    assert fed.ledger.bytes_down == 3 * down
    assert fed.ledger.bytes_up == 3 * 8
    assert (fed.ledger.asked, fed.ledger.replied, fed.ledger.rounds, fed.ledger.rejected) == (3, 3, 0, [])
    fed.clients[[0, 1]].map(nothing, each(models, of=torch.tensor([1, 0])))
    assert fed.ledger.bytes_down == 3 * down + 2 * (3 * 4 + 8)
    fed.clients.sum(into_two, models)
    assert fed.ledger.bytes_up == (3 + 2) * 8 + N * (3 * 4 + 2 * 4 + 8 + 2 * 4)
    before = fed.ledger.bytes_up
    fed.evaluation().clients.map(nothing)
    assert fed.ledger.bytes_up == before


def test_sums_come_with_labels_and_notes_as_rows():
    value = fed_of().clients.sum(into_two, {}).value
    assert value.total["w"].tolist() == [[0] * 3, [N] * 3]
    assert value.weight.tolist() == [0, N]
    assert value.label.tolist() == [1] * N
    assert value.note.shape == (N, 2)


# ---- snapshots


def test_a_fresh_snapshot_has_k_different_models_and_no_labels():
    fed = fed_of()
    at = Snapshot.fresh(fed, 3)
    assert at.k == 3
    assert at.labels.tolist() == [-1] * N
    assert len(at.models["weight"].unique(dim=0)) == 3
    assert farthest(at.models, Snapshot.fresh(fed, 3).models) == 0
    fed.set_clock(seed=0, clock=1)
    assert farthest(at.models, Snapshot.fresh(fed, 3).models) > 0


def test_new_labels_of_some_clients_keep_those_of_the_others():
    fed = fed_of()
    at = Snapshot.fresh(fed, 3).next(labels=(fed.clients[[4, 1]], torch.tensor([2, 0])))
    assert at.labels.tolist() == [-1, 0, -1, -1, 2, -1]
    later = at.next(labels=(fed.clients[[0]], torch.tensor([1])))
    assert later.labels.tolist() == [1, 0, -1, -1, 2, -1]
    assert at.labels.tolist() == [-1, 0, -1, -1, 2, -1]
    assert later.round == 2
    assert later.next().labels is later.labels
    with pytest.raises(ValueError, match="carry no labels"):
        at.next(labels=(fed.clients, None))


def test_only_tensors_have_a_row_for_each_client():
    """A list or an array would go to every client whole: each of them would learn what is there for the others."""
    fed = fed_of()
    n = len(fed.names)
    for odd, said in (
        (list(range(n)), "got a list with a int in it"),
        (np.arange(n), "got a ndarray"),
        ({"a": torch.ones(n), "b": np.ones(n)}, "got a dict with a ndarray in it"),
        (3, "got a int"),
    ):
        with pytest.raises(TypeError, match=rf"each\(...\) wants tensors .*{said}\. torch.as_tensor converts"):
            each(odd)
        with pytest.raises(TypeError, match=rf"pick\(...\) wants tensors .*{said}"):
            fed.clients.pick(odd)
    assert each((torch.ones(n), None)).rows[1] is None
