"""Variants of a training step to capture on a GPU (`graphs`): all clients at once, or one by one on several streams.

With plain SGD, the captured function takes the step itself, with each client's step size; linear layers are stepped in
their backward pass, so that their gradients are never stored. Otherwise it returns gradients, and an optimiser takes
the step.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from corymb.core.objective import Draws, Examples, Objective
from corymb.engines.vectorised.fused import fused_step, lowered, stacked_gradients
from corymb.engines.vectorised.graphs import OnStreams, StepFunction
from corymb.engines.vectorised.single import step_layers
from corymb.engines.vectorised.span import Span
from corymb.engines.vectorised.traits import Traits
from corymb.trees import Params, take


def at_once(objective: Objective, traits: Traits | None, span: Span | None = None, *, steps: bool) -> StepFunction:
    """A step of all clients at once, by vmap; without `traits`, all parameters must belong to linear layers.

    With `steps`, the function takes the step and returns losses; else it returns losses and gradients.
    """

    def step(params: Params, on: Examples, draws: Draws, rates: Tensor) -> list[Tensor]:
        if steps:
            return [fused_step(objective, params, on, draws, 1.0, rates, span, traits)]
        assert traits is not None
        return stacked_gradients(objective, params, on, draws, traits)

    return step


def by_streams(objective: Objective, device: torch.device, traits: Traits, *, steps: bool) -> StepFunction:
    """A step of one client after another, on a few streams; images are augmented beforehand, for all clients at once.

    With `steps`, the function takes the step and returns losses; else it returns losses and gradients.
    """
    streams = OnStreams(device)
    ahead = _changes_examples(objective)
    trained: Any = SimpleNamespace(training_losses=objective.losses_of_changed) if ahead else objective  # type: ignore[attr-defined]

    def step(params: Params, on: Examples, draws: Draws, rates: Tensor) -> list[Tensor]:
        losses = torch.empty_like(on.weight[:, 0])
        own = {name: p for name, p in params.items() if steps and name in traits.layers}
        read = lowered(params, traits)
        slopes = {name: torch.empty_like(p) for name, p in params.items() if name not in own}
        if ahead:  # client by client, this would be hundreds of tiny operations
            on = vmap(lambda own, drawn: objective.changed(own, draws.of(drawn)))(on, draws.tensors)  # type: ignore[attr-defined]

        def one(i: int) -> None:
            drawn, part = draws.of(tuple(t[i] for t in draws.tensors)), rates[i] if steps else None
            loss, grads = step_layers(trained, take(read, i), take(own, i), take(on, i), drawn, 1.0, part)
            torch._foreach_copy_([losses[i], *(slopes[n][i] for n in grads)], [loss, *grads.values()])
            for name in slopes.keys() - grads.keys():
                slopes[name][i].zero_()

        streams.each(len(on.weight), one)
        if not steps:
            return [losses, *slopes.values()]
        if slopes:
            torch._foreach_sub_([params[name] for name in slopes], list(slopes.values()))
        return [losses]

    return step


def _changes_examples(objective: Objective) -> bool:
    """Whether the objective's training loss is `losses_of_changed` of the examples that `changed` returns.

    That is known only if `changed` and `training_losses` are defined in the same class, not overridden or wrapped.
    """
    defining = next((kind for kind in type(objective).__mro__ if "training_losses" in vars(kind)), object)
    return "changed" in vars(defining)
