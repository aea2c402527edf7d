"""A client by itself, for networks that are run one by one; wide linear layers are stepped in their backward.

The gradient of a wide linear layer is as large as its weights, which are far larger than a processor's caches: to write
it, to read it again and to add it to the weights takes longer than the products. Here the backward of such a layer adds
−lr · gradᵀx to the weights at once (`fused` does so for stacks of clients). All other parameters take their steps by
their gradients. Right for plain SGD, and for weights that one linear layer uses once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from corymb.core.objective import Draws, Examples, Objective
from corymb.engines.vectorised.recurrent import at_full_precision
from corymb.engines.vectorised.traits import linear_arguments
from corymb.keys import Key
from corymb.local.curvature import step_part
from corymb.local.descent import Batches, Descent, Stepper
from corymb.local.reference import as_params, gradient_one, training_losses, weighted_mean
from corymb.trees import Params


class Alone(NamedTuple):
    """A client by itself: its examples, its key, and what is known of them beforehand."""

    on: Examples
    key: Key
    orders: Callable[[int], Tensor] | None = None
    """Of its passes, where they are drawn already (`Batches.orders_of_all`)."""
    alike: bool = False
    """Whether every example weighs 1."""
    begins: Callable[[], None] = lambda: None
    """Told of every step."""

    def steps(self, how: Descent) -> Iterator[tuple[Examples, Draws]]:
        """The examples of each step, and what is random in it."""
        for step, (rows, _) in enumerate(Batches(how, self.on.weight, self.key, self.orders)):
            self.begins()
            yield self._at(rows), Draws(self.key, step, rows)

    def _at(self, rows: Tensor | None) -> Examples:
        x, y, weight = self.on
        if rows is None:
            return self.on
        return Examples(x[rows], y[rows], weight[: len(rows)] if self.alike else weight[rows])

    def mean(self, losses: Tensor, weight: Tensor) -> Tensor:
        """The mean of examples' losses; of weights that are all 1, by a third of the operations."""
        return losses.sum(-1) / max(1, losses.shape[-1]) if self.alike else weighted_mean(losses, weight)


def descend_alone(objective: Objective, params: Params, client: Alone, how: Descent) -> Tensor:
    """One client's descent, in place; gives its loss before the first step.

    Does what `corymb.local.reference.descend_one` defines, and only once what is the same in every step: beside the
    steps of a small model that is half of the time.
    """
    part = None
    if how.safe:
        rows = Batches.sample(how, client.on.weight, client.key)
        some = client.on if rows is None else Examples(*(t[rows] for t in client.on))
        part = step_part(how, lambda at: gradient_one(objective, at, some, Draws(client.key, 0, rows)), params)
    stepper = Stepper(how, list(params.values()), part)
    leaves, before = list[Tensor](), torch.empty(0)
    # cuDNN moves weights of recurrent layers to memory of its own, and autocast keeps what it has cast.
    device = client.on.weight.device.type
    stale = device != "cpu" or torch.is_autocast_enabled(device)
    for batch, draws in client.steps(how):
        if not leaves or stale:
            leaves = [p.detach().requires_grad_() for p in params.values()]  # the same memory: they see the steps
        given = as_params(params, leaves)
        with torch.enable_grad():
            loss = client.mean(training_losses(objective, given, batch, draws), batch.weight)
            slopes = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        stepper.step(list(slopes))
        before = before if draws.step else loss.detach()
    return before


def descend_in_place(
    objective: Objective, params: Params, client: Alone, how: Descent, layers: Collection[str]
) -> Tensor:
    """Steps of plain SGD on one client's model, in place; gives its loss before the first.

    `layers` are the names of parameters that one linear layer uses once.
    """
    own = {name: params[name] for name in layers}
    before = torch.empty(0)
    for batch, draws in client.steps(how):
        loss, slopes = step_layers(objective, params, own, batch, draws, how.lr)
        torch._foreach_add_([params[name] for name in slopes], list(slopes.values()), alpha=-how.lr)
        before = before if draws.step else loss
    return before


def step_layers(
    objective: Objective,
    params: Params,
    own: Params,
    on: Examples,
    draws: Draws,
    lr: float,
    part: Tensor | None = None,
) -> tuple[Tensor, Params]:
    """A step of one client's linear layers, in place: the loss before it, and the gradients of all other parameters.

    `own` are those layers' parameters to step, `params` all parameters as they are read: in a mixed precision, copies.
    `part` is the part of the step that is taken, where that is not all of it; gradients are such a part as well. What
    has no influence has no gradient.
    """
    with torch.enable_grad():
        token = torch.zeros((), device=on.weight.device, requires_grad=True)  # so that the first layer has a backward
        leaves = {name: p.detach().requires_grad_() for name, p in params.items() if name not in own}
        given = {**params, **leaves}
        with _Linears({id(given[name]): p for name, p in own.items()}, token, lr):
            values = training_losses(objective, given, on, draws)
        loss = weighted_mean(values, on.weight)
        whole = loss if part is None else part * loss
        _, *slopes = torch.autograd.grad(whole, [token, *leaves.values()], allow_unused=True)
    found = zip(leaves, slopes, strict=True)
    return loss.detach(), {name: slope for name, slope in found if slope is not None}


class _Linears(TorchFunctionMode):
    """Sends every `linear` of these parameters to the layer that is stepped in its backward.

    `ours`: by the id of a parameter that is read, the one to step.
    """

    def __init__(self, ours: dict[int, Tensor], token: Tensor, lr: float) -> None:
        super().__init__()
        self.ours, self.token, self.lr = ours, token, lr

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            x, weight, bias = linear_arguments(*args, **(kwargs or {}))
            if id(weight) in self.ours:
                own = self.ours[id(weight)], None if bias is None else self.ours[id(bias)]
                return _Layer.apply(x, weight, bias, *own, self.token, self.lr)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Layer(torch.autograd.Function):
    """A linear layer: x ... i, weight o i, bias o; `own` and `own_bias` are where the steps go."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        own: Tensor,
        own_bias: Tensor | None,
        token: Tensor,
        lr: float,
    ) -> Tensor:
        x = x.to(weight.dtype)
        ctx.save_for_backward(x)
        ctx.weight, ctx.lr = weight, lr  # not saved tensors: they are stepped in place on purpose
        ctx.own, ctx.own_bias = own, own_bias
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x,) = grads, ctx.saved_tensors
        down = grad @ ctx.weight if ctx.needs_input_grad[0] else None
        with at_full_precision(ctx.own):
            exact = ctx.own.dtype
            flat = grad.reshape(-1, grad.shape[-1]).to(exact)
            ctx.own.addmm_(flat.mT, x.reshape(-1, x.shape[-1]).to(exact), alpha=-ctx.lr)
            if ctx.own_bias is not None:
                ctx.own_bias.add_(flat.sum(0), alpha=-ctx.lr)
        return down, None, None, None, None, None, None
