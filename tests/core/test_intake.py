import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.core import sums
from corymb.core.client import Share, Shares
from corymb.core.engine import Part
from corymb.core.intake import MAX_REASON_LENGTH, Intake
from corymb.core.lengths import Near
from corymb.core.rules import MAX_MAGNITUDE, flag_rows, row_faults
from corymb.core.sums import RowBuffer, RunningSum, Sums, add_up, sums_of
from corymb.messages import part_from_bytes, part_to_bytes
from corymb.trees import take
from tests.tiny import farthest

numbers = st.floats(-100, 100)


def double(values, *shape):
    return torch.tensor(values, dtype=torch.float64).reshape(*shape)


@st.composite
def replies(draw):
    """n clients' stacked shares: a matrix, a vector and a number into k sums, by weights that are often 0."""
    n, k, own = draw(st.integers(1, 7)), draw(st.integers(1, 3)), draw(st.booleans())
    lead = (n, k) if own else (n,)
    size = n * k if own else n

    def drawn(*shape):
        count = size
        for length in shape:
            count *= length
        return double(draw(st.lists(numbers, min_size=count, max_size=count)), *lead, *shape)

    weights = st.sampled_from([0.0, 0.0, 1.0]) | st.floats(1e-6, 5)  # a weight that underflows has no mean
    weight = double(draw(st.lists(weights, min_size=n * k, max_size=n * k)), n, k)
    label = torch.tensor(draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n)))
    value = {"matrix": drawn(2, 3), "vector": drawn(2), "number": drawn()}
    return (Shares if own else Share)(value, weight, label, {"loss": torch.arange(n) / 7})


def by_hand(rows, chosen):
    """The definition: one client after another, one sum after another."""
    k = rows.weight.shape[1]
    own = isinstance(rows, Shares)
    total = {}
    for name, value in rows.value.items():
        sums = torch.zeros(k, *value.shape[2 if own else 1 :], dtype=torch.float64)
        for i in chosen:
            for j in range(k):
                sums[j] += float(rows.weight[i, j]) * (value[i, j] if own else value[i])
        total[name] = sums
    weight = torch.zeros(k, dtype=torch.float64)
    for i in chosen:
        weight += rows.weight[i]
    return total, weight


@given(replies())
def test_sums_are_those_of_a_loop(rows):
    total, weight = by_hand(rows, range(len(rows.weight)))
    sums = add_up(rows)
    assert farthest(sums.total, total) < 1e-9
    assert farthest(sums.weight, weight) < 1e-9
    assert torch.equal(sums.label, rows.label)
    assert torch.equal(sums.note["loss"], rows.note["loss"])


def asked(verb, n=10, size=4):
    """An intake for n clients with so many examples each."""
    return Intake(verb, torch.arange(n), torch.full((n,), size))


def taken_in(rows, chunks):
    intake = asked("sum", size=5)
    for chunk in chunks:
        index = torch.tensor(chunk)
        intake.add_rows(index, take(rows, index), {})
    part, writes, *_ = intake.result()
    assert len(writes) == len(chunks)
    return part


