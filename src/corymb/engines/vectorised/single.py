"""A client by itself whose linear layers are stepped in their backward: for networks that are run one by one.

The gradient of a wide linear layer is as large as its weights, which are far larger than a processor's caches: to write
it, to read it again and to add it to the weights takes longer than the products. Here the backward of such a layer adds
−lr · gradᵀx to the weights at once (`fused` does so for stacks of clients). All other parameters take their steps by
their gradients. Right for plain SGD, and for weights that one linear layer uses once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from corymb.core.objective import Draws, Examples, Objective
from corymb.engines.vectorised.recurrent import at_full_precision
from corymb.engines.vectorised.traits import linear_arguments
from corymb.keys import Key
from corymb.local.descent import Batches, Descent
from corymb.local.reference import training_losses, weighted_mean
from corymb.trees import Params


def descend_in_place(
    objective: Objective,
    params: Params,
    on: Examples,
    key: Key,
    how: Descent,
    layers: Collection[str],
    begins: Callable[[], None] = lambda: None,
) -> Tensor:
    """Steps of plain SGD on one client's model, in place; gives its loss before the first.

    `layers` are the names of parameters that one linear layer uses once; `begins` is told of every step.
    """
    own = {name: params[name] for name in layers}
    before = torch.empty(0)
    for step, (rows, _) in enumerate(Batches(how, on.weight, key)):
        begins()
        batch = on if rows is None else Examples(*(t[rows] for t in on))
        loss, slopes = step_layers(objective, params, own, batch, Draws(key, step, rows), how.lr)
        torch._foreach_add_([params[name] for name in slopes], list(slopes.values()), alpha=-how.lr)
        before = before if step else loss
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
