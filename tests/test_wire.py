import json
import sys
import tracemalloc
from contextlib import suppress
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from corymb import evaluate, wire
from corymb.algorithms.parts.sharing import Sent
from corymb.algorithms.parts.work import Work
from corymb.core.client import Examples, Share, Shares
from corymb.core.engine import Call, Each, Part, Version
from corymb.core.snapshot import Snapshot
from corymb.core.sums import Sums
from corymb.keys import root
from corymb.local import Descent, serve_assigned
from corymb.messages import (
    call_from_bytes,
    call_to_bytes,
    part_from_bytes,
    part_to_bytes,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from corymb.trees import flatten
from corymb.wire import WireError, pack, unpack

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = st.builds(
    lambda shape, dtype: torch.arange(torch.Size(shape).numel()).to(dtype).reshape(shape),
    shapes,
    st.sampled_from(DTYPES),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.recursive(
    tensors | scalars,
    lambda child: (
        st.lists(child, max_size=3)
        | st.lists(child, max_size=3).map(tuple)
        | st.dictionaries(st.text(), child, max_size=3)
        | st.builds(Share, child, child, child, child)
        | st.builds(Shares, child, child, child, child)
        | st.builds(Examples, child, child, child)
        | st.builds(Sums, child, child, child, child)
    ),
    max_leaves=8,
)


def same(one, other) -> bool:
    (left, shape), (right, other_shape) = flatten(one), flatten(other)
    return shape == other_shape and all(_same_leaf(a, b) for a, b in zip(left, right, strict=True))


def _same_leaf(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


@given(trees)
def test_a_tree_round_trips(tree):
    assert same(unpack(pack(tree)), tree)


def test_nan_and_infinity_travel_as_numbers_and_in_tensors():
    number, tensor = unpack(pack([float("inf"), torch.tensor([float("nan")])]))
    assert number == float("inf")
    assert tensor.isnan().all()


def test_views_and_tensors_used_twice_travel():
    rows = torch.arange(6.0).reshape(2, 3)
    assert same(unpack(pack([rows.T, rows[0], rows])), [rows.T, rows[0], rows])


@given(trees, st.data())
def test_a_truncated_message_is_refused(tree, data):
    message = pack(tree)
    with pytest.raises(WireError):
        unpack(message[: data.draw(st.integers(0, len(message) - 1))])


@given(trees, st.data())
def test_a_message_with_flipped_bits_is_read_or_refused_but_nothing_else_happens(tree, data):
    message = bytearray(pack(tree))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    _read_or_refuse(bytes(message))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(message):
    _read_or_refuse(message)


kinds = st.sampled_from(["tensor", "dict", "tuple", "Share", "list", "x"])


@given(st.recursive(scalars, lambda child: st.lists(child) | st.dictionaries(kinds, child), max_leaves=10))
def test_any_skeleton_is_read_or_refused(skeleton):
    _read_or_refuse(save({"0": torch.ones(2)}, metadata={"corymb": json.dumps(skeleton)}))


def _read_or_refuse(message):
    with suppress(WireError):
        unpack(message)


REFUSED = {
    "a set": {1, 2},
    "an object": object(),
    "bytes": b"x",
    "numbers as names": {1: 2},
    "a named tuple that is not on the list": flatten([])[1],
    "a cycle": (lambda loop: (loop.append(loop), loop)[1])([]),
    "a sparse tensor": torch.eye(2).to_sparse(),
}


@pytest.mark.parametrize("tree", REFUSED.values(), ids=REFUSED)
def test_values_that_cannot_be_sent_are_refused_before_sending(tree):
    with pytest.raises(WireError):
        pack([tree])


def _message(skeleton: object, **tensors: torch.Tensor) -> bytes:
    return save(tensors or {"0": torch.ones(2)}, metadata={"corymb": json.dumps(skeleton)})


MALFORMED = {
    "a tensor that is not there": _message({"tensor": "1"}),
    "a tensor used twice": _message([{"tensor": "0"}, {"tensor": "0"}]),
    "a tensor left over": _message(None),
    "an unknown kind": _message({"Client": []}),
    "a name from elsewhere": _message({"os.system": ["ls"]}),
    "too few fields": _message({"Share": [{"tensor": "0"}]}),
    "two kinds in one node": _message({"tuple": [], "dict": {}}),
    "no skeleton": save({"0": torch.ones(2)}),
    "a tuple of nothing": _message({"tuple": {"tensor": "0"}}),
    "too deep": _message(json.loads("[" * 100 + "]" * 100)),
    "a boolean of two": pack(torch.tensor([True])).replace(b"\x01", b"\x02"),
    "no bytes": b"",
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_message_is_refused_in_one_line(message):
    with pytest.raises(WireError) as error:
        unpack(message)
    assert "\n" not in str(error.value)


def test_json_deeper_than_the_stack_is_refused():
    header = json.dumps({"__metadata__": {"corymb": "[" * 200_000}}).encode()
    with pytest.raises(WireError):
        unpack(len(header).to_bytes(8, "little") + header)


def test_tensors_are_packed_without_a_copy_unless_they_share_memory(monkeypatch):
    seen = {}
    monkeypatch.setattr(wire, "save", lambda tensors, metadata: seen.update(tensors) or save(tensors, metadata))
    large = torch.arange(6.0)
    tree = {"a": large, "b": large[2:], "c": torch.ones(2, 3).T, "d": torch.ones(1).expand(4)}
    assert same(unpack(pack(tree)), tree)
    assert seen["0"].data_ptr() == large.data_ptr()
    assert len({tensor.untyped_storage().data_ptr() for tensor in seen.values()}) == 4


def test_a_lying_length_costs_no_memory():
    tracemalloc.start()
    for length in (2**63, 2**40, 10**8):
        with pytest.raises(WireError):
            unpack(length.to_bytes(8, "little") + b"{}")
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_header_beyond_the_limit_is_refused_both_ways(monkeypatch):
    message = pack(list(range(1000)))
    monkeypatch.setattr(wire, "HEADER_LIMIT", 100)
    with pytest.raises(WireError, match="limit"):
        unpack(message)
    with pytest.raises(WireError, match="into tensors"):
        pack(list(range(1000)))


SNAPSHOT = Snapshot(
    models={"weight": torch.randn(2, 3, generator=torch.Generator().manual_seed(0))},
    labels=torch.tensor([0, -1, 1]),
    round=4,
    stage="restart-1/train",
    shares=torch.eye(3)[:, :2],
    carry={"seen": torch.tensor([1, 2, 3])},
    notes={"train_loss": 0.5, "restart_losses": [0.1, 0.2]},
    fingerprint="abc",
    seed=7,
    clock=9,
)


def test_a_snapshot_round_trips():
    again = snapshot_from_bytes(snapshot_to_bytes(SNAPSHOT))
    for field in fields(Snapshot):
        assert same(getattr(again, field.name), getattr(SNAPSHOT, field.name)), field.name


@pytest.mark.parametrize(
    "change",
    [
        {"labels": torch.tensor([0.5])},
        {"labels": torch.tensor([[1]])},
        {"models": {"a": torch.ones(2), "b": torch.ones(3)}},
        {"models": {"a": torch.tensor(1.0)}},
        {"models": {}},
        {"models": {"a": 1}},
        {"carry": {"a": "text"}},
        {"round": "1"},
        {"round": True},
        {"seed": None},
        {"notes": []},
        {"shares": 3},
        {"more": 1},
    ],
)
def test_an_invalid_snapshot_is_refused(change):
    tree = {field.name: getattr(SNAPSHOT, field.name) for field in fields(Snapshot)}
    with pytest.raises(WireError):
        snapshot_from_bytes(pack({**tree, **change}))


def test_a_tree_that_is_no_snapshot_is_refused():
    with pytest.raises(WireError, match="not a snapshot"):
        snapshot_from_bytes(pack([1, 2]))


# ---- calls and replies


def a_call(**changes) -> Call:
    """A call with everything that calls carry: a row for each client, nested settings, a function, a key."""
    call = Call(
        fn=evaluate.score_served,
        args=({"w": torch.ones(2, 3)}, Each(torch.arange(4)), Sent({"w": torch.ones(2)}, {})),
        options={"serve": serve_assigned, "work": Work(local=Descent(lr=0.3, epochs=2), weights="examples"), "k": 3},
        key=root(5),
        verb="map",
        version=Version(3, 2),
        since={"": Version(3, 1)},
        readonly=True,
    )
    return call._replace(**changes)


def test_a_call_round_trips():
    call = a_call()
    got = call_from_bytes(call_to_bytes(call))
    assert got.fn is call.fn
    assert got.options["serve"] is serve_assigned
    assert got.options["work"] == call.options["work"]
    assert isinstance(got.args[1], Each)
    assert isinstance(got.args[2], Sent)
    assert same(got.args, call.args)
    assert got[3:] == call[3:]


def test_a_reply_round_trips():
    sums = Sums({"w": torch.ones(2, 3)}, torch.ones(2), torch.tensor([0, 1]), evaluate.Scored(*torch.ones(5, 2)))
    part = Part(torch.tensor([4, 7]), sums, [(5, "is ill")], "site-1", True, "ZeroDivisionError: division by zero")
    got = part_from_bytes(part_to_bytes(part), "site-2")
    assert got.host == "site-2"  # whoever it says it is
    assert same(got.value, part.value)
    assert torch.equal(got.ids, part.ids)
    assert got[2:3] + got[4:] == part[2:3] + part[4:]


HOSTILE = {
    "a function of another package": {"function": "os:system"},
    "a function that is not a client function": {"function": "corymb.wire:pack"},
    "a function that is not there": {"function": "corymb.wire:nothing"},
    "a module that is not there": {"function": "corymb.nothing:nothing"},
    "a function through an import": {"function": "corymb.evaluate:losses_of"},
    "a path instead of a name": {"function": "corymb.wire:pack.__globals__"},
    "no name": {"function": "corymb.wire"},
    "a number for a name": {"function": 3},
    "settings of another package": {"settings": ["http.server:HTTPServer", {}]},
    "settings that are none": {"settings": ["corymb.core.client:Client", {}]},
    "settings that are not frozen": {"settings": ["corymb.core.federation:Ledger", {}]},
    "settings out of range": {"settings": ["corymb.local.descent:Descent", {"lr": -1.0}]},
    "settings of another type": {"settings": ["corymb.local.descent:Descent", {"lr": "fast"}]},
    "settings that are unknown": {"settings": ["corymb.local.descent:Descent", {"speed": 1.0}]},
    "settings without values": {"settings": ["corymb.local.descent:Descent", 7]},
    "a named tuple of another package": {"named": ["pathlib:PurePath", []]},
    "a class that is not a named tuple": {"named": ["corymb.core.client:Client", []]},
    "a named tuple with too few fields": {"named": ["corymb.evaluate:Scored", [1]]},
    "a package that only begins alike": {"function": "corymbx:pack"},
}


@pytest.mark.parametrize("skeleton", HOSTILE.values(), ids=HOSTILE)
def test_forbidden_names_in_a_message_are_refused(skeleton):
    with pytest.raises(WireError):
        unpack(_message([{"tensor": "0"}, skeleton]), allow=("corymb",))


def test_a_file_may_name_nothing():
    with pytest.raises(WireError, match="may be named here: none"):
        unpack(call_to_bytes(a_call()))


def test_naming_a_module_that_is_not_allowed_does_not_import_it():
    name = "this"  # prints a poem when it is imported
    sys.modules.pop(name, None)
    with pytest.raises(WireError):
        unpack(_message([{"tensor": "0"}, {"function": f"{name}:s"}]), allow=("corymb",))
    assert name not in sys.modules


BENT = {
    "version": (3,),
    "since": {"": 3},
    "verb": "steal",
    "readonly": 1,
    "key": torch.tensor([1, 2]),
    "args": [1],
    "options": (),
    "fn": "corymb.wire:pack",
}


@pytest.mark.parametrize("field", BENT)
def test_a_call_that_is_not_quite_one_is_refused(field):
    tree = unpack(call_to_bytes(a_call()), allow=("corymb",)) | {field: BENT[field]}
    with pytest.raises(WireError, match=f"The call's {field}"):
        call_from_bytes(pack(tree))


@given(st.data())
def test_a_call_with_flipped_bits_is_read_or_refused_but_nothing_else_happens(data):
    message = bytearray(call_to_bytes(a_call()))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(WireError):
        call_from_bytes(bytes(message))
