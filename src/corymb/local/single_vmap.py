"""Out of a vmap that stands alone, by the few calls of torch that its own rules for functions are made of.

The vmap rule of an autograd Function does the same, whatever it is nested in, and takes three times as long, which is
half a millisecond of every round. Those calls are torch's own affair: where they are missing, rules do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    from torch._C._functorch import (
        TransformType,
        _add_batch_dim,
        _unwrap_batched,
        get_interpreter_stack,
        peek_interpreter_stack,
    )
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
except ImportError:  # pragma: no cover - a torch that has other ones
    peek_interpreter_stack = None  # type: ignore[assignment]

Prepare = Callable[
    [int, Sequence[int | None], Sequence[Tensor]], tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]
]
"""The work for all places along these axes, and the tensors with these axes in front."""


class Laid(NamedTuple):
    """A tensor without its hidden axis, and where that is; None for one that is the same at every place."""

    plain: Tensor
    axis: int | None


def laid_open(tensors: Sequence[Tensor]) -> list[Laid] | None:
    """Tensors with their hidden axes, in a single vmap; None elsewhere, and where somebody wants to differentiate."""
    inner: Any = None if peek_interpreter_stack is None else peek_interpreter_stack()
    if inner is None or inner.level() != 1 or inner.key() != TransformType.Vmap:
        return None
    found = [Laid(*_unwrap_batched(tensor, 1)) for tensor in tensors]
    if all(one.axis is None for one in found) or any(one.plain.requires_grad for one in found):
        return None
    return found


def are_differentiated(tensors: Sequence[Tensor]) -> bool:
    """Whether some of `torch.func` is at work here that differentiates by these: `grad`, or what is made of it."""
    stack: Any = None if peek_interpreter_stack is None else get_interpreter_stack()
    at_work = any(inner.key() == TransformType.Grad for inner in stack or ())
    return at_work and any(tensor.requires_grad for tensor in tensors)


def leave_alone(prepare: Prepare, found: Sequence[Laid]) -> tuple[Tensor, ...]:
    """What the work gives for all places, as seen from inside."""
    size = next(one.plain.shape[one.axis] for one in found if one.axis is not None)
    with temporarily_pop_interpreter_stack(), torch.no_grad():
        work, moved = prepare(size, [one.axis for one in found], [one.plain for one in found])
        out = work(*moved)
    return tuple(_add_batch_dim(one, 0, 1) for one in out)
