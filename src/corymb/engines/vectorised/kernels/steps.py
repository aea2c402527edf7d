"""One step of all clients of a stack: as it is written, replayed from a tape, or played by a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from corymb.choices import KernelName
from corymb.core.client import Examples, Objective
from corymb.core.objective import Draws
from corymb.engines.vectorised.fused import fused_step
from corymb.engines.vectorised.graphs import Graphs, Player, StepFunction
from corymb.engines.vectorised.graphs.shared_start import from_one_model
from corymb.engines.vectorised.graphs.variants import at_once, by_streams
from corymb.engines.vectorised.single import grouped
from corymb.engines.vectorised.span import Span
from corymb.engines.vectorised.stacked import stacked_layers
from corymb.engines.vectorised.tape import Tapes
from corymb.engines.vectorised.traits import Traits
from corymb.local.reference import as_params, training_losses, weighted_mean
from corymb.trees import Params, align_leading

MOST_ON_STREAMS = 64
"""Stepping clients one by one on CUDA streams is tried for at most this many clients."""


def gradients(
    objective: Objective, params: Params, on: Examples, draws: Draws, *, traits: Traits | None = None
) -> tuple[Params, Tensor]:
    """Every client's gradient and mean training loss; `traits` select the layers made for stacks of clients."""

    def mean_loss(one: Params, examples: Examples, drawn: tuple[Tensor, ...]) -> Tensor:
        with stacked_layers(traits):
            values = training_losses(objective, one, examples, draws.of(drawn))
        return weighted_mean(values, examples.weight)

    # The gradient of the sum over clients: a vmap of `torch.func.grad` gives the same, and imports torch's compiler.
    with torch.enable_grad():
        stacked = {name: value.detach().requires_grad_() for name, value in params.items()}
        losses = vmap(mean_loss)(stacked, on, draws.tensors)
        ends = list(stacked.values())
        slopes = torch.autograd.grad(losses.sum(), ends, allow_unused=True, materialize_grads=True)
    return as_params(params, slopes), losses.detach()


@dataclass(frozen=True)
class Steps:
    """Takes the steps of stacked clients, with the tapes and graphs of earlier ones."""

    traits: Traits
    device: str
    mixed: bool
    tapes: Tapes
    graphs: Graphs

    @property
    def uses_graphs(self) -> bool:
        """Whether steps are captured as CUDA graphs."""
        return self.device == "cuda"

    @property
    def uses_tapes(self) -> bool:
        """Whether steps are replayed: not on a GPU, where bits vary, nor with autocast, which caches its casts."""
        return self.device == "cpu" and not self.mixed

    def fused(
        self,
        objective: Objective,
        params: Params,
        batch: Examples,
        draws: Draws,
        lr: float,
        part: Tensor | None,
        span: Span | None,
        *,
        losses_wanted: bool,
    ) -> Tensor:
        """A fused step; returns the losses before it if `losses_wanted`."""

        def step(inputs: Sequence[Tensor]) -> tuple[Tensor]:
            own, on, drawn, portion = _grouped(inputs, params, draws, part)
            return (fused_step(objective, own, on, drawn, lr, portion, span),)

        if not self.uses_tapes:
            return fused_step(objective, params, batch, draws, lr, part, span)
        draws = self.tapes.prepare(objective, draws)
        inputs = [*params.values(), *batch, *draws.tensors, *(() if part is None else (part,))]
        threads = str(torch.get_num_threads())  # which products depend on (`products`)
        of = ("fused", objective, lr, threads, part is None, draws.rows is None, draws.step_key is None)
        found = self.tapes.run(of, step, inputs, draws.step, outputs=losses_wanted)
        self.tapes.note(objective, draws)
        return next(iter(found), torch.empty(0))

    def slopes(
        self, objective: Objective, params: Params, batch: Examples, draws: Draws
    ) -> tuple[list[Tensor], Tensor]:
        """Every client's gradient, and the losses before the step."""

        def step(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            own, on, drawn, _ = _grouped(inputs, params, draws, None)
            found, loss = gradients(objective, own, on, drawn, traits=self.traits)
            return *found.values(), loss

        if not self.uses_tapes:
            *found, loss = step([*params.values(), *batch, *draws.tensors])
            return found, loss
        draws = self.tapes.prepare(objective, draws)
        of = ("slopes", objective, draws.rows is None, draws.step_key is None)
        *found, loss = self.tapes.run(of, step, [*params.values(), *batch, *draws.tensors], draws.step)
        self.tapes.note(objective, draws)
        return found, loss

    def player(
        self,
        of: tuple[Objective, KernelName, bool],
        params: Params,
        batch: Examples,
        draws: Draws,
        rates: Tensor,
        span: Span | None,
    ) -> Player | None:
        """The captured step for tensors like these, loaded with these models; None if it is not worth capturing yet."""
        objective, name, steps = of

        def variants() -> dict[str, StepFunction]:
            if name == "fused":
                return {"vmap": at_once(objective, None, span, steps=True)}
            functions = {"vmap": at_once(objective, self.traits, steps=steps)}
            if len(batch.weight) <= MOST_ON_STREAMS and not self.traits.recurrent:
                functions["streams"] = by_streams(objective, batch.weight.device, self.traits, steps=steps)
            return functions

        def plain(own: Params, on: Examples, drawn: Draws, rated: Tensor) -> Sequence[Tensor]:
            if name == "fused":
                return [fused_step(objective, own, on, drawn, 1.0, rated, span)]
            slopes, loss = gradients(objective, own, on, drawn, traits=self.traits)
            if not steps:
                return [loss, *slopes.values()]
            torch._foreach_sub_(list(own.values()), [align_leading(rated, slope) * slope for slope in slopes.values()])
            return [loss]

        apt = span is None and not self.traits.recurrent and not draws.step
        shared = from_one_model(objective, self.traits, steps=steps) if apt else None
        player = self.graphs.find(of, variants, plain, params, batch, draws, rates, shared)
        if player is not None:
            player.begin(params, rates)
        return player


def _grouped(
    inputs: Sequence[Tensor], like: Params, draws: Draws, part: Tensor | None
) -> tuple[Params, Examples, Draws, Tensor | None]:
    """Flat inputs regrouped: a stack of models, their examples, their draws, and factors of their step sizes."""
    if part is None:
        return *grouped(inputs, like, draws), None
    return *grouped(inputs[:-1], like, draws), inputs[-1]
