"""The ways to take a step that are captured on a GPU (`graphs`): all clients at once, or one by one on streams.

Where steps are plain, a way takes them itself, by the rate of each client: linear layers in their backward, so that
their gradients are never stored. Else it gives gradients, and an optimiser takes the step.
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
    """All clients by vmap; without `traits` every parameter is a linear layer's."""

    def step(params: Params, on: Examples, draws: Draws, rates: Tensor) -> list[Tensor]:
        if steps:
            return [fused_step(objective, params, on, draws, 1.0, rates, span, traits)]
        assert traits is not None
        return stacked_gradients(objective, params, on, draws, traits)

    return step


def by_streams(
    objective: Objective, device: torch.device, traits: Traits, *, steps: bool, number: int = 4
) -> StepFunction:
    """One client after another, on streams; pictures are changed at random before, all at once."""
    streams = OnStreams(device, number)
    ahead = _changes_examples(objective)
    trained: Any = SimpleNamespace(training_losses=objective.losses_of_changed) if ahead else objective  # type: ignore[attr-defined]

    def step(params: Params, on: Examples, draws: Draws, rates: Tensor) -> list[Tensor]:
        losses = torch.empty_like(on.weight[:, 0])
        own = {name: p for name, p in params.items() if steps and name in traits.layers}
        read = lowered(params, traits)
        slopes = {name: torch.empty_like(p) for name, p in params.items() if name not in own}
        if ahead:  # client by client these are hundreds of tiny operations
            on = vmap(lambda own, drawn: objective.changed(own, draws.of(drawn)))(on, draws.tensors)  # type: ignore[attr-defined]

        def one(i: int) -> None:
            drawn, part = draws.of(tuple(t[i] for t in draws.tensors)), rates[i] if steps else None
            loss, found = step_layers(trained, take(read, i), take(own, i), take(on, i), drawn, 1.0, part)
            torch._foreach_copy_([losses[i], *(slopes[n][i] for n in found)], [loss, *found.values()])
            for name in slopes.keys() - found.keys():
                slopes[name][i].zero_()

        streams.each(len(on.weight), one)
        if not steps:
            return [losses, *slopes.values()]
        if slopes:
            torch._foreach_sub_([params[name] for name in slopes], list(slopes.values()))
        return [losses]

    return step


def _changes_examples(objective: Objective) -> bool:
    """Whether it trains by `losses_of_changed` on what `changed` gives; one that has or wraps other losses does not."""
    defining = next((kind for kind in type(objective).__mro__ if "training_losses" in vars(kind)), object)
    return "changed" in vars(defining)
