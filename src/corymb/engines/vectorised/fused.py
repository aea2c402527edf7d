"""Linear layers for a stack of clients, whose backward pass takes the SGD step in place.

Inside `fused_step`, every `linear(x, weight, bias)` of the objective under vmap over clients becomes one batched
product. Its backward pass first propagates the gradient to `x` and then adds −lr · gradᵀx to the weights with
`baddbmm_`: gradients of weights, which are most of the memory traffic of small models on many clients, are never
stored. This is correct only for plain SGD, and for parameters that a single linear layer uses once (`Traits.layers`);
all other parameters are stepped by their gradients. The layer that reads the examples may use the method of `span`.

In mixed precision, products read copies that are cast once for all clients (`lowered`), and steps are added to the
float32 parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from corymb.core.client import Examples, Objective
from corymb.core.objective import Draws
from corymb.engines.vectorised.products import stacked_gradient, stacked_linear, step_stacked
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
    """Take one SGD step on each client's own model, in place, and return each client's mean loss before the step.

    All tensors have a leading axis of clients. `part`, if given, multiplies each client's step size. With a `span`, its
    state is among the parameters. With `traits`, only `traits.layers` are stepped in the backward pass; without, all
    parameters are.
    """
    stepped = {name: p for name, p in params.items() if traits is None or name in traits.layers}
    with torch.enable_grad():
        token = torch.zeros((), device=on.weight.device, requires_grad=True)  # so that the first layer has a backward
        leaves = {name: p.detach().requires_grad_() for name, p in params.items() if name not in stepped}
        losses = _losses(objective, {**params, **leaves}, stepped, on, draws, lr, token, span, traits)
        total = losses.sum() if part is None else (part * losses).sum()  # scales gradients, and so the steps
        _, *slopes = torch.autograd.grad(total, [token, *leaves.values()], allow_unused=True)
    used = {name: slope for name, slope in zip(leaves, slopes, strict=True) if slope is not None}
    if used:
        torch._foreach_add_([params[name] for name in used], list(used.values()), alpha=-lr)
    return losses.detach()


def stacked_gradients(objective: Objective, params: Params, on: Examples, draws: Draws, traits: Traits) -> list[Tensor]:
    """Each client's mean loss, then its gradients, each with the memory layout of its parameter.

    Plain vmap gives the gradients of linear layers transposed in memory, which makes steps several times as long.
    """
    with torch.enable_grad():
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        losses = _losses(objective, leaves, {}, on, draws, None, None, None, traits)
        slopes = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    return [losses.detach(), *slopes]


def lowered(params: Params, traits: Traits | None) -> Params:
    """The parameters, those of products cast to autocast's dtype if it is enabled.

    They are cast here once for all clients, instead of by autocast in every operation.
    """
    device = next(iter(params.values())).device.type
    if traits is None or not torch.is_autocast_enabled(device):
        return params
    low = torch.get_autocast_dtype(device)
    cast = {name for name, p in params.items() if name in traits.products and p.dtype == torch.float32}
    return {name: p.to(low) if name in cast else p for name, p in params.items()}


def _losses(
    objective: Objective,
    params: Params,
    stepped: Params,
    on: Examples,
    draws: Draws,
    lr: float | None,
    token: Tensor | None,
    span: Span | None,
    traits: Traits | None,
) -> Tensor:
    """Each client's mean loss, computed with batched linear layers.

    The backward pass steps the parameters in `stepped` and returns gradients of the others.
    """
    layers = stepped.keys() if traits is None else traits.layers

    def mean_loss(one: Params, targets: Params, examples: Examples, drawn: tuple[Tensor, ...]) -> Tensor:
        given, reading = (one, None) if span is None else span.stand_ins(one)
        by_id = {id(given[name]): targets.get(name) for name in layers if name in given}
        with stacked_layers(traits), _Linears(by_id, examples, token, lr, reading):
            values = training_losses(objective, given, examples, draws.of(drawn))
        return weighted_mean(values, examples.weight)

    losses: Tensor = vmap(mean_loss)(lowered(params, traits), stepped, on, draws.tensors)
    return losses


class _Linears(TorchFunctionMode):
    """A mode that replaces `linear` by the batched layer for the parameters in `targets`.

    `targets` has, by the id of the parameter that is read, the parameter to step; None to return its gradient instead.
    """

    def __init__(
        self,
        targets: dict[int, Tensor | None],
        on: Examples,
        token: Tensor | None,
        lr: float | None,
        reading: Reading | None,
    ) -> None:
        super().__init__()
        self.targets, self.on, self.token, self.lr, self.reading = targets, on, token, lr, reading

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, bias = linear_arguments(*args, **(kwargs or {}))
            if self.reading is not None and id(weight) == self.reading.weight:
                assert self.token is not None
                assert self.lr is not None
                return self.reading(x, self.on, self.token, self.lr)
            if id(weight) in self.targets:
                target = self.targets[id(weight)], None if bias is None else self.targets.get(id(bias))
                return _UnderVmap.apply(x, weight, bias, self.token, self.lr, *target)  # type: ignore[no-untyped-call]
        if getattr(func, "__name__", "") in PRODUCTS and len(args) > 1 and args[1].dtype == torch.bfloat16:
            args = (args[0].to(torch.bfloat16), *args[1:])  # under vmap, autocast casts on some devices only
        return func(*args, **(kwargs or {}))


class _UnderVmap(torch.autograd.Function):
    """One client's layer; its vmap rule computes the layer of all clients."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        raise RuntimeError("a fused layer runs only under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Any:
        x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.expand(info.batch_size, *x.shape)
        # The parameters are stepped in place, so they must be the stack itself, not a view with its axes moved.
        token, lr, target, target_bias = how
        for parameter, dim in zip((weight, bias, target, target_bias), (*in_dims[1:3], *in_dims[5:7]), strict=True):
            if parameter is not None and dim != 0:
                raise RuntimeError(f"a fused layer wants clients on the first axis of its parameters, got axis {dim}")
        flat = x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)
        stacked, stepped = (w if w is None or w.dim() == 3 else w.unsqueeze(1) for w in (weight, target))
        out = _Layer.apply(flat, stacked, bias, token, lr, stepped, target_bias)  # type: ignore[no-untyped-call]
        return out.reshape(*x.shape[:-1], *weight.shape[1:-1]), 0


class _Layer(torch.autograd.Function):
    """n clients' linear layers: x n m i, weight n o i, bias n o.

    The backward pass steps `target` and `target_bias`, or returns the parameters' gradients if `target` is None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token: Tensor | None,
        lr: float | None,
        target: Tensor | None,
        target_bias: Tensor | None,
    ) -> Tensor:
        x = x.to(weight.dtype)
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.lr = weight, bias, lr  # not `save_for_backward`, which forbids in-place changes
        ctx.target, ctx.target_bias = target, target_bias
        return stacked_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x,) = grads, ctx.saved_tensors
        down = torch.bmm(grad, ctx.weight) if ctx.needs_input_grad[0] else None
        if ctx.target is None:
            bias = None if ctx.bias is None else grad.sum(1).reshape(ctx.bias.shape)
            return down, stacked_gradient(grad, x), bias, None, None, None, None
        with at_full_precision(ctx.target):
            grad, x = grad.to(ctx.target.dtype), x.to(ctx.target.dtype)
            step_stacked(ctx.target, grad, x, ctx.lr)
            if ctx.target_bias is not None:
                ctx.target_bias.add_(grad.sum(1).reshape(ctx.target_bias.shape), alpha=-ctx.lr)
        return down, None, None, None, None, None, None
