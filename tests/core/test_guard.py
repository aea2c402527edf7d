import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.core.client import Share, Shares
from corymb.core.federation import Federation
from corymb.core.guard import MAX_SIZE_ALLOWANCE, bounds, clearly_near, largest_possible, levels, too_far
from corymb.core.intake import Intake
from corymb.core.lengths import Lengths, Near, measured, part_lengths, row_lengths
from corymb.core.sums import Sums, add_up
from corymb.engines import LoopEngine
from corymb.keys import fold, integers, normal, permutation, root, uniform
from corymb.objectives import LinearRegression
from corymb.testing.engines import DOUBLE
from corymb.testing.small_data import regression
from corymb.trees import take
from tests.tiny import farthest

MODELS = {"weight": torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], dtype=torch.float64)}
NEAR = Near(MODELS)
SIZES = torch.full((9,), 10)


def replies(far=None, label=None):
    """Nine clients' models, whose updates have the lengths 1.0, 1.1, ...; `far` are lengths of some of them."""
    label = torch.arange(9) % 2 if label is None else label
    length = 1 + torch.arange(9, dtype=torch.float64) / 10
    for client, one in (far or {}).items():
        length[client] = one
    value = MODELS["weight"][label] + length[:, None] * torch.tensor([0.0, 0.6, -0.8], dtype=torch.float64)
    weight = torch.nn.functional.one_hot(label, 2).double()
    return Share({"weight": value}, weight, label, torch.arange(9.0))


def take_in(rows, near=NEAR, *, verb="sum", order=None, guard=True):
    """The part from these replies, taken in all at once or one by one in an order."""
    intake = Intake(verb, torch.arange(9), SIZES, near=near, guard=guard)
    if order is None:
        intake.add_rows(torch.arange(9), rows, {})
    else:
        for client in order:
            intake.add_rows(torch.tensor([client]), take(rows, slice(client, client + 1)), {})
    return intake.result().part


def test_lengths_are_from_the_model_that_a_client_started_from():
    found = row_lengths(replies({3: 40.0}), NEAR, 9)
    assert torch.allclose(found.length, torch.tensor([1.0, 1.1, 1.2, 40.0, 1.4, 1.5, 1.6, 1.7, 1.8]).double())
    assert found.group.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("order", [None, range(9), [3, 8, 0, 1, 2, 4, 5, 6, 7], permutation(root(0), 9).tolist()])
@pytest.mark.parametrize("length", [60.0, 1e3, 1e9, 1e14])
def test_an_update_that_is_far_too_long_is_refused_whatever_its_length_and_order(order, length):
    part = take_in(replies({3: length}), order=order)
    assert sorted(part.ids.tolist()) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert [client for client, _ in part.rejected] == [3]
    assert "times as long as is usual" in part.rejected[0][1]
    want = add_up(take(replies(), [0, 1, 2, 4, 5, 6, 7, 8]))
    assert farthest((part.value.total, part.value.weight), (want.total, want.weight)) < 1e-12
    rows = part.ids.argsort()
    assert part.value.note[rows].tolist() == [0, 1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("order", [None, range(9)])
def test_honest_updates_are_accepted_and_their_sum_is_unchanged(order):
    guarded, plain = (take_in(replies(), order=order, guard=guard) for guard in (True, False))
    assert guarded.rejected == []
    assert torch.equal(guarded.value.total["weight"], plain.value.total["weight"])


def test_rows_are_compared_as_well():
    part = take_in(replies({2: 1e6}), verb="map")
    assert [client for client, _ in part.rejected] == [2]


def test_without_a_model_to_start_from_only_a_thousand_times_the_others_is_refused():
    assert take_in(replies({3: 300.0}), near=None).rejected == []
    assert [client for client, _ in take_in(replies({3: 1e6}), near=None).rejected] == [3]


def test_a_cluster_that_moves_farther_than_the_others_is_compared_with_itself():
    label = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1])
    honest = {6: 50.0, 7: 60.0, 8: 70.0}
    assert take_in(replies(honest, label)).rejected == []
    assert [client for client, _ in take_in(replies({**honest, 8: 900.0}, label)).rejected] == [8]
    alone = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 1])
    assert take_in(replies({8: 50.0}, alone)).rejected == []
    assert [client for client, _ in take_in(replies({8: 1e5}, alone)).rejected] == [8]


