"""Layers for a stack of clients whose backward takes the SGD step in place.

Inside `fused_step` every `linear(x, weight, bias)` of the objective, run under vmap over clients, becomes one batched
product. Its backward first passes the gradient down to `x` and then adds −lr · gradᵀx to the weights with `baddbmm_`:
the gradient of a weight is never stored, which is most of the memory traffic of small models on many clients. That is
right only for plain SGD, and for parameters that one such layer uses once (`Traits.layers`); all others take their
steps by their gradients. The layer that reads the examples may be stepped by way of them (`Span`).

In a mixed precision the products read copies that are cast once for all clients (`lowered`), and steps are taken on the
parameters themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from corymb.core.client import Examples, Objective
from corymb.core.objective import Draws
from corymb.engines.vectorised.recurrent import at_full_precision
from corymb.engines.vectorised.span import Reading, Span
from corymb.engines.vectorised.stacked import stacked_layers
from corymb.engines.vectorised.traits import PRODUCTS, Traits, linear_arguments
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
    traits: Traits | None = None,
) -> Tensor:
    """One step of SGD on every client's own model, in place; all tensors have a leading axis of clients.

    Gives each client's mean loss before the step.

    `part` is the part of the step that each client takes, where that is not all of it. The state of a `span` is among
    the parameters. With `traits`, only its `layers` are stepped in their backward; without, all parameters are.
    """
    own = {name: p for name, p in params.items() if traits is None or name in traits.layers}
    with torch.enable_grad():
        token = torch.zeros((), device=on.weight.device, requires_grad=True)  # so that the first layer has a backward
        leaves = {name: p.detach().requires_grad_() for name, p in params.items() if name not in own}
        losses = _losses(objective, {**params, **leaves}, own, on, draws, lr, token, span, traits)
        whole = losses.sum() if part is None else (part * losses).sum()  # a part of the loss has that part of the slope
        _, *slopes = torch.autograd.grad(whole, [token, *leaves.values()], allow_unused=True)
    used = {name: slope for name, slope in zip(leaves, slopes, strict=True) if slope is not None}
    if used:
        torch._foreach_add_([params[name] for name in used], list(used.values()), alpha=-lr)
    return losses.detach()


def stacked_gradients(objective: Objective, params: Params, on: Examples, draws: Draws, traits: Traits) -> list[Tensor]:
    """Every client's mean loss before a step, then its gradients, each as its parameter lies in memory.

    By vmap alone, those of linear layers come out transposed: a step by them takes several times as long.
    """
    with torch.enable_grad():
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        losses = _losses(objective, leaves, {}, on, draws, None, None, None, traits)
        slopes = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    return [losses.detach(), *slopes]


def lowered(params: Params, traits: Traits | None) -> Params:
    """Parameters as products in a mixed precision read them: cast once for all clients, and not in every operation."""
    device = next(iter(params.values())).device.type
    if traits is None or not torch.is_autocast_enabled(device):
        return params
    low = torch.get_autocast_dtype(device)
    cast = {name for name, p in params.items() if name in traits.products and p.dtype == torch.float32}
    return {name: p.to(low) if name in cast else p for name, p in params.items()}


def _losses(
    objective: Objective,
    params: Params,
    own: Params,
    on: Examples,
    draws: Draws,
    lr: float | None,
    token: Tensor | None,
    span: Span | None,
    traits: Traits | None,
) -> Tensor:
    """Every client's mean loss, by layers that step their `own` parameters or, where these have none, give slopes."""
    layers = own.keys() if traits is None else traits.layers

    def mean_loss(one: Params, mine: Params, examples: Examples, drawn: tuple[Tensor, ...]) -> Tensor:
        given, reading = (one, None) if span is None else span.stand_ins(one)
        ours = {id(given[name]): mine.get(name) for name in layers if name in given}
        with stacked_layers(traits), _Linears(ours, examples, token, lr, reading):
            values = training_losses(objective, given, examples, draws.of(drawn))
        return weighted_mean(values, examples.weight)

    losses: Tensor = vmap(mean_loss)(lowered(params, traits), own, on, draws.tensors)
    return losses


class _Linears(TorchFunctionMode):
    """Sends every `linear` to the batched layer. `ours`: by the id of a parameter that is read, the one to step."""

    def __init__(
        self,
        ours: dict[int, Tensor | None],
        on: Examples,
        token: Tensor | None,
        lr: float | None,
        reading: Reading | None,
    ) -> None:
        super().__init__()
        self.ours, self.on, self.token, self.lr, self.reading = ours, on, token, lr, reading

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, bias = linear_arguments(*args, **(kwargs or {}))
            if self.reading is not None and id(weight) == self.reading.weight:
                assert self.token is not None
                assert self.lr is not None
                return self.reading(x, self.on, self.token, self.lr)
            if id(weight) in self.ours:
                stepped = self.ours[id(weight)], None if bias is None else self.ours.get(id(bias))
                return _UnderVmap.apply(x, weight, bias, self.token, self.lr, *stepped)  # type: ignore[no-untyped-call]
        if getattr(func, "__name__", "") in PRODUCTS and len(args) > 1 and args[1].dtype == torch.bfloat16:
            args = (args[0].to(torch.bfloat16), *args[1:])  # under vmap, autocast does so on some devices only
        return func(*args, **(kwargs or {}))


class _UnderVmap(torch.autograd.Function):
    """One client's layer; under vmap it steps out and does the layer of all clients."""

    @staticmethod
    def forward(*given: Any) -> Tensor:
        raise RuntimeError("a fused layer runs under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Any:
        x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.expand(info.batch_size, *x.shape)
        # The parameters are stepped in place: they must be the stack itself, with clients in front.
        token, lr, own, own_bias = how
        for parameter, dim in zip((weight, bias, own, own_bias), (*in_dims[1:3], *in_dims[5:7]), strict=True):
            if parameter is not None and dim != 0:
                raise RuntimeError("a fused layer wants every client's parameters stacked in front")
        flat = x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)
        stacked, stepped = (w if w is None or w.dim() == 3 else w.unsqueeze(1) for w in (weight, own))
        out = _Layer.apply(flat, stacked, bias, token, lr, stepped, own_bias)  # type: ignore[no-untyped-call]
        return out.reshape(*x.shape[:-1], *weight.shape[1:-1]), 0


class _Layer(torch.autograd.Function):
    """n clients' linear layers: x n m i, weight n o i, bias n o; `own` is where steps go, None where there are none."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token: Tensor | None,
        lr: float | None,
        own: Tensor | None,
        own_bias: Tensor | None,
    ) -> Tensor:
        x = x.to(weight.dtype)
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.lr = weight, bias, lr  # not saved tensors: they are stepped in place on purpose
        ctx.own, ctx.own_bias = own, own_bias
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias.reshape(len(bias), 1, -1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x,) = grads, ctx.saved_tensors
        down = torch.bmm(grad, ctx.weight) if ctx.needs_input_grad[0] else None
        if ctx.own is None:
            bias = None if ctx.bias is None else grad.sum(1).reshape(ctx.bias.shape)
            return down, torch.bmm(grad.mT, x), bias, None, None, None, None
        with at_full_precision(ctx.own):
            grad, x = grad.to(ctx.own.dtype), x.to(ctx.own.dtype)
            ctx.own.baddbmm_(grad.mT, x, alpha=-ctx.lr)
            if ctx.own_bias is not None:
                ctx.own_bias.add_(grad.sum(1).reshape(ctx.own_bias.shape), alpha=-ctx.lr)
        return down, None, None, None, None, None, None
