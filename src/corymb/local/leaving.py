"""Leaves vmap: computes a client's operation on its data for all clients of a stack at once.

Each operation is a custom autograd Function. Its vmap rule strips the batch dimension and hands the engine's kernel
plain tensors with a leading axis of clients, so that algorithms are written for one client and still run fast. Without
a kernel, the functions of `corymb.local.reference` are used. There is no backward pass: differentiate
`client.objective.losses` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from corymb.core.client import Client, Measure, Pointwise
from corymb.core.objective import Coordinates, Draws, Examples, Objective, whitened
from corymb.keys import Key
from corymb.local.descent import Descent
from corymb.local.reference import descend_one, gradient_one, measure_one, pointwise
from corymb.local.single_vmap import are_differentiated, run_outside, unwrap
from corymb.trees import Params, take

NO_BACKWARD = (
    "loss, losses, gradient and descend have no backward, and a gradient was asked for through one of them: use "
    "gradient(client, params), or differentiate client.objective.losses(params, client.train), weighted by "
    "client.train.weight; .detach() makes a result of theirs a constant"
)


class Operation(Protocol):
    """An operation on a client's data: `one` computes it for a single client, `many` for a stack, with a kernel.

    In `many`, examples and keys have a leading axis of clients, and so do `params` unless they are `shared`.
    """

    def one(self, objective: Objective, params: Params, on: Examples, key: Key | None) -> Sequence[Tensor]: ...
    def many(self, work: _Work, params: Params, on: Examples, key: Key | None, shared: bool) -> Sequence[Tensor]: ...


@dataclass(frozen=True)
class Measuring:
    """The mean loss or score of each of k models."""

    what: Measure

    def one(self, objective: Objective, params: Params, on: Examples, key: Key | None) -> Sequence[Tensor]:
        return (measure_one(self.what, objective, params, on),)

    def many(self, work: _Work, params: Params, on: Examples, key: Key | None, shared: bool) -> Sequence[Tensor]:
        return (work.kernel.measure(self.what, work.objective, params, on, shared=shared),)


@dataclass(frozen=True)
class OfEach:
    """A model's prediction, or its loss, for each example; undefined for rows of weight 0."""

    what: Pointwise

    def one(self, objective: Objective, params: Params, on: Examples, key: Key | None) -> Sequence[Tensor]:
        return (pointwise(self.what, objective)(params, on),)

    def many(self, work: _Work, params: Params, on: Examples, key: Key | None, shared: bool) -> Sequence[Tensor]:
        return (work.kernel.of_each(self.what, work.objective, params, on, shared=shared),)


@dataclass(frozen=True)
class Gradient:
    """The gradient of the mean training loss."""

    def one(self, objective: Objective, params: Params, on: Examples, key: Key | None) -> Sequence[Tensor]:
        assert key is not None
        return list(gradient_one(objective, params, on, Draws(key)).values())

    def many(self, work: _Work, params: Params, on: Examples, key: Key | None, shared: bool) -> Sequence[Tensor]:
        assert key is not None
        return list(
            work.kernel.gradient(work.objective, _one_per_client(params, on) if shared else params, on, key).values()
        )


@dataclass(frozen=True)
class Descending:
    """The tensors of a model after descent, followed by its training loss before it, on the first step's examples.

    With `chosen`, descent starts at one of k models, and `key` holds two numbers: the key and the model's index. The
    clients' models are then stacked here and stepped in place; a stack made under vmap would be copied once more.
    """

    how: Descent
    chosen: bool = False

    def one(self, objective: Objective, params: Params, on: Examples, key: Key | None) -> Sequence[Tensor]:
        assert key is not None
        if self.chosen:
            params, key = take(params, key[1]), key[0]
        coordinates = self._coordinates(objective)
        params, on = coordinates.into(params), coordinates.examples(on)
        descended = descend_one(coordinates.objective, params, on, key, self.how)
        return [*coordinates.back(descended.params).values(), descended.loss]

    def many(self, work: _Work, params: Params, on: Examples, key: Key | None, shared: bool) -> Sequence[Tensor]:
        assert key is not None
        if self.chosen:
            label, key = key[:, 1], key[:, 0]
            rows = torch.arange(len(label), device=label.device)
            params = {n: p.index_select(0, label) if shared else p[rows, label] for n, p in params.items()}
            shared = False
        coordinates = self._coordinates(work.objective)
        params, on = coordinates.into(_one_per_client(params, on) if shared else params), coordinates.examples(on)
        trained, loss = work.kernel.descend(coordinates.objective, params, on, key, self.how, own=self.chosen)
        return [*coordinates.back(trained).values(), loss]

    def _coordinates(self, objective: Objective) -> Coordinates:
        """The coordinates to descend in: whitened if `how` asks for it and the objective supports it."""
        coordinates = whitened(objective) if self.how.whiten else None
        return coordinates or Coordinates(objective, lambda on: on, lambda params: params, lambda params: params)