@given(replies(), st.data())
def test_neither_chunks_nor_order_change_sums(rows, data):
    n = len(rows.weight)
    order = data.draw(st.permutations(range(n)))
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    chunks = [order[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    part = taken_in(rows, chunks)
    want = add_up(rows)
    assert part.rejected == []
    assert part.ids.tolist() == list(order)
    assert farthest(part.value.total, want.total) < 1e-9
    assert farthest(part.value.weight, want.weight) < 1e-9
    assert torch.equal(part.value.label, rows.label[list(order)])
    assert torch.equal(part.value.note["loss"], rows.note["loss"][list(order)])


@given(replies(), st.floats(0.1, 3))
def test_a_common_factor_on_the_weights_changes_no_mean(rows, factor):
    empty = {name: torch.full_like(total, 9.0) for name, total in add_up(rows).total.items()}
    once = add_up(rows).mean(empty)
    again = add_up(rows._replace(weight=rows.weight * factor)).mean(empty)
    assert farthest(once, again) < 1e-9


@given(replies())
def test_a_mean_is_the_mean_and_a_row_without_weight_is_kept(rows):
    total, weight = by_hand(rows, range(len(rows.weight)))
    empty = {name: torch.full_like(value, 9.0) for name, value in total.items()}
    mean = add_up(rows).mean(empty)
    for name, value in total.items():
        for j in range(len(weight)):
            want = value[j] / weight[j] if weight[j] > 0 else empty[name][j]
            assert torch.allclose(mean[name][j], want, rtol=1e-9, atol=1e-9)


def test_a_mean_without_weight_ignores_nan():
    sums = Sums({"w": torch.tensor([[6.0], [0.0]])}, torch.tensor([2.0, 0.0]), None, ())
    assert torch.equal(sums.mean({"w": torch.tensor([[float("nan")], [7.0]])})["w"], torch.tensor([[3.0], [7.0]]))


@given(replies(), st.data())
def test_a_row_that_is_not_finite_is_dropped_even_where_its_weight_is_zero(rows, data):
    n = len(rows.weight)
    bad = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=max(1, n - 1)))
    ill = data.draw(st.sampled_from([float("nan"), float("inf"), -float("inf")]))
    name = data.draw(st.sampled_from(["matrix", "vector", "number"]))
    index = torch.tensor(sorted(bad))
    rows.value[name][index] = ill
    rows.weight[index] *= data.draw(st.sampled_from([0.0, 1.0]))
    good = [i for i in range(n) if i not in bad]
    part = taken_in(rows, [list(range(n))]) if good else None
    if part is not None:
        total, weight = by_hand(rows, good)
        assert farthest(part.value.total, total) < 1e-9
        assert farthest(part.value.weight, weight) < 1e-9
        assert part.ids.tolist() == good
        assert sorted(part.rejected) == [(i, "value is not finite") for i in sorted(bad)]


def share(**changes):
    """Three good clients into two sums, in float64."""
    rows = Share({"w": double([1, 2, 3], 3, 1)}, torch.eye(2).double()[[0, 1, 0]], torch.tensor([0, 1, 0]), ())
    return rows._replace(**changes)


SIZES = torch.tensor([4, 4, 4])
FAULTS = {
    "negative weight": (share(weight=double([1, 0, -1, 0, 1, 0], 3, 2)), {1: "negative"}),
    "weight too large": (share(weight=double([5, 0, 0, 1, 1, 0], 3, 2)), {0: "more than the client's size"}),
    "weight not a number": (share(weight=double([1, 0, 0, 1, float("nan"), 0], 3, 2)), {2: "not finite"}),
    "label too large": (share(label=torch.tensor([0, 2, 0])), {1: "out of range for 2"}),
    "label negative": (share(label=torch.tensor([-1, 0, 0])), {0: "out of range for 2"}),
    "one of two labels": (share(label=torch.tensor([[0, 1], [0, 7], [1, 1]])), {1: "out of range for 2"}),
    "note not finite": (share(note=double([0, 0, float("inf")], 3)), {2: "not finite"}),
    "too large to be added": (share(value={"w": double([1, 1.7e308, 3], 3, 1)}), {1: "too large"}),
    "too large times its weight": (
        share(value={"w": double([1, 1e308, 3], 3, 1)}, weight=double([1, 0, 0, 4, 1, 0], 3, 2)),
        {1: "too large"},
    ),
    "several": (
        share(weight=double([1, 0, -1, 0, 1, 0], 3, 2), label=torch.tensor([0, 0, 5])),
        {1: "negative", 2: "out of range"},
    ),
}


@pytest.mark.parametrize(("rows", "wanted"), FAULTS.values(), ids=FAULTS)
def test_faults_are_found_row_by_row(rows, wanted):
    found = row_faults(rows, flag_rows(rows, SIZES))
    assert found.keys() == wanted.keys()
    assert all(wanted[row] in found[row] for row in found)


@pytest.mark.parametrize(("rows", "wanted"), FAULTS.values(), ids=FAULTS)
def test_faulty_rows_never_reach_a_sum(rows, wanted):
    intake = Intake("sum", torch.tensor([10, 11, 12]), SIZES)
    intake.add_rows(torch.tensor([10, 11, 12]), rows, {})
    part = intake.result().part
    good = [row for row in range(3) if row not in wanted]
    total, weight = by_hand(rows, good)
    assert part.ids.tolist() == [10 + row for row in good]
    assert {client - 10 for client, _ in part.rejected} == wanted.keys()
    assert farthest(part.value.total, total) < 1e-9
    assert farthest(part.value.weight, weight) < 1e-9


