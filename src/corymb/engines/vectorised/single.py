"""A single client's descent, for models that run client by client; wide linear layers step in their backward pass.

The gradient of a wide linear layer is as large as its weights, and both are far larger than a processor's caches.
Writing the gradient, reading it again and adding it to the weights takes longer than the products. The backward pass of
such a layer therefore adds −lr · gradᵀx to the weights directly (`fused` does so for stacks of clients); all other
parameters are stepped by their gradients. Correct for plain SGD and weights that a single linear layer uses once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from corymb.core.objective import Draws, Examples, Objective
from corymb.engines.vectorised.recurrent import at_full_precision
from corymb.engines.vectorised.tape import Player, Tapes
from corymb.engines.vectorised.traits import linear_arguments
from corymb.keys import Key
from corymb.local.curvature import step_part
from corymb.local.descent import Batches, Descent, Stepper
from corymb.local.reference import as_params, gradient_one, training_losses, weighted_mean
from corymb.trees import Params


class SingleClient(NamedTuple):
    """A single client: its examples, its key, and what is already known about them."""

    on: Examples
    key: Key
    orders: Callable[[int], Tensor] | None = None
    """The order of the rows in each pass, if already drawn (`Batches.orders_of_all`)."""
    size: int | None = None
    """How many of its examples have a weight, if known."""
    unweighted: bool = False
    """Whether every example has weight 1."""
    before_step: Callable[[], None] = lambda: None
    """Called before every step."""

    def steps(self, how: Descent) -> Iterator[tuple[Examples, Draws]]:
        """The examples and the draws of each step."""
        for step, (rows, _) in enumerate(Batches(how, self.on.weight, self.key, self.orders, self.size)):
            self.before_step()
            yield self._at(rows), Draws(self.key, step, rows)

    def _at(self, rows: Tensor | None) -> Examples:
        x, y, weight = self.on
        if rows is None:
            return self.on
        same = weight[: len(rows)] if self.unweighted else weight.index_select(0, rows)
        return Examples(x.index_select(0, rows), y.index_select(0, rows), same)

    def mean(self, losses: Tensor, weight: Tensor) -> Tensor:
        """The weighted mean of losses; with weights of 1, it takes a sixth of the operations."""
        return losses.mean(-1) if self.unweighted and losses.shape[-1] else weighted_mean(losses, weight)


def descend_single(
    objective: Objective,
    params: Params,
    client: SingleClient,
    how: Descent,
    layers: Collection[str],
    tapes: Tapes | None,
) -> Tensor:
    """One client's descent, in place; returns its loss before the first step.

    The results are those of `corymb.local.reference.descend_one`. `layers` are the parameters that the backward pass
    steps itself, for plain SGD: those of linear layers that use them once. With `tapes`, steps are replayed (`tape`).
    """
    part = None
    if how.safe:
        rows = Batches.sample(how, client.on.weight, client.key)
        some = client.on if rows is None else Examples(*(t[rows] for t in client.on))
        part = step_part(how, lambda at: gradient_one(objective, at, some, Draws(client.key, 0, rows)), params)
    stepper = Stepper(how, [p for name, p in params.items() if name not in layers], part)
    players, before = dict[tuple[int, int], Player](), torch.empty(0)
    # A recurrent layer prepares its weights again for every new tensor, so all steps use the same leaves. Autocast
    # caches its casts by tensor and would miss the in-place steps: there, each step has new leaves.
    reused = not layers and not torch.is_autocast_enabled(client.on.weight.device.type)
    leaves = [_leaf(p) if reused else p for p in params.values()]
    for batch, draws in client.steps(how):
        drawn = draws if tapes is None else tapes.prepare(objective, draws)

        def step(inputs: Sequence[Tensor], drawn: Draws = drawn) -> Sequence[Tensor]:
            own, on, mine = grouped(inputs, params, drawn)
            return _step(objective, own, on, mine, client, layers, how.lr)

        inputs, player = [*params.values(), *batch, *drawn.tensors], None
        if tapes is not None:
            shape = len(batch.weight), len(inputs)
            if shape not in players:  # the other tensors have the same shapes in all steps of a client
                players[shape] = tapes.player(
                    ("alone", objective, client.unweighted, how.lr if layers else 0.0), inputs
                )
            player = None if players[shape].refused else players[shape]
        if player is None:
            loss, *slopes = step([*leaves, *inputs[len(params) :]])
        else:
            loss, *slopes = player.run(step, inputs, drawn.step)
        if tapes is not None:
            tapes.note(objective, drawn)
        if slopes:
            stepper.step(slopes)
        del slopes  # else a large model's would be kept until the next ones are complete
        before = before if draws.step else loss
    return before


def grouped(inputs: Sequence[Tensor], like: Params, draws: Draws) -> tuple[Params, Examples, Draws]:
    """The flat inputs of a step as parameters with the names of `like`, examples and draws."""
    n = len(like)
    return as_params(like, inputs[:n]), Examples(*inputs[n : n + 3]), draws.of(tuple(inputs[n + 3 :]))


def _step(
    objective: Objective,
    params: Params,
    on: Examples,
    draws: Draws,
    client: SingleClient,
    layers: Collection[str],
    lr: float,
) -> list[Tensor]:
    """The loss before a step and the gradients of all parameters but `layers`, which are stepped."""
    if layers:
        own = {name: params[name] for name in layers}
        loss, slopes = step_layers(objective, params, own, on, draws, lr, mean=client.mean)
        rest = (name for name in params if name not in own)
        return [loss, *(slopes[name] if name in slopes else torch.zeros_like(params[name]) for name in rest)]
    given = [p for p in params.values() if p.requires_grad]
    with torch.enable_grad():
        leaves = given or [_leaf(p) for p in params.values()]
        loss = client.mean(training_losses(objective, as_params(params, leaves), on, draws), on.weight)
        if not given:
            grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
            return [loss.detach(), *grads]
        # `autograd.grad` would first look for the nodes that lead to these tensors: 4 % of a step of a recurrent model.
        loss.backward()
    found = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return [loss.detach(), *found]


def _leaf(p: Tensor) -> Tensor:
    """A parameter to differentiate with respect to, in the same memory."""
    return p.detach().requires_grad_()


def step_layers(
    objective: Objective,
    params: Params,
    own: Params,
    on: Examples,
    draws: Draws,
    lr: float,
    part: Tensor | None = None,
    mean: Callable[[Tensor, Tensor], Tensor] = weighted_mean,
) -> tuple[Tensor, Params]:
    """A step of one client's linear layers, in place: the loss before it, and the gradients of all other parameters.

    `own` are the parameters of those layers, which are stepped; `params` are all parameters as the model reads them,
    copies in mixed precision. `part`, if given, scales the step and the returned gradients. Parameters without
    influence on the loss have no gradient.
    """
    with torch.enable_grad():
        token = torch.zeros((), device=on.weight.device, requires_grad=True)  # so that the first layer has a backward
        leaves = {name: p.detach().requires_grad_() for name, p in params.items() if name not in own}
        given = {**params, **leaves}
        with _Linears({id(given[name]): p for name, p in own.items()}, token, lr):
            values = training_losses(objective, given, on, draws)
        loss = mean(values, on.weight)
        whole = loss if part is None else part * loss
        _, *slopes = torch.autograd.grad(whole, [token, *leaves.values()], allow_unused=True)
    found = zip(leaves, slopes, strict=True)
    return loss.detach(), {name: slope for name, slope in found if slope is not None}


class _Linears(TorchFunctionMode):
    """A mode that replaces `linear` by a layer that is stepped in its backward pass, for the parameters in `targets`.

    `targets` has, by the id of the parameter that is read, the parameter to step.
    """

    def __init__(self, targets: dict[int, Tensor], token: Tensor, lr: float) -> None:
        super().__init__()
        self.targets, self.token, self.lr = targets, token, lr

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            x, weight, bias = linear_arguments(*args, **(kwargs or {}))
            if id(weight) in self.targets:
                own = self.targets[id(weight)], None if bias is None else self.targets[id(bias)]
                return _Layer.apply(x, weight, bias, *own, self.token, self.lr)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Layer(torch.autograd.Function):
    """A linear layer: x ... i, weight o i, bias o; its backward pass steps `own` and `own_bias`."""

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