def test_a_few_clients_that_go_equally_far_are_a_cluster_and_one_is_not():
    one_model = torch.zeros(9, dtype=torch.int64)
    assert take_in(replies({7: 20.0, 8: 24.0}, one_model)).rejected == []
    assert [client for client, _ in take_in(replies({8: 24.0}, one_model)).rejected] == [8]
    assert [client for client, _ in take_in(replies({7: 24.0, 8: 1e3}, one_model)).rejected] == [7, 8]
    assert [client for client, _ in take_in(replies({7: 1e3, 8: 1e3}, one_model)).rejected] == [7, 8]


def test_lengths_that_rise_by_degrees_are_of_honest_clients():
    one_model = torch.zeros(9, dtype=torch.int64)
    rising = dict(enumerate([3.76, 6.43, 1.57, 1.28, 3.74, 1.09, 1.34, 1.0, 0.62]))
    assert take_in(replies(rising, one_model)).rejected == []
    assert [client for client, _ in take_in(replies({**rising, 1: 12.0}, one_model)).rejected] == [1]
    assert [client for client, _ in take_in(replies({7: 20.0, 8: 1e3}, one_model)).rejected] == [7, 8]
    states = {5: 2.5, 6: 4.0, 7: 7.0, 8: 12.0}  # as far as California goes on a table of 48 states
    assert take_in(replies(states, one_model)).rejected == []
    assert [client for client, _ in take_in(replies({**states, 8: 15.0}, one_model)).rejected] == [8]


def test_a_client_with_more_examples_may_go_farther_up_to_ten_times():
    one_model, sizes = torch.zeros(9, dtype=torch.int64), SIZES.clone()
    sizes[8] = 40
    for length, named in ((7.0, []), (60.0, [8])):
        for who in (None, range(9)):
            intake = Intake("sum", torch.arange(9), sizes, near=NEAR)
            rows = replies({8: length}, one_model)
            for client in who or []:
                intake.add_rows(torch.tensor([client]), take(rows, slice(client, client + 1)), {})
            if who is None:
                intake.add_rows(torch.arange(9), rows, {})
            assert [client for client, _ in intake.result().part.rejected] == named
    assert [client for client, _ in take_in(replies({8: 7.0}, one_model)).rejected] == [8]


@pytest.mark.parametrize("order", [None, range(9)])
def test_a_client_with_several_models_is_compared_in_all_that_have_weight(order):
    rows = replies()
    value = torch.stack([rows.value["weight"], MODELS["weight"][1].expand(9, 3)], dim=1)
    value[4, 1] += 1e4
    shares = Shares({"weight": value}, torch.full((9, 2), 0.5).double(), rows.label, rows.note)
    assert [client for client, _ in take_in(shares, order=order).rejected] == [4]
    nothing = shares._replace(weight=torch.tensor([0.5, 0.0]).double().expand(9, 2).contiguous())
    assert take_in(nothing, order=order).rejected == []


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=30), st.integers(0, 99))
def test_at_most_a_minority_is_refused_and_never_the_shorter_half(lengths, seed):
    length = torch.tensor(lengths, dtype=torch.float64)
    found = Lengths(length, torch.zeros(len(length), dtype=torch.int64))
    limit = bounds(found, NEAR)
    far = limit.over(levels(length), found.group)
    assert not bool(far[length <= length[length > 0].median()].any() if bool(far.any()) else False)
    shuffled = permutation(root(seed), len(length))
    assert 2 * int(far.sum()) <= len(length)
    again = bounds(Lengths(length[shuffled], found.group), NEAR)
    assert (again.everybody, again.by_group) == (limit.everybody, limit.by_group)


def test_tiny_updates_are_never_too_long():
    lengths = dict.fromkeys(range(9), 1e-9) | {5: 1e-4}
    assert take_in(replies(lengths)).rejected == []