def _one_per_client(params: Params, on: Examples) -> Params:
    return {name: value.expand(on.weight.shape[0], *value.shape) for name, value in params.items()}


@dataclass(frozen=True)
class _Work:
    """An operation on its way out of vmap, with the axes that it has left so far."""

    operation: Operation
    objective: Objective
    kernel: Any
    names: tuple[str, ...]
    size: int | None = None  # length of the leading axis; None outside every vmap
    stacked: tuple[bool, ...] = ()  # whether models, examples and key have the leading axis

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        models, on, key = self._regroup(tensors)
        if self.size is None:
            return tuple(self.operation.one(self.objective, models, on, key))
        models_stacked, on_stacked, key_stacked = self.stacked
        if self.kernel is None:
            return self._one_by_one(models, on, key)
        if not on_stacked:
            on = Examples(*(t.expand(self.size, *t.shape) for t in on))
        if key is not None and not key_stacked:
            key = key.expand(self.size)
        return tuple(self.operation.many(self, models, on, key, shared=not models_stacked))

    def _one_by_one(self, models: Params, on: Examples, key: Key | None) -> tuple[Tensor, ...]:
        """Loop over the leading axis: without a kernel there is a single client, whose function called vmap itself."""
        rows = []
        for i in range(self.size or 0):
            models_stacked, on_stacked, key_stacked = self.stacked
            rows.append(
                self.operation.one(
                    self.objective,
                    take(models, i) if models_stacked else models,
                    take(on, i) if on_stacked else on,
                    take(key, i) if key_stacked else key,
                )
            )
        return tuple(torch.stack(row) for row in zip(*rows, strict=True))

    def _regroup(self, tensors: Sequence[Tensor]) -> tuple[Params, Examples, Key | None]:
        k = len(self.names)
        rest = tensors[k + 3 :]
        return dict(zip(self.names, tensors, strict=False)), Examples(*tensors[k : k + 3]), rest[0] if rest else None

    def group_of(self, place: int) -> int:
        """The group of the tensor at a place: 0 for models, 1 for examples, 2 for the key."""
        k = len(self.names)
        return 0 if place < k else 1 if place < k + 3 else 2

    def for_all(self, size: int, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> tuple[_Work, list[Tensor]]:
        """The work for a whole vmap axis of length `size`, and its tensors with that axis in front.

        `dims` has each tensor's batch dimension, None for a tensor without one. If one tensor of a group has a leading
        axis, the whole group gets it. Under a nested vmap, the two axes are flattened into one.
        """
        groups = [self.group_of(place) for place in range(len(tensors))]
        stacked_before = self.stacked or (False, False, False)
        now = {group for group, dim in zip(groups, dims, strict=True) if dim is not None}
        stacked = tuple(before or group in now for group, before in enumerate(stacked_before))
        inner = 1 if self.size is None else self.size
        moved = []
        for tensor, dim, group in zip(tensors, dims, groups, strict=True):
            if not stacked[group] or (self.size is None and dim == 0):
                moved.append(tensor)
            else:
                t = tensor.movedim(dim, 0) if dim is not None else tensor.unsqueeze(0)
                t = t if stacked_before[group] else t.unsqueeze(1)  # outer, inner, ...
                moved.append(t.expand(size, inner, *t.shape[2:]).reshape(size * inner, *t.shape[2:]))
        return replace(self, size=size * inner, stacked=stacked), moved


class _Primitive(torch.autograd.Function):
    @staticmethod
    def forward(work: _Work, *tensors: Tensor) -> tuple[Tensor, ...]:
        return work(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        # Results count as differentiable, so that torch.autograd arrives at `backward`, which says what to do instead.
        ctx.mark_non_differentiable(*(one for one in output if not one.is_floating_point()))

    @staticmethod
    def vmap(info: Any, in_dims: Any, work: _Work, *tensors: Tensor) -> Any:
        size = info.batch_size
        whole, moved = work.for_all(size, in_dims[1:], tensors)
        out = _apply(whole, *moved)
        if work.size is not None:
            out = tuple(o.reshape(size, work.size, *o.shape[1:]) for o in out)
        return out, (0,) * len(out)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(NO_BACKWARD)


def leave(
    client: Client, operation: Operation, models: Params, on: Examples, key: Key | None = None
) -> tuple[Tensor, ...]:
    """Compute an operation for this client or, under an engine's vmap, for all clients of its stack."""
    work = _Work(operation, client.objective, client._kernel, tuple(models))
    tensors = (*models.values(), *on, *(() if key is None else (key,)))
    unwrapped = None if client._kernel is None else unwrap(tensors)
    if unwrapped is not None:
        return run_outside(work.for_all, unwrapped)
    if are_differentiated(tensors):
        raise RuntimeError(NO_BACKWARD)  # the gradient would silently be 0
    return _apply(work, *tensors)


def _apply(work: _Work, *tensors: Tensor) -> tuple[Tensor, ...]:
    out: tuple[Tensor, ...] = _Primitive.apply(work, *tensors)  # type: ignore[no-untyped-call]
    return out
