"""Out of vmap: what a client does with its data, for all clients of a stack at once.

Each piece of work is a custom autograd Function whose vmap rule strips the axis of clients and hands the engine's
kernel plain tensors with one leading axis, so that algorithms stay simple and rounds stay fast. Without a kernel the
functions of `corymb.local.reference` run. There is no backward: differentiate `client.objective.losses` instead.
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
from corymb.local.single_vmap import are_differentiated, laid_open, leave_alone
from corymb.trees import Params, take

NO_BACKWARD = "losses, gradient and descend have no backward: differentiate client.objective.losses"


class Operation(Protocol):
    """A piece of work with a client's data: for one client, and for a stack of them by way of a kernel."""

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
    """What a model predicts for each example, or its loss there; rows of weight 0 may hold anything."""

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
        return list(work.kernel.gradient(work.objective, _led(params, on) if shared else params, on, key).values())


@dataclass(frozen=True)
class Descending:
    """A model after descent; last, its training loss before: of the examples of the first step.

    With `chosen`, one of k models: `key` is then two numbers, the key and the model's. The stack of everybody's models
    is made here, once, and stepped in place: made under vmap it would be copied again.
    """

    how: Descent
    chosen: bool = False

    def one(self, objective: Objective, params: Params, on: Examples, key: Key | None) -> Sequence[Tensor]:
        assert key is not None
        if self.chosen:
            params, key = take(params, key[1]), key[0]
        there = self._there(objective)
        params, on = there.into(params), there.examples(on)
        found = descend_one(there.objective, params, on, key, self.how)
        return [*there.back(found.params).values(), found.loss]

    def many(self, work: _Work, params: Params, on: Examples, key: Key | None, shared: bool) -> Sequence[Tensor]:
        assert key is not None
        if self.chosen:
            label, key = key[:, 1], key[:, 0]
            rows = torch.arange(len(label), device=label.device)
            params = {n: p.index_select(0, label) if shared else p[rows, label] for n, p in params.items()}
            shared = False
        there = self._there(work.objective)
        params, on = there.into(_led(params, on) if shared else params), there.examples(on)
        trained, loss = work.kernel.descend(there.objective, params, on, key, self.how, own=self.chosen)
        return [*there.back(trained).values(), loss]

    def _there(self, objective: Objective) -> Coordinates:
        """Where the descent takes place."""
        there = whitened(objective) if self.how.whiten else None
        return there or Coordinates(objective, lambda on: on, lambda params: params, lambda params: params)


def _led(params: Params, on: Examples) -> Params:
    return {name: value.expand(on.weight.shape[0], *value.shape) for name, value in params.items()}


@dataclass(frozen=True)
class _Work:
    """One of the primitives on its way out of vmap: what to do, and which tensors have a leading axis already."""

    operation: Operation
    objective: Objective
    kernel: Any
    names: tuple[str, ...]
    size: int | None = None  # length of the leading axis
    led: tuple[bool, ...] = ()  # models, examples, key

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        models, on, key = self._regroup(tensors)
        if self.size is None:
            return tuple(self.operation.one(self.objective, models, on, key))
        models_led, on_led, key_led = self.led
        if self.kernel is None:
            return self._one_by_one(models, on, key)
        if not on_led:
            on = Examples(*(t.expand(self.size, *t.shape) for t in on))
        if key is not None and not key_led:
            key = key.expand(self.size)
        return tuple(self.operation.many(self, models, on, key, shared=not models_led))

    def _one_by_one(self, models: Params, on: Examples, key: Key | None) -> tuple[Tensor, ...]:
        """Without a kernel there is one client, and the axis is one of its function's own vmaps."""
        rows = []
        for i in range(self.size or 0):
            own_models, own_examples, own_key = self.led
            rows.append(
                self.operation.one(
                    self.objective,
                    take(models, i) if own_models else models,
                    take(on, i) if own_examples else on,
                    take(key, i) if own_key else key,
                )
            )
        return tuple(torch.stack(row) for row in zip(*rows, strict=True))

    def _regroup(self, tensors: Sequence[Tensor]) -> tuple[Params, Examples, Key | None]:
        k = len(self.names)
        rest = tensors[k + 3 :]
        return dict(zip(self.names, tensors, strict=False)), Examples(*tensors[k : k + 3]), rest[0] if rest else None

    def group_of(self, place: int) -> int:
        k = len(self.names)
        return 0 if place < k else 1 if place < k + 3 else 2

    def for_all(self, size: int, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> tuple[_Work, list[Tensor]]:
        """The same work for all places along these axes, which are led to the front of the tensors that have them."""
        groups = [self.group_of(place) for place in range(len(tensors))]
        led_before = self.led or (False, False, False)
        now = {group for group, dim in zip(groups, dims, strict=True) if dim is not None}
        led = tuple(before or group in now for group, before in enumerate(led_before))
        inner = 1 if self.size is None else self.size
        moved = []
        for tensor, dim, group in zip(tensors, dims, groups, strict=True):
            if not led[group] or (self.size is None and dim == 0):
                moved.append(tensor)
            else:
                t = tensor.movedim(dim, 0) if dim is not None else tensor.unsqueeze(0)
                t = t if led_before[group] else t.unsqueeze(1)  # outer, inner, ...
                moved.append(t.expand(size, inner, *t.shape[2:]).reshape(size * inner, *t.shape[2:]))
        return replace(self, size=size * inner, led=led), moved


class _Primitive(torch.autograd.Function):
    @staticmethod
    def forward(work: _Work, *tensors: Tensor) -> tuple[Tensor, ...]:
        return work(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

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
    """Do a piece of work for this client, or, under an engine's vmap, for all clients of its stack."""
    work = _Work(operation, client.objective, client._kernel, tuple(models))
    tensors = (*models.values(), *on, *(() if key is None else (key,)))
    found = None if client._kernel is None else laid_open(tensors)
    if found is not None:
        return leave_alone(work.for_all, found)
    if are_differentiated(tensors):
        raise RuntimeError(NO_BACKWARD)  # else the gradient would be 0, and nobody would know
    return _apply(work, *tensors)


def _apply(work: _Work, *tensors: Tensor) -> tuple[Tensor, ...]:
    out: tuple[Tensor, ...] = _Primitive.apply(work, *tensors)  # type: ignore[no-untyped-call]
    return out
