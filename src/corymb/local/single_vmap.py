"""Into a vmap that stands alone and out of it again, by the few calls of torch that `torch.func` itself is made of.

`torch.func.vmap` and the vmap rule of an autograd Function do the same for whatever they are given and nested in, and
take several times as long: half a millisecond of every round. Those calls are private to torch: where they are missing,
the public way does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

try:
    from torch._C._functorch import (
        TransformType,
        _add_batch_dim,
        _remove_batch_dim,
        _unwrap_batched,
        _vmap_decrement_nesting,
        _vmap_increment_nesting,
        get_interpreter_stack,
        peek_interpreter_stack,
    )
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
    from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]
except ImportError:  # pragma: no cover - a torch that has other ones
    peek_interpreter_stack = None  # type: ignore[assignment]

Prepare = Callable[
    [int, Sequence[int | None], Sequence[Tensor]], tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]
]
"""The work for all places along these axes, and the tensors with these axes in front."""


def stands_plain() -> bool:
    """Whether no vmap, and nothing else of `torch.func`, is known to be at work here."""
    return peek_interpreter_stack is not None and peek_interpreter_stack() is None


def over_rows(fn: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`vmap(fn)(*tensors)`, for tensors with n rows each and a function from tensors to tensors."""
    if not stands_plain():
        return vmap(fn)(*tensors)
    lazy_load_decompositions()
    n = len(tensors[0])
    level = _vmap_increment_nesting(n, "error")
    try:
        out = fn(*(_add_batch_dim(tensor, 0, level) for tensor in tensors))
        return tuple(_remove_batch_dim(one, level, n, 0) for one in out)
    finally:
        _vmap_decrement_nesting()


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
