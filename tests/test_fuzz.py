"""Whatever bytes and trees arrive, they are read or refused by our own errors: wire, checker, settings, checkpoints.

Four thousand examples in every run of the tests, a million by `make soak` (`CORYMB_FUZZ` is the number of each).
"""

import json
import os
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from corymb.algorithms.catalogue import CATALOGUE
from corymb.core.client import Share, Shares
from corymb.core.engine import Call, Part, Version
from corymb.core.guard import Near
from corymb.core.intake import Intake
from corymb.core.snapshot import Snapshot
from corymb.core.sums import Sums
from corymb.keys import root
from corymb.local import Descent, losses_of
from corymb.messages import (
    call_from_bytes,
    call_to_bytes,
    part_from_bytes,
    part_to_bytes,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from corymb.runs.folder.checkpoints import Manifest, Refused, put_together, take_apart
from corymb.runs.settings import RunSettings
from corymb.settings import InvalidInput, from_dict
from corymb.trees import leaves
from corymb.wire import WireError

FEW, MANY = int(os.environ.get("CORYMB_FUZZ_FEW", "500")), int(os.environ.get("CORYMB_FUZZ", "250000"))
"""Examples for each of four targets."""


PHASES = [Phase.generate]  # a failure is shown as it is: shrinking trees of tensors takes minutes
CHECKS = [check for check in HealthCheck if check is not HealthCheck.differing_executors]


def fuzz(*strategies):
    """A test with few examples, and, when asked, with many."""

    def of(test):
        def run(examples):
            @settings(max_examples=examples, deadline=None, suppress_health_check=CHECKS, database=None, phases=PHASES)
            @given(st.tuples(*strategies))
            def one(values):
                test(*values)

            one()

        cases = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.soak)]
        return pytest.mark.parametrize("examples", cases)(run)

    return of


MODELS = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
CALL = Call(losses_of, (MODELS,), {"how": Descent()}, root(1), "sum", Version(3, 1), {"a": Version(2, 0)})
SUMS = Sums(MODELS, torch.ones(2), torch.tensor([0, 1, 1]), {"loss": torch.rand(3)})
SNAPSHOT = Snapshot(models=MODELS, labels=torch.tensor([0, 1, -1]), carry={"x": torch.ones(2)}, notes={"a": [1, "b"]})
MESSAGES = {
    "call": (call_to_bytes(CALL._replace(options={})), lambda data: call_from_bytes(data)),
    "part": (part_to_bytes(Part(torch.tensor([0, 1, 2]), SUMS, [(4, "why")])), lambda data: part_from_bytes(data, "")),
    "snapshot": (snapshot_to_bytes(SNAPSHOT), snapshot_from_bytes),
}


def mutated(data, edits):
    """Bytes with some of them changed, left out or put in."""
    out = bytearray(data)
    for place, byte, how in edits:
        at = place % (len(out) + 1)
        if how == 0 and at < len(out):
            out[at] = byte
        elif how == 1:
            out[at:at] = bytes([byte])
        elif how == 2:
            del out[at : at + byte % 9]
        else:
            out = out[:at]
    return bytes(out)


edits = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255), st.integers(0, 3)), min_size=1, max_size=6)


@fuzz(st.sampled_from(sorted(MESSAGES)), edits, st.binary(max_size=40))
def test_the_wire(kind, changes, tail):
    data, read = MESSAGES[kind]
    with suppress(WireError):
        read(mutated(data, changes) + (tail if len(tail) > 30 else b""))


# ---- the checker

dtypes = st.sampled_from(
    [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8]
)
numbers = st.sampled_from(
    [0.0, 1.0, -1.0, 0.5, 1e3, -1e3, 1e9, 1e14, 1e38, float("nan"), float("inf"), -float("inf"), 2.0]
)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def tensor(shape, dtype, number):
    real = number if dtype.is_floating_point or dtype.is_complex else 0 if number != number else max(-9, min(9, number))
    return torch.full(shape, real, dtype=torch.complex64 if dtype.is_complex else torch.float64).to(dtype)


