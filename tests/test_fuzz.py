"""Whatever bytes and trees arrive, they are read or refused by our own errors: wire, checker, settings, checkpoints.

More than ten thousand examples in every run of the tests, a million by `make soak`, in blocks (`CORYMB_FUZZ` is
the size of each).
Hypothesis draws a number, and everything else follows from it: drawing trees of tensors piece by piece takes four times
as long as all that is tested. `python -m tests.fuzz_decoder` has the wire read what atheris makes up.
"""

import json
import os
import random
from contextlib import suppress
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from corymb.algorithms.catalogue import CATALOGUE
from corymb.core.client import Share, Shares
from corymb.core.engine import Call, Part, Version
from corymb.core.intake import Intake
from corymb.core.lengths import Near
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

BLOCKS = 5
MANY = int(os.environ.get("CORYMB_FUZZ", "50000"))
"""Examples in each block of each of four targets, when asked; a block takes a minute or two."""
FEWER = {"test_the_wire": 3500, "test_checkpoints": 3500, "test_settings": 2000, "test_the_checker": 1500}
"""And in every run of the tests: more of those that cost less."""
PHASES = [Phase.generate]  # a failure is shown as it is: a smaller number makes no simpler example
CHECKS = [check for check in HealthCheck if check is not HealthCheck.differing_executors]


def fuzz(test):
    """A test with few examples, and, when asked, with many."""

    def run(examples, block):
        @settings(max_examples=examples, deadline=None, suppress_health_check=CHECKS, database=None, phases=PHASES)
        @given(st.integers(0, 2**64 - 1))
        def one(seed):
            test(random.Random(f"{block} {seed}"))  # Hypothesis draws the same numbers for every block

        one()

    marks = [pytest.mark.soak, pytest.mark.timeout(3600)]
    cases = [pytest.param(FEWER[test.__name__], 0, id="few")]
    cases += [pytest.param(MANY, block, id=f"many-{block}", marks=marks) for block in range(1, BLOCKS + 1)]
    return pytest.mark.parametrize(("examples", "block"), cases)(run)


def test_ten_thousand_examples_in_every_run():
    assert sum(FEWER.values()) >= 10_000


MODELS = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
CALL = Call(losses_of, (MODELS,), {"how": Descent()}, root(1), "sum", Version(3, 1), {"a": Version(2, 0)})
SUMS = Sums(MODELS, torch.ones(2), torch.tensor([0, 1, 1]), {"loss": torch.rand(3)})
SNAPSHOT = Snapshot(models=MODELS, labels=torch.tensor([0, 1, -1]), carry={"x": torch.ones(2)}, notes={"a": [1, "b"]})
MESSAGES = {
    "call": (call_to_bytes(CALL._replace(options={})), lambda data: call_from_bytes(data)),
    "part": (part_to_bytes(Part(torch.tensor([0, 1, 2]), SUMS, [(4, "why")])), lambda data: part_from_bytes(data, "")),
    "snapshot": (snapshot_to_bytes(SNAPSHOT), snapshot_from_bytes),
}


def mutated(data, draw):
    """Bytes with some of them changed, left out or put in."""
    out = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at, byte, how = draw.randrange(len(out) + 1), draw.randrange(256), draw.randrange(4)
        if how == 0 and at < len(out):
            out[at] = byte
        elif how == 1:
            out[at:at] = bytes([byte])
        elif how == 2:
            del out[at : at + byte % 9]
        elif byte < 64:
            out = out[:at]
    return bytes(out)


@fuzz
def test_the_wire(draw):
    data, read = MESSAGES[draw.choice(sorted(MESSAGES))]
    tail = draw.randbytes(draw.randrange(40)) if draw.random() < 0.2 else b""
    with suppress(WireError):
        read(mutated(data, draw) + tail)


# ---- the checker

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8]
NUMBERS = [0.0, 1.0, -1.0, 0.5, 1e3, -1e3, 1e9, 1e14, 1e38, float("nan"), float("inf"), -float("inf"), 2.0]
GOOD = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
IDS = [torch.tensor(ids) for ids in ([0, 1], [2, 3], [1, 0], [4, 5], [9, 9], [-1, 0], [3, 2**40])]


def tensor(draw, *lead):
    """Of any shape and type, full of one number."""
    dtype, number = draw.choice(DTYPES), draw.choice(NUMBERS)
    real = number if dtype.is_floating_point or dtype.is_complex else 0 if number != number else max(-9, min(9, number))
    shape = (*lead, *(draw.randrange(4) for _ in range(draw.randrange(4))))
    return torch.full(shape, real, dtype=torch.complex64 if dtype.is_complex else torch.float64).to(dtype)


