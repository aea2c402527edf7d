"""Client memory: defaults and presence, rows along examples, versions by the clock, the same on both engines."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corymb.core.client import Client, Memory, Slot, on_client
from corymb.core.engine import Version
from corymb.core.federation import Federation, NoReplies
from corymb.engines.memory import MemoryStore
from corymb.objectives import LinearRegression
from tests.tiny import DOUBLE, ENGINES, SIZES, federation, regression

N = len(SIZES)
OBJECTIVE = LinearRegression(3, dtype=torch.float64)
NONE = torch.full((N,), -1.0, dtype=torch.float64)


@pytest.fixture(params=ENGINES)
def fed(request) -> Federation:
    return federation(request.param, OBJECTIVE, regression())


@pytest.fixture(params=["one chunk", "many chunks"])
def chunked(request) -> Federation:
    """The vectorised engine, with all clients at once if sizes allow, and client by client."""
    engine = ENGINES["vectorised"](OBJECTIVE, regression(), DOUBLE, memory=None if request.param == "one chunk" else 1)
    return Federation(engine)


@on_client
def keep(client: Client, value):
    client.memory.set("slot", value)
    return client.memory.get("slot", torch.zeros((), dtype=torch.float64))


@on_client
def look(client: Client, default):
    return client.memory.get("slot", default)


@on_client
def forget(client: Client):
    client.memory.clear("slot")
    return client.memory.get("slot", torch.tensor(-1.0).double())


@on_client
def count_up(client: Client):
    count = client.memory.get("count", torch.zeros((), dtype=torch.float64)) + 1
    client.memory.set("count", count)
    return count


@on_client
def only_write(client: Client, value) -> None:
    client.memory.set("slot", value)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def kept(fed: Federation, cohort=None) -> list[float]:
    return (cohort or fed.clients).map(look, torch.tensor(-1.0).double()).value.tolist()


def test_clients_without_a_slot_get_the_default(fed):
    assert kept(fed) == [-1.0] * N
    written = fed.clients[[1, 4]].map(keep, each_number(numbers(10, 40)))
    assert written.value.tolist() == [10, 40]  # what is set can be read in the same call
    assert kept(fed) == [-1, 10, -1, -1, 40, -1]
    assert kept(fed, fed.clients[[0]]) == [-1]
    assert kept(fed, fed.clients[[4, 0, 1]]) == [40, -1, 10]


@on_client
def was_here(client: Client):
    return torch.where(client.memory.get("here", torch.tensor(False)), 1, 0)  # a condition must be a truth


@on_client
def come(client: Client) -> None:
    client.memory.set("here", torch.tensor(True))


def test_a_boolean_default_stays_boolean(fed):
    fed.clients[[1, 4]].map(come)
    assert fed.clients.map(was_here).value.tolist() == [0, 1, 0, 0, 1, 0]


def each_number(values):
    from corymb.core.federation import each

    return each(values)


def test_a_cleared_slot_is_empty_whether_it_was_filled_or_not(fed):
    fed.clients[[1, 4]].map(keep, each_number(numbers(10, 40)))
    replies = fed.clients[[0, 1, 2]].map(forget)
    assert replies.rejected == []
    assert replies.value.tolist() == [-1, -1, -1]
    assert kept(fed) == [-1, -1, -1, -1, 40, -1]
    fed.clients.map(forget)
    assert kept(fed) == [-1] * N


def test_clearing_an_empty_slot_does_nothing(fed):
    assert fed.clients.map(forget).value.tolist() == [-1] * N


def test_a_function_may_write_memory_and_return_nothing(fed):
    replies = fed.clients.map(only_write, 7.0)
    assert replies.value is None
    assert len(replies.clients) == N
    assert kept(fed) == [7.0] * N


@on_client
def keep_tree(client: Client):
    state = client.memory.get("state", {"mean": torch.zeros(3).double(), "steps": torch.tensor(0), "none": None})
    new = {"mean": state["mean"] + client.train.x[0], "steps": state["steps"] + 1, "none": None}
    client.memory.set("state", new)
    return new


def test_slots_are_trees_with_their_own_dtypes(fed):
    data = regression()
    first = torch.stack([data.train.x[start] for start in data.train.offsets[:-1]])
    fed.clients.map(keep_tree)
    fed.clients[[2, 3]].map(keep_tree)
    value = fed.clients.map(keep_tree).value
    assert value["steps"].tolist() == [2, 2, 3, 3, 2, 2]
    assert value["steps"].dtype == torch.int64
    assert torch.allclose(value["mean"], first * value["steps"][:, None], atol=1e-12)


def test_a_default_takes_the_shape_and_dtype_of_stored_values(fed):
    """Otherwise the replies of clients with and without a value could not be stacked."""
    fed.clients[[1]].map(keep, numbers(1, 2, 3))
    replies = fed.clients.map(look, 0.0)
    assert replies.rejected == []
    assert replies.value.dtype == torch.float64
    assert replies.value.tolist() == [[0, 0, 0], [1, 2, 3], *[[0, 0, 0]] * 4]


def test_a_slot_of_another_form_is_refused_by_name(fed):
    fed.clients.map(keep, numbers(1, 2, 3))
    with pytest.raises(ValueError, match=r"memory slot 'slot' holds float64\[3\].*got float64\[2\]"):
        fed.clients.map(keep, numbers(1, 2))


@on_client
def must_have(client: Client):
    return client.memory.get("slot")


def test_a_client_without_a_required_slot_is_rejected(fed):
    with pytest.raises(KeyError, match="memory slot 'slot' is empty"):
        fed.clients.map(must_have)
    fed.clients[[1, 4]].map(keep, each_number(numbers(10, 40)))
    replies = fed.clients.map(must_have)
    assert replies.value.tolist() == [10, 40]
    assert [name for name, _ in replies.rejected] == ["client-0", "client-2", "client-3", "client-5"]


def test_a_slot_may_hold_a_nan(fed):
    fed.clients[[1]].map(only_write, float("nan"))
    fed.clients[[3]].map(only_write, 3.0)
    assert kept(fed, fed.clients[[0, 2, 3, 4, 5]]) == [-1, -1, 3, -1, -1]


@on_client
def mark_examples(client: Client, factor):
    """A different number for each example, and 999 in the padding, to see whether that comes back."""
    marks = torch.where(client.train.weight > 0, client.train.x[:, 0] * factor, 999.0)
    client.memory.set("marks", marks, along="train")
    client.memory.set("pairs", {"p": torch.stack([marks, marks], 1)}, along="train")
    client.memory.set("tested", torch.where(client.test.weight > 0, client.test.y, 999.0), along="test")
    return marks.sum() * 0


@on_client
def read_marks(client: Client):
    weight = client.train.weight
    marks = client.memory.get("marks", torch.zeros_like(weight))
    pairs = client.memory.get("pairs", {"p": torch.zeros(len(weight), 2)})
    tested = client.memory.get("tested", torch.zeros_like(client.test.weight))
    own = torch.where(weight > 0, marks - client.train.x[:, 0], 0).abs().sum()
    two = torch.where(weight > 0, (pairs["p"] - marks[:, None]).abs().sum(1), 0).sum()
    padding = torch.where(weight > 0, 0, marks).abs().sum()  # what was in the padding must not be kept
    return own, two, padding, (tested - client.test.y).abs().sum(), marks.sum()


def test_rows_along_examples_follow_ragged_clients(fed):
    written = fed.clients.map(mark_examples, 1.0)
    assert written.rejected == []
    replies = fed.clients.map(read_marks)
    assert replies.rejected == []
    for wrong in replies.value[:4]:
        assert wrong.abs().max() < 1e-12
    # Another company means another padding: a short client beside a long one, and alone.
    for ids in ([0, 5], [5, 0], [0], [5], [2, 3]):
        for wrong in fed.clients[ids].map(read_marks).value[:4]:
            assert wrong.abs().max() < 1e-12


def test_rows_along_examples_are_the_same_whatever_the_chunks(chunked):
    chunked.clients.map(mark_examples, 1.0)
    replies = chunked.clients.map(read_marks)
    assert replies.rejected == []
    for wrong in replies.value[:4]:
        assert wrong.abs().max() < 1e-12


@on_client
def too_few_rows(client: Client):
    client.memory.set("short", client.train.weight[:1].repeat(2), along="train")
    return client.train.weight[0]


def test_rows_that_follow_no_examples_are_refused(fed):
    line = r"memory slot 'short': wanted one row for each of \d+ train examples"
    with pytest.raises(NoReplies, match=line):
        fed.clients[[2, 3, 4]].map(too_few_rows)


def test_the_clock_can_be_turned_back(fed):
    for clock in range(4):
        fed.set_clock(seed=0, clock=clock)
        fed.clients[[0, 1, 2] if clock % 2 else [2, 3]].map(count_up)
    assert fed.clients.map(look_count).value.tolist() == [2, 2, 4, 2, 0, 0]
    fed.rewind(3)
    assert fed.clients.map(look_count).value.tolist() == [1, 1, 3, 2, 0, 0]
    fed.rewind(1)
    assert fed.clients.map(look_count).value.tolist() == [0, 0, 1, 1, 0, 0]
    fed.rewind(0)
    assert fed.clients.map(look_count).value.tolist() == [0] * N


@on_client
def look_count(client: Client):
    return client.memory.get("count", torch.zeros((), dtype=torch.float64))


def test_several_writes_within_a_tick_are_taken_back_together(fed):
    fed.set_clock(seed=0, clock=1)
    fed.clients.map(count_up)
    fed.set_clock(seed=0, clock=2)
    fed.clients.map(count_up)
    fed.clients.map(count_up)
    fed.clients[[0]].map(count_up)
    fed.rewind(2)
    assert fed.clients.map(look_count).value.tolist() == [1] * N


def test_a_cleared_slot_comes_back_after_a_rewind(fed):
    fed.set_clock(seed=0, clock=0)
    fed.clients[[1]].map(keep, torch.tensor(5.0).double())
    fed.set_clock(seed=0, clock=1)
    fed.clients.map(forget)
    assert kept(fed) == [-1] * N
    fed.rewind(1)
    assert kept(fed) == [-1, 5, -1, -1, -1, -1]


def test_after_a_rewind_a_slot_may_have_another_form(fed):
    """On the same engine, another algorithm may have a slot of the same name."""
    for clock in (0, 3):
        fed.set_clock(seed=0, clock=clock)
        fed.clients.map(keep, numbers(1, 2, 3))
        fed.rewind(clock)
        fed.clients.map(keep, numbers(1, 2))
        assert fed.clients.map(look, 0.0).value.shape == (N, 2)
        fed.rewind(0)


def test_committed_memory_is_kept_and_can_be_restored(fed):
    for clock in range(5):
        fed.set_clock(seed=0, clock=clock)
        fed.clients.map(count_up)
    fed.commit(5, keep=[3, 5])
    fed.rewind(5)
    assert fed.clients.map(look_count).value.tolist() == [5] * N
    fed.rewind(3)
    assert fed.clients.map(look_count).value.tolist() == [3] * N


def test_returning_to_a_dropped_clock_is_refused(fed):
    for clock in range(5):
        fed.set_clock(seed=0, clock=clock)
        fed.clients.map(count_up)
    fed.commit(5, keep=[3])
    fed.rewind(2)
    with pytest.raises(ValueError, match="cannot return to clock 2"):
        fed.clients.map(look_count)
    fed.rewind(0)  # the beginning can always be gone back to
    assert fed.clients.map(look_count).value.tolist() == [0] * N


def test_evaluation_reads_memory_but_cannot_write_it(fed):
    fed.clients[[1]].map(keep, torch.tensor(5.0).double())
    view = fed.evaluation()
    assert kept(view) == [-1, 5, -1, -1, -1, -1]
    for write in (count_up, forget):
        with pytest.raises(PermissionError, match="read-only"):
            view.clients.map(write)
    with pytest.raises(PermissionError, match="read-only"):
        view.clients.map(keep, torch.tensor(6.0).double())
    assert kept(fed) == [-1, 5, -1, -1, -1, -1]


operations = st.lists(
    st.tuples(
        st.sampled_from(["write", "clear", "rewind", "tick"]),
        st.sets(st.integers(0, N - 1), min_size=1),
        st.integers(0, 5),
        st.integers(1, 99),
    ),
    max_size=12,
)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=12)
@given(operations)
def test_memory_is_a_table_with_a_history(engine, steps):
    """Compared with a plain dictionary for each clock."""
    fed = federation(engine, OBJECTIVE, regression())
    clock, now, history = 0, {}, {}
    for what, ids, back, value in steps:
        who = fed.clients[sorted(ids)]
        fed.set_clock(seed=0, clock=clock)
        if what == "write":
            who.map(keep, torch.tensor(float(value)).double())
            now = now | dict.fromkeys(ids, float(value))
        elif what == "clear":
            who.map(forget)
            now = {client: kept for client, kept in now.items() if client not in ids}
        elif what == "tick":
            history[clock] = now
            clock += 1
        elif back < clock:
            fed.rewind(back + 1)
            now, clock = history[back], back + 1
    assert kept(fed) == [now.get(client, -1.0) for client in range(N)]


def test_a_write_of_one_clients_row_leaves_the_others_alone():
    store = MemoryStore({"train": torch.tensor([3, 1, 2]), "test": torch.tensor([0, 0, 0])})
    yes = torch.tensor([True])
    store.write(0, torch.tensor([2]), {"a": Slot(torch.tensor([[1.0, 2.0]]), yes, "train")})
    store.write(0, torch.tensor([0]), {"a": Slot(torch.tensor([[7.0, 8.0, 9.0]]), yes, "train")})
    slot = store.read(torch.tensor([0, 1, 2]), {"train": 3, "test": 0})["a"]
    assert slot.present.tolist() == [True, False, True]
    assert slot.value[[0, 2]].tolist() == [[7, 8, 9], [1, 2, 0]]


def test_memory_reads_back_what_was_written():
    memory = Memory({"a": Slot(torch.tensor(3.0), torch.tensor(True))}, lengths={"train": 4, "test": 0})
    assert float(memory.get("a", torch.tensor(0.0))) == 3
    assert float(memory.get("a")) == 3
    with pytest.raises(KeyError, match="memory slot 'b' is empty"):
        memory.get("b")
    memory.set("b", (1, 2.5))
    assert [float(value) for value in memory.get("b", (0, 0.0))] == [1, 2.5]
    memory.clear("a")
    assert float(memory.get("a", torch.tensor(0.0))) == 0
    assert set(memory.writes) == {"a", "b"}


@on_client
def with_history(client: Client):
    own = torch.ones(3, dtype=torch.float64, requires_grad=True) * 2
    client.memory.set("slot", own)
    return {"weight": own}


def test_autograd_graphs_are_not_kept():
    fed = federation("loop", LinearRegression(3, dtype=torch.float64), regression())
    assert not fed.clients.map(with_history).value["weight"].requires_grad
    assert not fed.clients.map(look, torch.zeros(3).double()).value.requires_grad


def test_new_slots_need_no_undo_copy():
    """The memory of clients' models is large, so that values to restore are stored only where there were any."""
    store = MemoryStore({"train": torch.tensor([2, 2, 2])})
    first, second = Version(1, 1), Version(2, 1)
    store.write(first, torch.tensor([0, 1]), {"slot": Slot(numbers(4.0, 5.0), torch.ones(2, dtype=torch.bool))})
    assert [len(undo.values) for undo in store._undo] == [0]
    store.write(second, torch.tensor([1, 2]), {"slot": Slot(numbers(6.0, 7.0), torch.ones(2, dtype=torch.bool))})
    assert [undo.values.tolist() for undo in store._undo] == [[], [5.0]]
    store.forget_after(first)
    slot = store.read(torch.arange(3), {})["slot"]
    assert slot.value.tolist() == [4.0, 5.0, 0.0]
    assert slot.present.tolist() == [True, True, False]
    store.forget_after(Version(0, 1))
    assert store.empty