def test_a_reply_of_another_form_is_not_compared_but_outvoted():
    rows = replies()
    intake = Intake("sum", torch.arange(9), SIZES, near=NEAR)
    for client in range(9):
        one = take(rows, slice(client, client + 1))
        if client == 2:
            one = one._replace(value={"another": one.value["weight"]})
        if client == 4:
            one = one._replace(value={"weight": one.value["weight"][:, :1]})
        intake.add_rows(torch.tensor([client]), one, {})
    assert [client for client, _ in intake.result().part.rejected] == [2, 4]


def test_sums_without_clusters_belong_to_no_group():
    """A host may send partial sums with no clusters at all."""
    nothing = Sums({"weight": torch.zeros(0, 3)}, torch.zeros(0), None, None)
    lengths = part_lengths(nothing, None, 4)
    assert lengths.group.tolist() == [-1] * 4


@pytest.mark.parametrize("clients", [3, 4, 5])
def test_among_few_clients_only_an_update_thirty_times_as_long_is_refused(clients):
    """Five shares, one of which is fifteen times as dear: nobody can say what is usual. Members of a small cluster in a
    larger federation are compared more strictly."""
    length, group = torch.arange(1.0, clients + 1).double(), torch.zeros(clients, dtype=torch.int64)
    for times, handful, refused in ((15, True, False), (15, False, True), (100, True, True)):
        length[-1] = times * length[:-1].max()
        limit = bounds(Lengths(length, group), Near({"weight": torch.ones(1, 3)}, handful=handful))
        assert limit.over(levels(length), group).tolist() == [False] * (clients - 1) + [refused]


@pytest.mark.parametrize(("clients", "handful"), [(5, True), (6, False)])
def test_the_federation_knows_whether_it_is_small(clients, handful):
    fed = Federation(LoopEngine(LinearRegression(3), regression(tuple(range(2, 2 + clients))), DOUBLE))
    assert fed.clients[:3].near(MODELS)._near.handful is handful


# ---- wide rows, and what lengths say of the numbers in a row


@pytest.mark.parametrize(("n", "width"), [(1, 1), (3, 700), (50, 3), (9, 64), (70, 33)])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("wide", [2**16, 1])
def test_lengths_are_the_same_piece_by_piece(n, width, k, mixed, wide, monkeypatch):
    monkeypatch.setattr("corymb.core.lengths.WIDE_ROW_ENTRIES", wide)
    monkeypatch.setattr("corymb.core.lengths.CPU_BLOCK_ENTRIES", 64)
    monkeypatch.setattr("corymb.core.lengths.MIN_BLOCK_ROWS", 4)
    value, starts = normal(root(0), (n, width)), normal(root(1), (k, width))
    label = torch.arange(n) % k
    weight = torch.nn.functional.one_hot(label, k) + 0.5 * mixed
    own = (weight / weight.sum(1, keepdim=True)).double() @ starts.double()
    found = row_lengths(Share({"a": value}, weight.float()), Near({"a": starts}), n)
    assert torch.allclose(found.length, (value.double() - own).norm(dim=1), rtol=1e-6)


@given(st.integers(0, 10**6), st.floats(-30, 40))
def test_no_number_is_larger_than_its_length_allows(seed, size):
    key = fold(root(seed), "rows")
    rows = {"a": normal(key, (5, 7)) * 10.0**size, "b": normal(fold(key, 1), (5,))}
    models = {"a": normal(fold(key, 2), (2, 7)), "b": normal(fold(key, 3), (2,)) * 10.0 ** (size / 2)}
    replies = Share(rows, (normal(fold(key, 4), (5, 2)) > 0).float() * 3)
    for near in (None, Near(models)):
        lengths = row_lengths(replies, near, 5)
        most = largest_possible(
            replies, near, lengths.allowing(torch.tensor([0.1, 1.0, 2.0, 50.0, 1e9]), MAX_SIZE_ALLOWANCE)
        )
        largest = torch.maximum(rows["a"].abs().amax(1), rows["b"].abs()).double()
        assert not bool((largest > most).any())  # NaN, of a row that goes into no sum, is no bound either


