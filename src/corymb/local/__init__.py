"""What a client does with its data: `losses`, `scores`, `loss`, `gradient`, `descend`.

Written for one client. Under an engine's vmap these leave it: each is a custom autograd Function whose vmap rule
strips the axis of clients and hands the engine's kernel plain tensors with one leading axis, so that algorithms stay
simple and rounds stay fast. Without an engine's kernel the functions `measure_one`, `gradient_one` and `descend_one`
run, and they are the definition of right. None of these has a backward of its own: differentiate
`client.objective.losses` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from corymb.core.client import Client, Examples, Measure, Objective, on_client
from corymb.keys import Key, fold
from corymb.settings import require
from corymb.trees import Params, take


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Gradient descent on one client's examples."""

    lr: float = 0.1
    """Step size γ."""
    decay: float = 1.0
    """Factor on the step size for every round."""
    steps: int | None = None
    """Steps τ; without `steps` and `epochs`, one step."""
    epochs: int | None = None
    """Passes over the client's examples, instead of steps."""
    batch: int | None = None
    """Examples a step; without it, all of them."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    """Heavy-ball momentum of `sgd`."""
    weight_decay: float = 0.0
    proximal: float = 0.0
    """FedProx's μ: adds (μ/2)·‖θ − θ_start‖² to the loss."""

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr must be positive, got {self.lr}.")
        require(0 < self.decay <= 1, f"decay must be in (0, 1], got {self.decay}.")
        require(self.steps is None or self.epochs is None, "Give steps or epochs, not both.")
        require(self.steps is None or self.steps >= 1, f"steps must be at least 1, got {self.steps}.")
        require(self.epochs is None or self.epochs >= 1, f"epochs must be at least 1, got {self.epochs}.")
        require(self.batch is None or self.batch >= 1, f"batch must be at least 1, got {self.batch}.")
        require(0 <= self.momentum < 1, f"momentum must be in [0, 1), got {self.momentum}.")
        require(self.optimiser == "sgd" or self.momentum == 0, "momentum goes with optimiser 'sgd', not with 'adam'.")
        require(self.weight_decay >= 0, f"weight_decay must not be negative, got {self.weight_decay}.")
        require(self.proximal >= 0, f"proximal must not be negative, got {self.proximal}.")

    def at(self, round: int) -> Descent:
        """The same descent with the step size of that round."""
        return self if self.decay == 1 else replace(self, lr=self.lr * self.decay**round, decay=1.0)

    @property
    def plain(self) -> bool:
        """Whether a step is θ ← θ − lr · gradient and nothing else."""
        return self.optimiser == "sgd" and not (self.momentum or self.weight_decay or self.proximal)


# ---- what algorithms call


def losses(client: Client, models: Params, on: Examples | None = None) -> Tensor:
    """The mean loss of each of k models on the client's training examples: k."""
    return _leave(client, _Measure("losses"), models, on or client.train)[0]


def scores(client: Client, models: Params, on: Examples | None = None) -> Tensor:
    """The mean score of each of k models on the client's test examples: k."""
    return _leave(client, _Measure("scores"), models, on or client.test)[0]


def loss(client: Client, params: Params, on: Examples | None = None) -> Tensor:
    """The mean loss of one model."""
    return losses(client, _one_row(params), on)[0]


def score(client: Client, params: Params, on: Examples | None = None) -> Tensor:
    """The mean score of one model."""
    return scores(client, _one_row(params), on)[0]


def gradient(client: Client, params: Params, on: Examples | None = None) -> Params:
    """The gradient of the mean loss."""
    return _as_params(params, _leave(client, _Gradient(), params, on or client.train))


def descend(
    client: Client, params: Params, how: Descent, on: Examples | None = None, purpose: str = "batches"
) -> Params:
    """The model after descent from `params`; `purpose` picks the key that orders the batches."""
    return _as_params(params, _leave(client, _Descend(how), params, on or client.train, client.key(purpose)))


def part(examples: Examples, number: int, parts: int) -> Examples:
    """The examples of one of several disjoint parts (row i is in part i mod `parts`); the others weigh nothing."""
    rows = torch.arange(examples.weight.shape[-1], device=examples.weight.device)
    return examples._replace(weight=torch.where(rows % parts == number, examples.weight, 0))


def one_hot(label: Tensor, k: int) -> Tensor:
    """Weight 1 for one of k sums."""
    return (torch.arange(k, device=label.device) == label).to(torch.get_default_dtype())


@on_client
def losses_of(client: Client, models: Params) -> Tensor:
    """The loss of every model sent; one that is no number or without bound is the largest number there is.

    A model that somebody else spoiled must not make this client's reply one that cannot count.
    """
    fit = losses(client, models)
    most = torch.finfo(fit.dtype).max
    return fit.nan_to_num(nan=most, posinf=most)


@on_client
def serve_assigned(client: Client, models: Params, label: Tensor) -> Params:
    """The model of the client's cluster; one without a cluster takes the model that fits its training data best."""
    return take(models, torch.where(label < 0, losses(client, models).argmin(), label))