def test_as_much_weight_as_examples_is_allowed():
    rows = share(weight=double([4, 0, 0, 4, 4, 4], 3, 2))
    assert row_faults(rows, flag_rows(rows, SIZES)) == {}


@pytest.mark.parametrize("chunks", [[range(7)], [range(3), range(3, 7)]])
def test_statistics_may_be_as_long_as_a_client_has_examples(chunks):
    """Counts of 20,000 test examples were refused where the other clients have one."""
    sizes, rejected = torch.tensor([4] * 6 + [80_000]), []
    for large in (6, 0):  # the client with most examples, and one that has as few as the others
        counts = torch.ones(7, 1).index_fill(0, torch.tensor(large), 20_000.0)
        intake = Intake("sum", torch.arange(7), sizes)
        for chunk in map(list, chunks):
            intake.add_rows(torch.tensor(chunk), Share({"tested": counts[chunk]}, torch.ones(len(chunk), 1)), {})
        rejected.append([client for client, _ in intake.result().part.rejected])
    assert rejected == [[], [0]]


def test_large_finite_rows_that_only_add_up_to_infinity_within_a_row_are_fine_in_a_map():
    intake = asked("map")
    intake.add_rows(torch.arange(2), {"w": torch.full((2, 3), 3e38)}, {})
    part = intake.result().part
    assert part.ids.tolist() == [0, 1]
    assert part.rejected == []


@pytest.mark.parametrize("shape", [(2, 0), (2, 0, 3), (2, 3, 0)])
def test_values_without_numbers_add_up_to_none(shape):
    """Found by fuzzing: clients that sent empty tensors ended the run."""
    total = add_up(Share({"w": torch.zeros(shape)}, torch.ones(2, 4))).total["w"]
    assert total.shape == (4, *shape[1:])


def test_whole_numbers_are_summed_by_fractional_weights():
    rows = Share({"count": torch.tensor([4, 6])}, double([0.5, 0.25], 2, 1))
    assert add_up(rows).total["count"].tolist() == [3.5]


def test_a_mean_of_whole_numbers_need_not_be_whole():
    sums = add_up(Share({"count": torch.tensor([1, 2])}, torch.ones(2, 1)))
    assert sums.mean({"count": torch.zeros(1)})["count"].tolist() == [1.5]


def odd_one_out(rows, odd, *, first):
    """Three clients like `rows` and one like `odd`, which comes first or last."""
    intake = asked("sum")
    for client, reply in [(9, odd), *enumerate(rows)] if first else [*enumerate(rows), (9, odd)]:
        intake.add_rows(torch.tensor([client]), reply, {})
    return intake.result().part


ODD = {
    "shape": Share({"w": torch.zeros(1, 2).double()}, torch.ones(1, 2).double(), torch.tensor([0]), ()),
    "dtype": Share({"w": torch.zeros(1, 1)}, torch.ones(1, 2).double(), torch.tensor([0]), ()),
    "name": Share({"v": torch.zeros(1, 1).double()}, torch.ones(1, 2).double(), torch.tensor([0]), ()),
    "more sums": Share({"w": torch.zeros(1, 1).double()}, torch.ones(1, 3).double(), torch.tensor([0]), ()),
    "weight no vector": Share({"w": torch.zeros(1, 1).double()}, torch.ones(1).double(), torch.tensor([0]), ()),
    "weight a matrix": Share({"w": torch.zeros(1, 1).double()}, torch.ones(1, 2, 2).double(), torch.tensor([0]), ()),
    "weight nothing": Share({"w": torch.zeros(1, 1).double()}, None, torch.tensor([0]), ()),
    "label a tree": Share({"w": torch.zeros(1, 1).double()}, torch.ones(1, 2).double(), {"a": torch.zeros(1)}, ()),
    "no label": Share({"w": torch.zeros(1, 1).double()}, torch.ones(1, 2).double(), None, ()),
    "label a vector": Share({"w": torch.zeros(1, 1).double()}, torch.ones(1, 2).double(), torch.zeros(1, 2), ()),
    "a note": Share({"w": torch.zeros(1, 1).double()}, torch.ones(1, 2).double(), torch.tensor([0]), torch.ones(1)),
    "Shares": Shares({"w": torch.zeros(1, 2, 1).double()}, torch.ones(1, 2).double(), torch.tensor([0]), ()),
    "Shares without k rows": Shares({"w": torch.zeros(1, 3).double()}, torch.ones(1, 2).double(), None, ()),
    "not a share": {"w": torch.zeros(1, 1).double()},
    "nothing": None,
}


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_the_form_of_most_replies_wins(odd, first):
    rows = [take(share(), slice(i, i + 1)) for i in range(3)]
    part = odd_one_out(rows, odd, first=first)
    assert part.ids.tolist() == [0, 1, 2]
    assert [client for client, _ in part.rejected] == [9]
    assert farthest(part.value.total, add_up(share()).total) < 1e-12