def test_lengths_bound_nothing_if_the_start_is_unknown():
    rows = Share({"weight": torch.full((1, 3), 1e20).double()}, torch.tensor([[1e20, 1 - 1e20]]).double())
    assert largest_possible(rows, NEAR, Lengths(torch.ones(1).double(), torch.tensor([-1]))).item() == torch.inf
    more = Share({"weight": torch.zeros(1, 3), "more": torch.full((1,), torch.nan)}, torch.ones(1, 2))
    assert largest_possible(more, NEAR, Lengths.none(1)) is None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 2e15, -1e30])
@pytest.mark.parametrize("near", [True, False])
def test_non_finite_and_huge_values_are_found_anywhere(bad, near):
    starts = {"wide": normal(root(0), (1, 1003)), "number": normal(root(1), (1,))}
    for place in (0, 7, 8, 500, 1001, 1002, "number"):
        value = {name: start.repeat(6, *[1] * (start.dim() - 1)) + 0.1 for name, start in starts.items()}
        if place == "number":
            value["number"][4] = bad
        else:
            value["wide"][4, place] = bad
        found = [
            Intake("sum", torch.arange(6), torch.full((6,), 5), near=Near(starts) if near else None, guard=guarded)
            for guarded in (True, False)
        ]
        for intake in found:
            intake.add_rows(torch.arange(6), Share(value, torch.ones(6, 1), note=torch.zeros(6)), {})
        guarded, plain = (intake.result().part for intake in found)
        assert guarded.rejected == plain.rejected
        assert [client for client, _ in plain.rejected] == [4]
        assert torch.equal(guarded.value.total["wide"], plain.value.total["wide"])


# ---- the short look


def drawn_replies(seed, scale, strange):
    """Replies of seven clients near two models: alike, or with something strange about one of them."""
    key = fold(root(seed), "short look")
    models = {"a": normal(key, (2, 4)), "b": normal(fold(key, 1), (2,))}
    label = integers(fold(key, 2), 2, (7,))
    moves = 10.0**scale * (1 + uniform(fold(key, 3), (7,)))
    value = {
        n: m[label] + moves.reshape(-1, *[1] * (m.dim() - 1)) * normal(fold(key, n), (7, *m.shape[1:]))
        for n, m in models.items()
    }
    weight = torch.nn.functional.one_hot(label, 2).float()
    if strange == "still":
        value = {n: v.index_copy(0, torch.tensor([3]), models[n][label[3:4]]) for n, v in value.items()}
    if strange in ("nan", "far", "huge"):
        value["a"][2] += {"nan": torch.nan, "far": 40 * 10.0**scale, "huge": 1e20}[strange]
    if strange in ("two", "none", "negative"):
        weight[4] = torch.tensor({"two": [1.0, 1.0], "none": [0.0, 0.0], "negative": [2.0, -1.0]}[strange])
    return Share(value, weight), Near(models)


@given(
    st.integers(0, 10**6),
    st.floats(-6, 6),
    st.sampled_from(["", "", "still", "nan", "far", "huge", "two", "none", "negative"]),
    st.lists(st.floats(0.1, 20), min_size=7, max_size=7),
)
def test_the_fast_check_accepts_only_what_the_full_check_accepts(seed, scale, strange, larger):
    rows, near = drawn_replies(seed, scale, strange)
    larger = torch.tensor(larger).double()
    found = measured(rows, near, 7)
    if not bool(clearly_near(found, near, larger, 1e15)):
        return
    assert strange not in ("still", "nan", "huge", "two", "none", "negative")
    lengths = row_lengths(rows, near, 7).allowing(larger, MAX_SIZE_ALLOWANCE)
    assert too_far(lengths, near) is None
    assert bool((largest_possible(rows, near, lengths) <= 1e15).all())


def test_the_fast_check_accepts_similar_replies():
    rows, near = drawn_replies(0, -2, "")
    assert bool(clearly_near(measured(rows, near, 7), near, torch.ones(7).double(), 1e15))


@pytest.mark.parametrize("changes", [{"loose": True}, {"most": 3.0}, {"by": torch.ones(7, 2)}])
def test_the_fast_check_leaves_other_bounds_to_the_full_check(changes):
    rows, near = drawn_replies(0, -2, "")
    near = near._replace(**changes)
    assert clearly_near(measured(rows, near, 7), near, torch.ones(7).double(), 1e15) is None