def _one_row(params: Params) -> Params:
    return {name: value.unsqueeze(0) for name, value in params.items()}


def _as_params(like: Params, values: Sequence[Tensor]) -> Params:
    return dict(zip(like, values, strict=True))


# ---- one client at a time: the definition


def measure_one(what: Measure, objective: Objective, models: Params, on: Examples) -> Tensor:
    """The mean loss or score of each of k models on one client's examples: k."""
    per_example: Callable[[Params, Examples], Tensor] = getattr(objective, what)
    k = next(iter(models.values())).shape[0]
    return torch.stack([weighted_mean(per_example(take(models, j), on), on.weight) for j in range(k)])


def gradient_one(objective: Objective, params: Params, on: Examples) -> Params:
    """The gradient of the mean loss on one client's examples."""
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in params.values()]
        mean = weighted_mean(objective.losses(_as_params(params, leaves), on), on.weight)
        grads = torch.autograd.grad(mean, leaves, allow_unused=True, materialize_grads=True)
    return _as_params(params, grads)


def descend_one(objective: Objective, params: Params, on: Examples, key: Key, how: Descent) -> Params:
    """Descent on one client's examples."""
    params = {name: value.clone() for name, value in params.items()}
    stepper = Stepper(how, list(params.values()))
    for rows, _ in Batches(how, on.weight, key):
        batch = on if rows is None else Examples(on.x[rows], on.y[rows], on.weight[rows])
        stepper.step(list(gradient_one(objective, params, batch).values()))
    return params


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Σ w·v / Σ w along the last axis. Rows of weight 0 are left out, not multiplied: 0 × NaN is NaN."""
    total = torch.where(weight > 0, values * weight, 0).sum(-1)
    return total / weight.sum(-1).clamp_min(torch.finfo(weight.dtype).tiny)


class Batches:
    """The batches of every step, the same for a client alone and for one in a padded stack.

    Each pass orders the examples by `fold(key, pass, row)` with padding last; a pass is ⌈m/B⌉ steps and its last batch
    is short. Yields (rows, active): `rows` is None for all examples, short batches are filled up with rows of padding
    or, where a client has none left, marked by the caller's weights; `active` is None, or a mask of clients not done.
    """

    def __init__(self, how: Descent, weight: Tensor, key: Key) -> None:
        self.how, self.weight, self.key = how, weight, key

    def __iter__(self) -> Any:
        how = self.how
        if how.batch is None or not self.weight.shape[-1]:
            for _ in range(how.steps or how.epochs or 1):
                yield None, None
            return
        sizes = (self.weight > 0).sum(-1)  # n, or a number
        passes = ((sizes + how.batch - 1) // how.batch).clamp_min(1)  # steps a pass
        steps = torch.full_like(passes, how.steps or 1) if how.epochs is None else how.epochs * passes
        last_epoch: list[int] | None = None
        order = torch.empty(0)
        last, first = int(steps.max()), int(steps.min())
        for step in range(last):
            epoch = step // passes
            if (now := epoch.flatten().tolist()) != last_epoch:
                order, last_epoch = self._order(epoch), now
            places = (step % passes * how.batch).unsqueeze(-1) + torch.arange(how.batch, device=order.device)
            rows = order.gather(-1, places.clamp_max(order.shape[-1] - 1))
            if self.weight.dim() == 1:
                yield rows[: max(0, min(how.batch, int(sizes) - int(places[0])))], None
            else:
                inside = places < sizes.unsqueeze(-1)
                active = None if step < first else step < steps
                yield torch.where(inside, rows, -1), active

    def _order(self, epoch: Tensor) -> Tensor:
        rows = torch.arange(self.weight.shape[-1], device=self.weight.device)
        draws = (fold(fold(self.key, epoch).unsqueeze(-1), rows) >> 1) & (2**62 - 1)
        return torch.where(self.weight > 0, draws, 2**62).argsort(dim=-1, stable=True)


class Stepper:
    """In-place steps of SGD (momentum, weight decay, proximal term) or Adam on a list of tensors.

    The tensors may have a leading axis of clients; then `active` says whose step counts.
    """

    def __init__(self, how: Descent, params: list[Tensor]) -> None:
        self.how, self.params = how, params
        self.start = [p.clone() for p in params] if how.proximal else []
        slots = 2 if how.optimiser == "adam" else 1 if how.momentum else 0
        self.state = [[torch.zeros_like(p) for p in params] for _ in range(slots)]
        self.taken = 0

    def step(self, grads: list[Tensor], active: Tensor | None = None) -> None:
        """θ ← θ − lr · direction, for the clients that are active."""
        how = self.how
        if how.weight_decay:
            grads = list(torch._foreach_add(grads, self.params, alpha=how.weight_decay))
        if how.proximal:
            pull = torch._foreach_sub(self.params, self.start)
            grads = list(torch._foreach_add(grads, list(pull), alpha=how.proximal))
        self.taken += 1
        if how.optimiser == "adam":
            grads = self._adam(grads)
        elif how.momentum:
            torch._foreach_mul_(self.state[0], how.momentum)
            torch._foreach_add_(self.state[0], grads)
            grads = self.state[0]
        if active is not None:  # a client that is done never becomes active again: its state no longer matters
            grads = [torch.where(active.reshape(-1, *[1] * (g.dim() - 1)), g, 0) for g in grads]
        torch._foreach_add_(self.params, grads, alpha=-how.lr)

    def _adam(self, grads: list[Tensor], beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> list[Tensor]:
        first, second = self.state
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        scale = torch._foreach_sqrt(torch._foreach_div(second, 1 - beta2**self.taken))
        torch._foreach_add_(scale, eps)
        return list(torch._foreach_div(torch._foreach_div(first, 1 - beta1**self.taken), scale))


# ---- leaving vmap


@dataclass(frozen=True)
class _Measure:
    what: Measure

    def one(self, objective: Objective, models: Params, on: Examples, key: Key | None) -> Sequence[Tensor]:
        return (measure_one(self.what, objective, models, on),)

    def many(self, work: _Work, models: Params, on: Examples, key: Key | None, shared: bool) -> Sequence[Tensor]:
        return (work.kernel.measure(self.what, work.objective, models, on, shared=shared),)


@dataclass(frozen=True)
class _Gradient:
    def one(self, objective: Objective, params: Params, on: Examples, key: Key | None) -> Sequence[Tensor]:
        return list(gradient_one(objective, params, on).values())

    def many(self, work: _Work, params: Params, on: Examples, key: Key | None, shared: bool) -> Sequence[Tensor]:
        return list(work.kernel.gradient(work.objective, _led(params, on) if shared else params, on).values())


@dataclass(frozen=True)
class _Descend:
    how: Descent

    def one(self, objective: Objective, params: Params, on: Examples, key: Key | None) -> Sequence[Tensor]:
        assert key is not None
        return list(descend_one(objective, params, on, key, self.how).values())

    def many(self, work: _Work, params: Params, on: Examples, key: Key | None, shared: bool) -> Sequence[Tensor]:
        assert key is not None
        params = _led(params, on) if shared else params
        return list(work.kernel.descend(work.objective, params, on, key, self.how).values())


def _led(params: Params, on: Examples) -> Params:
    return {name: value.expand(on.weight.shape[0], *value.shape) for name, value in params.items()}


@dataclass(frozen=True)
class _Work:
    """One of the primitives on its way out of vmap: what to do, and which tensors have a leading axis already."""

    operation: Any
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
            given = [take(part, i) if led else part for part, led in zip((models, on, key), self.led, strict=True)]
            rows.append(self.operation.one(self.objective, *given))
        return tuple(torch.stack(row) for row in zip(*rows, strict=True))

    def _regroup(self, tensors: Sequence[Tensor]) -> tuple[Params, Examples, Key | None]:
        k = len(self.names)
        rest = tensors[k + 3 :]
        return dict(zip(self.names, tensors, strict=False)), Examples(*tensors[k : k + 3]), rest[0] if rest else None

    def group_of(self, place: int) -> int:
        k = len(self.names)
        return 0 if place < k else 1 if place < k + 3 else 2


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
        batched = [dim is not None for dim in in_dims[1:]]
        groups = [work.group_of(place) for place in range(len(tensors))]
        led_before = work.led or (False, False, False)
        now = tuple(any(b for b, g in zip(batched, groups, strict=True) if g == group) for group in range(3))
        led = tuple(before or new for before, new in zip(led_before, now, strict=True))
        inner = 1 if work.size is None else work.size
        moved = []
        for tensor, dim, group in zip(tensors, in_dims[1:], groups, strict=True):
            if not led[group]:
                moved.append(tensor)
                continue
            t = tensor.movedim(dim, 0) if dim is not None else tensor.unsqueeze(0)
            t = t if led_before[group] else t.unsqueeze(1)  # outer, inner, ...
            moved.append(t.expand(size, inner, *t.shape[2:]).reshape(size * inner, *t.shape[2:]))
        out = _apply(replace(work, size=size * inner, led=led), *moved)
        if work.size is not None:
            out = tuple(o.reshape(size, inner, *o.shape[1:]) for o in out)
        return out, (0,) * len(out)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("losses, gradient and descend have no backward: differentiate client.objective.losses")


def _leave(client: Client, operation: Any, models: Params, on: Examples, key: Key | None = None) -> tuple[Tensor, ...]:
    work = _Work(operation, client.objective, client._kernel, tuple(models))
    return _apply(work, *models.values(), *on, *(() if key is None else (key,)))


def _apply(work: _Work, *tensors: Tensor) -> tuple[Tensor, ...]:
    out: tuple[Tensor, ...] = _Primitive.apply(work, *tensors)  # type: ignore[no-untyped-call]
    return out
