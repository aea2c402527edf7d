"""Assertions for laws: distances between trees, equality of snapshots, expected errors and log messages."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from corymb.core.snapshot import Snapshot
from corymb.trees import Tree, flatten, leaves

CLOSE = 1e-9
"""Tolerance for float64 results that differ only in the order of addition."""


def farthest(got: Tree, want: Tree) -> float:
    """The largest difference between two trees of tensors; a NaN counts as infinite."""
    (left, shape), (right, other) = flatten(got), flatten(want)
    assert shape == other, f"{shape} != {other}"
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        assert a.shape == b.shape, f"{list(a.shape)} != {list(b.shape)}"
        difference = (a.double() - b.double()).abs().nan_to_num(nan=float("inf"))
        worst = max(worst, float(difference.max()) if difference.numel() else 0.0)
    return worst


def same_bits(got: Snapshot, want: Snapshot) -> bool:
    """Whether two snapshots are equal bit for bit, in every field."""
    plain = ("round", "stage", "notes", "fingerprint", "units", "seed", "clock")
    if any(getattr(got, name) != getattr(want, name) for name in plain):
        return False
    trees = [(s.models, s.labels, s.shares, dict(s.carry)) for s in (got, want)]
    names = [(sorted(s.models), sorted(s.carry)) for s in (got, want)]
    return names[0] == names[1] and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(leaves(trees[0]), leaves(trees[1]), strict=True)
    )


def assert_same_bits(got: list[Snapshot], want: list[Snapshot]) -> None:
    """Assert that two runs, or parts of runs, are equal bit for bit."""
    assert len(got) == len(want), f"{len(got)} snapshots, wanted {len(want)}"
    for place, (one, other) in enumerate(zip(got, want, strict=True)):
        assert same_bits(one, other), f"snapshot {place} of {len(want)} differs"


def assert_same_run(got: list[Snapshot], want: list[Snapshot]) -> None:
    """Assert that two runs agree: labels and stages exactly, numbers up to the order of addition."""
    assert len(got) == len(want), f"{len(got)} snapshots, wanted {len(want)}"
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one.labels, other.labels), f"clock {other.clock}: labels {one.labels} != {other.labels}"
        assert farthest(one.models, other.models) < CLOSE
        assert farthest(dict(one.carry), dict(other.carry)) < CLOSE
        assert (one.round, one.stage, one.clock) == (other.round, other.stage, other.clock)


@contextmanager
def expect_error(kind: type[BaseException] | tuple[type[BaseException], ...], says: str = "") -> Iterator[None]:
    """Assert that the block raises an error of this kind whose message matches the pattern `says`."""
    try:
        yield
    except kind as error:
        message = str(error)
    else:
        raise AssertionError(f"nothing was raised, wanted {kind}")
    assert re.search(says, message), f"the error says {message!r}, wanted {says!r}"


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect the warnings that Corymb logs within the block."""
    handler, logger = _Collector(), logging.getLogger("corymb")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(before or logging.WARNING, logging.WARNING))
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