def test_an_odd_share_in_a_map_ends_nothing():
    intake = asked("map")
    for client in range(3):
        intake.add_rows(torch.tensor([client]), take(share(), slice(0, 1)), {})
    intake.add_rows(torch.tensor([9]), ODD["weight no vector"], {})
    intake.add_rows(torch.tensor([8]), take(share(label=torch.tensor([7, 7, 7])), slice(0, 1)), {})
    part = intake.result().part
    assert part.ids.tolist() == [0, 1, 2]
    assert sorted(client for client, _ in part.rejected) == [8, 9]


def test_no_replies_are_an_empty_part():
    part, writes, hosts, bytes_up = asked("map").result()
    assert (len(part.ids), part.value, part.rejected, writes, hosts, bytes_up) == (0, None, [], [], [], 0)


def test_a_running_sum_keeps_rows_in_the_order_in_which_they_came():
    one, two = add_up(share()), add_up(share(label=torch.tensor([1, 1, 1])))
    running = RunningSum(one)
    running.add(two)
    assert running.result().label.tolist() == [0, 1, 0, 1, 1, 1]
    assert farthest(running.result().total, {"w": one.total["w"] + two.total["w"]}) == 0


# ---- parts, from hosts that may lie


def part(*ids, host="", weight=None, total=1.0, labels=None, k=2, **more):
    """A partial sum of these clients, of whom each weighs 1 in the first of k sums."""
    n = len(ids)
    weights = double([float(n) if weight is None else weight] + [0.0] * (k - 1), k)
    value = Sums(
        {"w": double([total * n] + [0.0] * (k - 1), k, 1)},
        weights,
        torch.zeros(n, dtype=torch.int64) if labels is None else torch.tensor(labels),
        (),
    )
    return Part(torch.tensor(ids, dtype=torch.int64), value, [], host)._replace(**more)


LIES = {
    "weight x 1e6": (part(5, 6, weight=2e6), "weight is more than its clients' sizes allow"),
    "a little too much weight": (part(5, 6, weight=8.01), "weight is more than its clients' sizes allow"),
    "negative weight": (part(5, 6, weight=-1.0), "weight is negative"),
    "weight not a number": (part(5, 6, weight=float("nan")), "not finite"),
    "label 99": (part(5, 6, labels=[0, 99]), "label is out of range for 2 clusters"),
    "label -1": (part(5, 6, labels=[-1, 0]), "label is out of range for 2 clusters"),
    "total of 1e300": (part(5, 6, total=1e300), "total is larger than its weight allows"),
    "total just too large": (part(5, 6, total=1.001 * MAX_MAGNITUDE), "total is larger than its weight allows"),
    "total without weight": (part(5, 6, weight=0.0), "total is larger than its weight allows"),
    "total not finite": (part(5, 6, total=float("-inf")), "not finite"),
    "somebody else's client": (part(5, 6, 0, host="b"), "host that does not answer"),
    "another host's name": (part(5, 6, host="a"), "host that does not answer"),
}
HOSTS = ["a", "a", "a", "a", "a", "b", "b", "b", "c", "c"]


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize(("lie", "reason"), LIES.values(), ids=LIES)
def test_a_lie_is_refused_and_named_and_changes_no_other_numbers(lie, reason, first):
    lie = lie if lie.host else lie._replace(host="b")
    honest = [part(0, 1, host="a"), part(2, host="a"), part(8, 9, host="c")]
    intake = Intake("sum", torch.arange(10), torch.full((10,), 4), HOSTS)
    for one in [lie, *honest] if first else [*honest, lie]:
        intake.add_part(one)
    got, _, hosts, bytes_up = intake.result()
    assert got.ids.tolist() == [0, 1, 2, 8, 9]
    assert set(hosts) == {"a", "c"}
    assert [client for client, _ in got.rejected] == ([5, 6] if lie.host == "b" else [])
    assert all(reason in why for _, why in got.rejected)
    assert got.value.total["w"].tolist() == [[5.0], [0.0]]
    assert got.value.weight.tolist() == [5.0, 0.0]
    assert bytes_up == 5 * (8 + 2 * 8 + 8)