tensors = st.builds(tensor, shapes, dtypes, numbers)
rows = st.builds(lambda shape, dtype, number: tensor((2, *shape), dtype, number), shapes, dtypes, numbers)
trees = st.recursive(
    tensors | rows | st.none(),
    lambda inner: (
        st.dictionaries(st.sampled_from(["weight", "bias", "x"]), inner, max_size=2)
        | st.lists(inner, max_size=2)
        | st.tuples(inner, inner)
    ),
    max_leaves=4,
)
weights = st.builds(lambda k, number: torch.full((2, k), number), st.integers(0, 3), numbers) | trees
labels = st.none() | st.builds(lambda number: torch.full((2,), number), st.integers(-2, 3)) | trees
good = st.just({"weight": torch.ones(2, 3), "bias": torch.ones(2)})
replies = (
    st.builds(Share, good | trees, weights, labels, trees)
    | st.builds(Shares, good | trees, weights, labels, trees)
    | trees
)
sums = st.builds(
    Sums, st.just(MODELS) | trees, weights | st.builds(lambda n: torch.full((2,), n), numbers), labels, trees
)
ids = st.sampled_from([[0, 1], [2, 3], [1, 0], [4, 5], [9, 9], [-1, 0], [3, 2**40]]).map(torch.tensor)


@fuzz(
    st.sampled_from(["map", "sum"]),
    st.booleans(),
    st.lists(st.tuples(ids, sums | replies), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from([0, 2, 4]), replies), max_size=2, unique_by=lambda stack: stack[0]),
)
def test_the_checker(verb, compares, parts, stacks):
    near = Near(MODELS) if compares else None
    door = Intake(verb, torch.arange(6), torch.full((6,), 5), near=near)
    for who, value in parts:
        door.add_part(Part(who, value, [(int(who[0]), "because")]))
    host = Intake(verb, torch.arange(6), torch.full((6,), 5), near=near)
    for first, value in stacks:
        if all(len(leaf) == 2 if leaf.dim() else False for leaf in leaves(value)):  # what an engine stacks has n rows
            host.add_rows(torch.tensor([first, first + 1]), value, {})
    for intake in (door, host):
        part = intake.result().part
        assert len(part.ids.unique()) == len(part.ids)
        counted = (part.value.total, part.value.weight) if isinstance(part.value, Sums) else part.value
        floating = [leaf for leaf in leaves(counted) if leaf.is_floating_point() and leaf.numel()]
        assert all(bool(torch.isfinite(leaf).all()) for leaf in floating)


# ---- settings

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("auto"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KINDS = [*(entry.algorithm for entry in CATALOGUE.values()), RunSettings, Descent]
NAMES = sorted({name for kind in KINDS for name in kind.__dataclass_fields__})
names = st.sampled_from(NAMES)


@fuzz(
    st.sampled_from(KINDS),
    st.dictionaries(
        st.sampled_from(NAMES), plain | st.dictionaries(st.sampled_from(NAMES), plain, max_size=2), max_size=3
    ),
)
def test_settings(kind, values):
    with suppress(InvalidInput):
        from_dict(kind, values)


# ---- checkpoints

PIECES = take_apart(SNAPSHOT)
MANIFEST = Manifest(run="r", clock=1, rounds=1, audit=0, parts={"rest": "a" * 64}).to_bytes()


@fuzz(edits, st.booleans(), st.dictionaries(st.text(max_size=6), plain, max_size=3))
def test_checkpoints(changes, keep_json, values):
    with suppress(Refused):
        Manifest.from_bytes(mutated(MANIFEST, changes))
    with suppress(Refused):
        Manifest.from_bytes(json.dumps({**json.loads(MANIFEST), **values} if keep_json else values).encode())
    with suppress(WireError):
        put_together({"rest": mutated(PIECES["rest"], changes)})
