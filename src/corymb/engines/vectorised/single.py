"""A client by itself whose linear layers are stepped in their backward: for networks that are run one by one.

The gradient of a wide linear layer is as large as its weights, which are far larger than a processor's caches: to write
it, to read it again and to add it to the weights takes longer than the products. Here the backward of such a layer adds
−lr · gradᵀx to the weights at once (`fused` does so for stacks of clients). All other parameters take their steps by
their gradients. Right for plain SGD, and for weights that one linear layer uses once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from corymb.core.objective import Draws, Examples, Objective
from corymb.engines.vectorised.traits import linear_arguments
from corymb.keys import Key
from corymb.local.descent import Batches, Descent
from corymb.local.reference import training_losses, weighted_mean
from corymb.trees import Params


def descend_in_place(
    objective: Objective, params: Params, on: Examples, key: Key, how: Descent, layers: Collection[str]
) -> Tensor:
    """Steps of plain SGD on one client's model, in place; gives its loss before the first.

    `layers` are the names of parameters that one linear layer uses once.
    """
    others = {name: p for name, p in params.items() if name not in layers}
    before = torch.empty(0)
    for step, (rows, _) in enumerate(Batches(how, on.weight, key)):
        batch = on if rows is None else Examples(*(t[rows] for t in on))
        with torch.enable_grad():
            leaves = {name: p.detach().requires_grad_() for name, p in others.items()}
            given = {name: leaves.get(name, p) for name, p in params.items()}
            with _Linears([params[name] for name in layers], how.lr):
                values = training_losses(objective, given, batch, Draws(key, step, rows))
            loss = weighted_mean(values, batch.weight)
            loss.backward()
        used = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        torch._foreach_add_([others[name] for name in used], list(used.values()), alpha=-how.lr)
        before = before if step else loss.detach()
    return before


class _Linears(TorchFunctionMode):
    """Sends every `linear` of these parameters to the layer that is stepped in its backward."""

    def __init__(self, ours: Collection[Tensor], lr: float) -> None:
        super().__init__()
        self.ours, self.lr = {id(p) for p in ours}, lr
        device = next(iter(ours)).device
        self.token = torch.zeros((), device=device, requires_grad=True)  # so that the first layer has a backward

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            x, weight, bias = linear_arguments(*args, **(kwargs or {}))
            if id(weight) in self.ours:
                return _Layer.apply(x, weight, bias, self.token, self.lr)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Layer(torch.autograd.Function):
    """A linear layer: x ... i, weight o i, bias o."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, token: Tensor, lr: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.lr = weight, bias, lr  # not saved tensors: they are stepped in place on purpose
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x,) = grads, ctx.saved_tensors
        down = grad @ ctx.weight if ctx.needs_input_grad[0] else None
        flat = grad.reshape(-1, grad.shape[-1])
        ctx.weight.addmm_(flat.mT, x.reshape(-1, x.shape[-1]), alpha=-ctx.lr)
        if ctx.bias is not None:
            ctx.bias.add_(flat.sum(0), alpha=-ctx.lr)
        return down, None, None, None, None