def test_a_part_may_weigh_as_much_as_its_clients_together():
    intake = asked("sum")
    intake.add_part(part(5, 6, weight=8.0, total=4 * MAX_MAGNITUDE))
    assert intake.result().part.ids.tolist() == [5, 6]


def test_a_host_may_reject_only_its_own_clients_and_long_reasons_are_cut():
    intake = Intake("sum", torch.arange(10), torch.full((10,), 4), HOSTS)
    told = [(0, "a stranger's"), (99, "nobody"), (-1, "nobody"), (6, "x" * 10**6), (5, "came too")]
    intake.add_part(part(5, host="b", rejected=told))
    got = intake.result().part
    assert got.rejected == [(6, "x" * MAX_REASON_LENGTH)]


def test_what_is_refused_from_a_row_is_refused_from_a_part_of_that_row():
    for rows, wanted in FAULTS.values():
        for row in range(3):
            one = take(rows, slice(row, row + 1))
            intake = asked("sum")
            intake.add_part(Part(torch.tensor([row]), add_up(one), []))
            assert (intake.result().part.ids.tolist() == []) == (row in wanted), (row, wanted)


def test_a_part_of_rows_with_a_bad_row_is_refused_whole():
    """Its host has stored its clients' memory writes, and can discard them only together."""
    intake = asked("map")
    intake.add_part(Part(torch.tensor([5, 6]), {"w": torch.tensor([1.0, float("nan")])}, []))
    intake.add_part(Part(torch.tensor([1]), {"w": torch.tensor([2.0])}, []))
    got = intake.result().part
    assert got.ids.tolist() == [1]
    assert got.rejected == [(5, "value is not finite"), (6, "value is not finite")]


@st.composite
def arrivals(draw):
    """Parts of 1 to 3 clients of two forms, some of them bad, and an order in which they arrive."""
    clients = draw(st.permutations(range(12)))
    parts = []
    while clients:
        n = draw(st.integers(1, 3))
        mine, clients = clients[:n], clients[n:]
        bad = draw(st.sampled_from(["no", "no", "no", "weight", "nan", "silent"]))
        made = part(*mine, k=draw(st.sampled_from([2, 2, 3])), total=draw(numbers), labels=[0] * len(mine))
        if bad == "weight":
            made = part(*mine, weight=1e9)
        elif bad == "nan":
            made = part(*mine, total=float("nan"))
        elif bad == "silent":
            made = Part(torch.empty(0, dtype=torch.int64), None, [(client, "ill") for client in mine])
        parts.append(made)
    return parts, draw(st.permutations(range(len(parts))))


@given(arrivals())
def test_the_order_of_arrival_changes_nothing_but_rounding(drawn):
    parts, order = drawn
    results = []
    for arriving in (parts, [parts[i] for i in order]):
        intake = asked("sum", n=12)
        for one in arriving:
            intake.add_part(one)
        results.append(intake.result().part)
    one, other = results
    assert sorted(one.ids.tolist()) == sorted(other.ids.tolist())
    assert one.rejected == other.rejected
    if len(one.ids):
        assert farthest(one.value.total, other.value.total) < 1e-9
        assert farthest(one.value.weight, other.value.weight) < 1e-9
        labels = [dict(zip(got.ids.tolist(), got.value.label.tolist(), strict=True)) for got in results]
        assert labels[0] == labels[1]


def test_partial_sums_are_added_at_once_and_released():
    intake, alive = asked("sum", n=50), []
    for client in range(50):
        one = part(client)
        alive.append(weakref.ref(one.value.total["w"]))
        intake.add_part(one)
        del one
        assert sum(ref() is not None for ref in alive[1:]) == 0  # the first is kept until there is a second
    assert intake.result().part.value.weight.tolist() == [50.0, 0.0]


