"""Checks that a client function gives the same answer in a stack under vmap as for one client, and explains if not."""

from __future__ import annotations

import torch
from torch import Tensor

from corymb.engines.host import Outcome, one_line
from corymb.trees import Tree, flatten

TOLERANCE = {torch.float64: 1e-6}
"""The largest relative difference of two equal answers, by dtype: rounding errors, accumulated over many steps."""
DEFAULT_TOLERANCE = 1e-2
"""The same for all other dtypes."""


def same_answer(alone: Outcome, together: Outcome, row: int = 0) -> bool:
    """Whether the only row of `alone` equals this row of `together`, up to rounding.

    Memory slots with a row for each example are not compared: in a stack they are padded.
    """
    slots = [name for name in alone.writes if alone.writes[name].along is None]
    if alone.writes.keys() != together.writes.keys():
        return False
    one, other = ((outcome.value, [outcome.writes[name].value for name in slots]) for outcome in (alone, together))
    return _same(one, other, row)


def _same(one: Tree, other: Tree, row: int) -> bool:
    (left, structure), (right, other_structure) = flatten(one), flatten(other)
    if structure != other_structure:
        return False
    rows = [(a[0], b[row]) for a, b in zip(left, right, strict=True)]
    # Integers beside floats may be labels, which rounding can change where two models tie.
    integers_only = not any(a.is_floating_point() for a, _ in rows)
    return all(_near(a, b, exactly=integers_only) for a, b in rows)


def _near(a: Tensor, b: Tensor, *, exactly: bool) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return not exactly or torch.equal(a, b)
    if not bool(torch.isfinite(a).all()):
        return not bool(torch.isfinite(b).all())
    most = TOLERANCE.get(a.dtype, DEFAULT_TOLERANCE)
    a, b = a.double(), b.double()
    return bool((a - b).norm() <= most * (1e-6 + a.norm()))


def why_answers_differ(alone: Outcome, again: Outcome, together: Outcome) -> str:
    """Why a client function's answer depends on being stacked with other clients, and how to fix it."""
    if not same_answer(again, alone):
        return (
            "it gives a different answer when called again. Draw random numbers from client.key(...) and corymb.keys "
            "only, and keep state in client.memory"
        )
    if _shapes(alone) != _shapes(together):
        return (
            "it replies with a row for each example, and clients have different numbers of examples. Reply with a mean "
            "or a sum over them"
        )
    return (
        "the number of padded rows changes its answer. Rows of client.train with weight 0 are padding: count with "
        "client.train.weight.sum() and average with that weight, not with len() or mean()"
    )


def _shapes(outcome: Outcome) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape[1:]) for leaf in flatten(outcome.value)[0]]


HINTS = {
    "data-dependent control flow": "it branches on a tensor's value. Use torch.where to run all clients at once",
    ".item()": "it reads a tensor's value (item, int, float, f-string). Keep it a tensor to run all clients at once",
    "randomness error mode": "it draws from torch's generator: runs are irreproducible. Draw from client.key(...)",
    "data pointer": "it uses tensors outside torch, as in numpy. Use torch's to run all clients at once",
    "doesn't have storage": "it uses tensors outside torch, as in numpy. Use torch's to run all clients at once",
    "requires_grad_": "it calls backward. Use corymb.local.gradient, or torch.func.grad, to run all clients at once",
}


def why_not_vmap(error: Exception) -> str:
    """A line on why a client function cannot run under vmap, with advice if there is any."""
    line = one_line(error)
    return next((hint for part, hint in HINTS.items() if part in str(error)), f"vmap does not support it ({line})")
