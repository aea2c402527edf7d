"""The first step of clients that all start from one model, as in FedAvg, to capture on a GPU.

Until that step, all clients have the same weights. Layers, and the gradients of their inputs, are then one product for
the examples of all clients; only the gradients of the weights are computed for each client. The models of all clients
are written once, by the step, instead of first being copied from that one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from corymb.core.objective import Draws, Examples, Objective
from corymb.engines.vectorised.fused import lowered
from corymb.engines.vectorised.stacked import stacked_layers
from corymb.engines.vectorised.traits import PRODUCTS, Traits, linear_arguments
from corymb.local.reference import training_losses, weighted_mean
from corymb.local.single_vmap import value_and_gradients
from corymb.trees import Params, align_leading

SharedStep = Callable[[Params, Params, Examples, Draws, Tensor], list[Tensor]]
"""Takes the clients' own models, to be written, and the model that all of them start from; the rest, and what it
returns, is as in `graphs.StepFunction`."""


def from_one_model(objective: Objective, traits: Traits, *, steps: bool) -> SharedStep:
    """A step from one model. With `steps`, it returns losses; else it only copies the model, and returns gradients too.

    Not for recurrent models, whose layers are computed time step by time step for a stack of clients.
    """

    def step(params: Params, start: Params, on: Examples, draws: Draws, rates: Tensor) -> list[Tensor]:
        losses, *slopes = _losses_and_gradients(objective, start, on, draws, traits)
        if not steps:
            for name, into in params.items():
                into.copy_(start[name].expand_as(into))
            return [losses, *(slope.to(start[name].dtype) for name, slope in zip(start, slopes, strict=True))]
        for name, slope in zip(start, slopes, strict=True):
            torch.addcmul(start[name], align_leading(rates, slope), slope, value=-1, out=params[name])
        return [losses]

    return step


def _losses_and_gradients(
    objective: Objective, start: Params, on: Examples, draws: Draws, traits: Traits
) -> tuple[Tensor, ...]:
    """Each client's mean loss, then its gradients at `start`."""
    read = lowered(start, traits)

    def of_client(examples: Examples, drawn: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        def mean_loss(weights: list[Tensor]) -> Tensor:
            with stacked_layers(traits), _SharedLayers():
                given = dict(zip(read, weights, strict=True))
                values = training_losses(objective, given, examples, draws.of(drawn))
            return weighted_mean(values, examples.weight)

        loss, slopes = value_and_gradients(mean_loss, list(read.values()))
        return loss, *slopes

    found: tuple[Tensor, ...] = vmap(of_client)(on, draws.tensors)
    return found


class _SharedLayers(TorchFunctionMode):
    """A mode for layers whose weights are the same for all clients."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in PRODUCTS and len(args) > 1 and args[1].dtype == torch.bfloat16:
            args = (args[0].to(torch.bfloat16), *args[1:])  # under vmap, autocast casts on some devices only
        if func is linear:
            x, weight, bias = linear_arguments(*args, **(kwargs or {}))
            if weight.dim() == 2:
                return _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """A linear layer whose weights' gradients lie in memory as the weights do.

    Plain vmap gives them transposed, and reading them so takes several times as long.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, bias = inputs
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        return grad @ weight, rows.mT @ x.reshape(-1, x.shape[-1]), rows.sum(0) if ctx.has_bias else None
