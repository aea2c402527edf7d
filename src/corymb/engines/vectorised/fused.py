"""Layers for a stack of clients whose backward takes the SGD step in place.

Inside `fused_step` every `linear(x, weight, bias)` of the objective, run under vmap over clients, becomes one batched
product. Its backward first passes the gradient down to `x` and then adds −lr · gradᵀx to the weights with `baddbmm_`:
the gradient of a weight is never stored, which is most of the memory traffic of small models on many clients. That is
right only if every parameter is used exactly once and by such a layer (`Traits.fusable`), and for plain SGD. The layer
that reads the examples may be stepped by way of them (`Span`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from corymb.core.client import Examples, Objective
from corymb.core.objective import Draws
from corymb.engines.vectorised.span import Reading, Span
from corymb.engines.vectorised.traits import linear_arguments
from corymb.local.reference import training_losses, weighted_mean
from corymb.trees import Params


def fused_step(
    objective: Objective,
    params: Params,
    on: Examples,
    draws: Draws,
    lr: float,
    part: Tensor | None = None,
    span: Span | None = None,
) -> Tensor:
    """One step of SGD on every client's own model, in place; all tensors have a leading axis of clients.

    Gives each client's mean loss before the step.

    `part` is the part of the step that each client takes, where that is not all of it. The state of a `span` is among
    the parameters.
    """
    with torch.enable_grad():
        token = torch.zeros((), device=on.weight.device, requires_grad=True)  # so that the first layer has a backward

        def mean_loss(one: Params, examples: Examples, drawn: tuple[Tensor, ...]) -> Tensor:
            given, reading = (one, None) if span is None else span.stand_ins(one)
            with _Linears(given, examples, token, lr, reading):
                values = training_losses(objective, given, examples, draws.of(drawn))
            return weighted_mean(values, examples.weight)

        losses = vmap(mean_loss)(params, on, draws.tensors)
        (losses.sum() if part is None else part @ losses).backward()  # a part of the loss has that part of the gradient
    return losses.detach()


class _Linears(TorchFunctionMode):
    """Sends every `linear` to the batched layer."""

    def __init__(self, params: Params, on: Examples, token: Tensor, lr: float, reading: Reading | None) -> None:
        super().__init__()
        self.ours = {id(p) for p in params.values()}
        self.on, self.token, self.lr, self.reading = on, token, lr, reading

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, bias = linear_arguments(*args, **(kwargs or {}))
            if self.reading is not None and id(weight) == self.reading.weight:
                return self.reading(x, self.on, self.token, self.lr)
            if id(weight) in self.ours:
                return _UnderVmap.apply(x, weight, bias, self.token, self.lr)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _UnderVmap(torch.autograd.Function):
    """One client's layer; under vmap it steps out and does the layer of all clients."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, token: Tensor, lr: float) -> Tensor:
        raise RuntimeError("a fused layer runs under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, token: Tensor, lr: float) -> Any:
        x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.expand(info.batch_size, *x.shape)
        # The parameters are stepped in place: they must be the stack itself, with clients in front.
        if in_dims[1] != 0 or (bias is not None and in_dims[2] != 0):
            raise RuntimeError("a fused layer wants every client's parameters stacked in front")
        flat = x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)
        stacked = weight if weight.dim() == 3 else weight.unsqueeze(1)
        out = _Layer.apply(flat, stacked, bias, token, lr)  # type: ignore[no-untyped-call]
        return out.reshape(*x.shape[:-1], *weight.shape[1:-1]), 0


class _Layer(torch.autograd.Function):
    """n clients' linear layers: x n m i, weight n o i, bias n o."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, token: Tensor, lr: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.lr = weight, bias, lr  # not saved tensors: they are stepped in place on purpose
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias.reshape(len(bias), 1, -1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x,) = grads, ctx.saved_tensors
        down = torch.bmm(grad, ctx.weight) if ctx.needs_input_grad[0] else None
        ctx.weight.baddbmm_(grad.mT, x, alpha=-ctx.lr)
        if ctx.bias is not None:
            ctx.bias.add_(grad.sum(1).reshape(ctx.bias.shape), alpha=-ctx.lr)
        return down, None, None, None, None
