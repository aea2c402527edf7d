"""Enters and leaves a single vmap with the low-level functions that `torch.func` itself is built on.

`torch.func.vmap` and the vmap rule of an autograd Function do the same for any arguments and any nesting, and take
several times as long: half a millisecond of every round. Gradients inside it are taken in the same way. The functions
used here are private to torch; if they are missing, the public ones are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from corymb.keys import no_transform_active

try:
    from torch._C._functorch import (
        TransformType,
        _add_batch_dim,
        _grad_decrement_nesting,
        _grad_increment_nesting,
        _remove_batch_dim,
        _unwrap_batched,
        _unwrap_for_grad,
        _vmap_decrement_nesting,
        _vmap_increment_nesting,
        _wrap_for_grad,
        get_inplace_requires_grad_allowed,
        get_interpreter_stack,
        peek_interpreter_stack,
        set_inplace_requires_grad_allowed,
    )
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
    from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]
except ImportError:  # pragma: no cover - another version of torch
    peek_interpreter_stack = None  # type: ignore[assignment]

Prepare = Callable[
    [int, Sequence[int | None], Sequence[Tensor]], tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]
]
"""From an axis's size, each tensor's batch dimension and the tensors: the work for the whole axis, and the tensors with
that axis in front."""


def over_rows(fn: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`vmap(fn)(*tensors)`, for tensors with n rows each and a function from tensors to a tuple of tensors."""
    if not no_transform_active():
        return vmap(fn)(*tensors)
    lazy_load_decompositions()
    n = len(tensors[0])
    level = _vmap_increment_nesting(n, "error")
    try:
        out = fn(*(_add_batch_dim(tensor, 0, level) for tensor in tensors))
        return tuple(_remove_batch_dim(one, level, n, 0) for one in out)
    finally:
        _vmap_decrement_nesting()


def value_and_gradients(fn: Callable[[list[Tensor]], Tensor], at: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The value of a function of several tensors and its gradients, also inside a vmap over other tensors.

    `torch.func.grad_and_value` does the same, and first imports torch's compiler, which takes seconds.
    """
    private: Any = peek_interpreter_stack
    if private is None:
        gradients, value = grad_and_value(fn)(at)
        return value, list(gradients)
    level = _grad_increment_nesting()
    try:
        with torch.enable_grad():
            own = [_leaf(tensor, level) for tensor in at]
            value = fn(own)
            found = torch.autograd.grad(value, own, allow_unused=True, materialize_grads=True)
        return _unwrap_for_grad(value, level), [_unwrap_for_grad(gradient, level) for gradient in found]
    finally:
        _grad_decrement_nesting()


def _leaf(tensor: Tensor, level: int) -> Tensor:
    """A tensor to differentiate with respect to, at a level of `torch.func.grad`."""
    allowed = get_inplace_requires_grad_allowed()
    set_inplace_requires_grad_allowed(True)
    try:
        leaf: Tensor = _wrap_for_grad(tensor, level).requires_grad_()
        return leaf
    finally:
        set_inplace_requires_grad_allowed(allowed)


class Unwrapped(NamedTuple):
    """The plain tensor inside a batched one, and its batch dimension; None for a tensor that is not batched."""

    plain: Tensor
    axis: int | None


def unwrap(tensors: Sequence[Tensor]) -> list[Unwrapped] | None:
    """The tensors unwrapped, if the only active transform is one vmap; else None.

    None as well if no tensor is batched, or if one requires gradients.
    """
    inner: Any = None if peek_interpreter_stack is None else peek_interpreter_stack()
    if inner is None or inner.level() != 1 or inner.key() != TransformType.Vmap:
        return None
    unwrapped = [Unwrapped(*_unwrap_batched(tensor, 1)) for tensor in tensors]
    if all(one.axis is None for one in unwrapped) or any(one.plain.requires_grad for one in unwrapped):
        return None
    return unwrapped


def are_differentiated(tensors: Sequence[Tensor]) -> bool:
    """Whether `torch.func.grad`, or a transform built on it, is active and one of these tensors requires gradients."""
    stack: Any = None if peek_interpreter_stack is None else get_interpreter_stack()
    differentiating = any(inner.key() == TransformType.Grad for inner in stack or ())
    return differentiating and any(tensor.requires_grad for tensor in tensors)


def run_outside(prepare: Prepare, tensors: Sequence[Unwrapped]) -> tuple[Tensor, ...]:
    """Run the work outside the active vmap, on the whole batch; returns its results batched again."""
    size = next(one.plain.shape[one.axis] for one in tensors if one.axis is not None)
    with temporarily_pop_interpreter_stack(), torch.no_grad():
        work, moved = prepare(size, [one.axis for one in tensors], [one.plain for one in tensors])
        out = work(*moved)
    return tuple(_add_batch_dim(one, 0, 1) for one in out)