def tree(draw, deep=2):
    """Of tensors, some of which have two rows."""
    kind = draw.randrange(6 if deep else 3)
    if kind < 2:
        return tensor(draw) if kind == 0 else tensor(draw, 2)
    if kind == 2:
        return None
    inner = [tree(draw, deep - 1) for _ in range(draw.randrange(3))]
    if kind == 3:
        return dict(zip(draw.sample(["weight", "bias", "x"], len(inner)), inner, strict=True))
    return inner if kind == 4 else tuple(inner)


def weight(draw):
    number = draw.choice(NUMBERS)
    return torch.full((2, draw.randrange(4)), number) if draw.random() < 0.7 else tree(draw)


def label(draw):
    return draw.choice([None, torch.full((2,), draw.randint(-2, 3)), tree(draw)])


def reply(draw):
    if draw.random() < 0.3:
        return tree(draw)
    value = GOOD if draw.random() < 0.5 else tree(draw)
    return draw.choice([Share, Shares])(value, weight(draw), label(draw), tree(draw))


def part(draw):
    if draw.random() < 0.5:
        return reply(draw)
    plain = torch.full((2,), draw.choice(NUMBERS)) if draw.random() < 0.5 else weight(draw)
    return Sums(MODELS if draw.random() < 0.5 else tree(draw), plain, label(draw), tree(draw))


@fuzz
def test_the_checker(draw):
    verb, near = draw.choice(["map", "sum"]), Near(MODELS) if draw.random() < 0.5 else None
    intake = Intake(verb, torch.arange(6), torch.full((6,), 5), near=near)
    if draw.random() < 0.5:  # the door
        for who in draw.sample(IDS, draw.randint(1, 3)):
            intake.add_part(Part(who, part(draw), [(int(who[0]), "because")]))
    else:  # a host
        for first in draw.sample([0, 2, 4], draw.randrange(3)):
            value = reply(draw)
            if all(leaf.shape[:1] == (2,) for leaf in leaves(value)):  # what an engine stacks has n rows
                intake.add_rows(torch.tensor([first, first + 1]), value, {})
    taken = intake.result().part
    assert len(taken.ids.unique()) == len(taken.ids)
    counted = (taken.value.total, taken.value.weight) if isinstance(taken.value, Sums) else taken.value
    floating = [leaf for leaf in leaves(counted) if leaf.is_floating_point() and leaf.numel()]
    assert all(bool(torch.isfinite(leaf).all()) for leaf in floating)


# ---- settings

KINDS = [*(entry.algorithm for entry in CATALOGUE.values()), RunSettings, Descent]
NAMES = sorted({name for kind in KINDS for name in kind.__dataclass_fields__})
LETTERS = "aé\n\0\u202e{}[]=.,'\"0-"


def text(draw):
    return "".join(draw.choices(LETTERS, k=draw.randrange(6)))


def plain(draw, deep=2):
    """What JSON and TOML can hold, and what they cannot."""
    kind = draw.randrange(9 if deep else 7)
    if kind == 7:
        return [plain(draw, deep - 1) for _ in range(draw.randrange(3))]
    if kind == 8:
        return {text(draw): plain(draw, deep - 1) for _ in range(draw.randrange(3))}
    number = draw.choice([draw.randint(-2, 9), draw.randint(-(2**70), 2**70)])
    return (None, True, False, "auto", number, draw.choice(NUMBERS), text(draw))[kind]


def nested(draw, names):
    return {draw.choice(names): plain(draw) for _ in range(draw.randrange(3))}


@fuzz
def test_settings(draw):
    kind = draw.choice(KINDS)
    names = NAMES if draw.random() < 0.2 else sorted(kind.__dataclass_fields__)
    kinds = [plain, partial(nested, names=NAMES)]
    wanted = {draw.choice(names): draw.choice(kinds)(draw) for _ in range(draw.randrange(4))}
    with suppress(InvalidInput):
        from_dict(kind, wanted)


# ---- checkpoints

PIECES = take_apart(SNAPSHOT)
MANIFEST = Manifest(run="r", clock=1, rounds=1, audit=0, parts={"rest": "a" * 64}).to_bytes()


@fuzz
def test_checkpoints(draw):
    how = draw.randrange(3)
    if how == 0:
        with suppress(Refused):
            Manifest.from_bytes(mutated(MANIFEST, draw))
    elif how == 1:
        known = json.loads(MANIFEST) if draw.random() < 0.5 else {}
        odd = {draw.choice([*json.loads(MANIFEST), text(draw)]): plain(draw) for _ in range(draw.randrange(3))}
        with suppress(Refused):
            Manifest.from_bytes(json.dumps({**known, **odd}).encode())
    else:
        with suppress(WireError):
            put_together({"rest": mutated(PIECES["rest"], draw)})