def test_rows_come_out_as_they_went_in_however_many_there_are():
    rows = {"a": torch.arange(100), "b": (torch.arange(200.0).reshape(100, 2), None)}
    for cuts in ([1] * 100, [100], [3, 97], [60, 40]):
        parts = [take(rows, slice(sum(cuts[:i]), sum(cuts[: i + 1]))) for i in range(len(cuts))]
        buffer = RowBuffer(parts[0])
        for more in parts[1:]:
            buffer.add(more)
        assert farthest(buffer.result(), rows) == 0
    first = torch.ones(1)
    buffer = RowBuffer(first)
    buffer.add(torch.zeros(3))
    assert first.tolist() == [1.0]  # what was handed over is not written to


@pytest.mark.parametrize("wide", [1, 2**14])
@given(rows=replies())
def test_sums_of_parts_are_those_of_their_clients(wide, rows):
    before, sums.WIDE_ROW_ENTRIES = sums.WIDE_ROW_ENTRIES, wide
    try:
        parts = [torch.arange(len(rows.weight))[start::3] for start in range(min(3, len(rows.weight)))]
        found = sums_of(rows, parts)
    finally:
        sums.WIDE_ROW_ENTRIES = before
    for part, own in zip(parts, found, strict=True):
        total, weight = by_hand(rows, part.tolist())
        assert farthest((own.total, own.weight), (total, weight)) < 1e-9


def test_the_fast_and_the_full_check_accept_the_same_rows(monkeypatch):
    """Sums that the host has checked are marked sound, so that the server in the same process need not check them."""
    models = {"w": torch.ones(1, 3).double()}
    rows = Share({"w": models["w"] + torch.arange(1.0, 13).reshape(4, 3) / 100}, torch.ones(4, 1))
    found = []
    for short in (True, False):
        if not short:
            monkeypatch.setattr(Intake, "_all_clearly_valid", lambda self, places, rows, checks: False)
        intake = Intake("sum", torch.arange(4), torch.full((4,), 5), near=Near(models))
        intake.add_rows(torch.arange(4), rows, {})
        found.append(intake.result().part)
    assert [part.sound for part in found] == [True, True]
    assert found[0].ids.tolist() == found[1].ids.tolist() == [0, 1, 2, 3]
    assert torch.equal(found[0].value.total["w"], found[1].value.total["w"])


def test_sums_of_several_chunks_are_checked_at_the_server():
    intake = Intake("sum", torch.arange(4), torch.full((4,), 5))
    for client in range(4):
        intake.add_rows(torch.tensor([client]), Share({"w": torch.ones(1, 3)}, torch.ones(1, 1)), {})
    assert not intake.result().part.sound


def test_a_deserialised_part_is_never_marked_sound():
    part = Part(torch.tensor([0]), {"w": torch.ones(1)}, [], sound=True)
    assert not part_from_bytes(part_to_bytes(part), "host").sound


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [4, sums.WIDE_ROW_ENTRIES])
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_half_precision_is_summed_in_float32(kind, width, chunk):
    """In halves most of a long sum is rounded away, and 100 clients with 60 examples each overflow float16."""
    start = {"w": torch.zeros(1, width, dtype=kind)}
    intake = Intake("sum", torch.arange(100), torch.full((100,), 60), near=Near(start))
    rows = Share({"w": torch.full((100, width), 20.0, dtype=kind)}, torch.full((100, 1), 60.0, dtype=kind))
    for ids in torch.arange(100).split(chunk):
        intake.add_rows(ids, take(rows, ids), {})
    part = intake.result().part
    assert part.rejected == []
    door = Intake("sum", torch.arange(100), torch.full((100,), 60), near=Near(start))
    door.add_part(part)
    taken = door.result().part
    assert taken.rejected == []
    mean = taken.value.mean(start)["w"]
    assert mean.dtype == kind
    assert mean.unique().tolist() == [20.0]


@pytest.mark.parametrize("bad", [torch.tensor(3e15), torch.tensor(2**62)])
def test_a_value_beside_the_models_that_is_too_large_rejects_its_client(bad):
    models = {"w": torch.ones(1, 3)}
    extra = torch.ones(6, dtype=bad.dtype).index_fill(0, torch.tensor([2]), bad.item())
    rows = Share({"w": models["w"] + torch.arange(1.0, 19).reshape(6, 3) / 100, "z": extra}, torch.ones(6, 1))
    intake = Intake("sum", torch.arange(6), torch.full((6,), 5), near=Near(models, apart=True))
    intake.add_rows(torch.arange(6), rows, {})
    part = intake.result().part
    assert [client for client, _ in part.rejected] == [2]
    assert part.ids.tolist() == [0, 1, 3, 4, 5]
