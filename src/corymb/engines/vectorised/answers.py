"""Whether a client function gives under vmap what it gives alone, and why where it does not."""

from __future__ import annotations

import torch
from torch import Tensor

from corymb.engines.host import Outcome, one_line
from corymb.trees import Tree, flatten

APART = {torch.float64: 1e-6}
"""How far an answer may be from another, as a part of its size: rounding only, but of many steps."""
APART_ELSE = 1e-2


def same_answer(alone: Outcome, together: Outcome, row: int = 0) -> bool:
    """Whether the only row of one outcome is this row of another, up to rounding; slots along examples are longer."""
    slots = [name for name in alone.writes if alone.writes[name].along is None]
    if alone.writes.keys() != together.writes.keys():
        return False
    one, other = ((outcome.value, [outcome.writes[name].value for name in slots]) for outcome in (alone, together))
    return _same(one, other, row)


def _same(one: Tree, other: Tree, row: int) -> bool:
    (left, form), (right, theirs) = flatten(one), flatten(other)
    if form != theirs:
        return False
    rows = [(a[0], b[row]) for a, b in zip(left, right, strict=True)]
    whole = not any(a.is_floating_point() for a, _ in rows)  # else labels: of two models that tie, either may be chosen
    return all(_near(a, b, exactly=whole) for a, b in rows)


def _near(a: Tensor, b: Tensor, *, exactly: bool) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return not exactly or torch.equal(a, b)
    if not bool(torch.isfinite(a).all()):
        return not bool(torch.isfinite(b).all())
    most = APART.get(a.dtype, APART_ELSE)
    a, b = a.double(), b.double()
    return bool((a - b).norm() <= most * (1e-6 + a.norm()))


def why_answers_differ(alone: Outcome, again: Outcome, together: Outcome) -> str:
    """What a client function does wrong that answers otherwise together with other clients."""
    if not same_answer(again, alone):
        return (
            "asked again, it gives another answer. Draw from client.key(...) and corymb.keys only, and keep what lasts "
            "in client.memory"
        )
    if _shapes(alone) != _shapes(together):
        return (
            "it replies with a row for each example, and clients have unlike numbers of examples. Reply with a mean or "
            "a sum over them"
        )
    return (
        "the number of padded rows changes its answer. Rows of client.train with weight 0 only fill up: count with "
        "client.train.weight.sum() and average with that weight, not with len() or mean()"
    )


def _shapes(outcome: Outcome) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape[1:]) for leaf in flatten(outcome.value)[0]]


HINTS = {
    "data-dependent control flow": "it branches on a tensor's value. Use torch.where to run all clients at once",
    ".item()": "it asks for a tensor's value (item, int, float, f-string). Keep tensors to run all clients at once",
    "randomness error mode": "it draws from torch's generator: no run can be repeated. Draw from client.key(...)",
    "data pointer": "it leaves torch, as numpy does. Use torch's functions to run all clients at once",
    "doesn't have storage": "it leaves torch, as numpy does. Use torch's functions to run all clients at once",
    "requires_grad_": "it calls backward. Use corymb.local.gradient, or torch.func.grad, to run all clients at once",
}


def why_not_vmap(error: Exception) -> str:
    """Why clients cannot run at once, in one line, and what to do about it where that is known."""
    line = one_line(error)
    return next((hint for part, hint in HINTS.items() if part in str(error)), f"vmap cannot take it ({line})")
