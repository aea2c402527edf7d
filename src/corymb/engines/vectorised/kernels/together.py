"""Each step of all clients of a stack at once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from corymb.choices import KernelName
from corymb.core.client import Examples, Objective
from corymb.core.objective import Draws
from corymb.engines.vectorised.batches import Step, number_of_steps, some_rows
from corymb.engines.vectorised.kernels.steps import Steps, gradients
from corymb.engines.vectorised.kernels.watch import Watch
from corymb.engines.vectorised.span import Span
from corymb.keys import Key
from corymb.local.curvature import step_part
from corymb.local.descent import Batches, Descent, Stepper
from corymb.trees import Params

LONG_DESCENT = 100
"""A step is captured in the middle of a descent only if at least this many steps are left."""


def descend_together(
    steps: Steps,
    watch: Watch,
    name: KernelName,
    objective: Objective,
    params: Params,
    on: Examples,
    key: Key,
    how: Descent,
    batches: Iterable[Step],
    *,
    own: bool,
) -> tuple[Params, Tensor]:
    """The trained models of all clients and their losses before the first step, by the fused or the foreach kernel.

    `batches` may leave out the first clients once they have finished; the steps of the others go on in their part of
    the stack.
    """
    total, part = number_of_steps(how, on.weight.shape[1]), None
    if how.safe:
        part = _safe_part(steps, objective, params, on, key, how)
    span = Span.of(steps.traits.entry, params, on, how) if name == "fused" else None
    start, own = params, own and all(p.is_contiguous() for p in params.values())
    params = {n: p for n, p in params.items() if span is None or n not in span.entry}
    if span is not None:
        params |= span.begin(start, on)
    lr, of = how.lr, (objective, name, how.plain)
    rates = torch.full_like(on.weight[:, 0], lr) if part is None else lr * part
    if name == "fused" and steps.uses_graphs:  # a graph takes step sizes as an input; the steps before it do so too
        lr, part = 1.0, rates
    before, player, stepper, slopes, whole = torch.empty(0), None, None, list[Tensor](), params
    for taken, (batch, active, draws) in enumerate(batches):
        watch.report(taken / total)
        first = not draws.step
        soon = first or (how.steps or 0) - draws.step >= LONG_DESCENT
        if player is None and soon and steps.uses_graphs:
            player = steps.player(of, params, batch, draws, rates, span)
            params = params if player is None else player.params
            if stepper is not None:
                stepper.params = list(params.values())  # from here on it steps these, with its momentum so far
        if first and player is None and not own:
            params = {**params, **copied({n: params[n] for n in start if n in params})}
        whole = params if first else whole
        if (left := len(batch.weight)) < len(rates):
            params = {n: p[-left:] for n, p in params.items()}
            rates, part = rates[-left:], None if part is None else part[-left:]
            if stepper is not None:
                stepper.keep_last(left)
        if first and name != "fused":
            stepper = Stepper(how, list(params.values()), part, stacked=True)
        if player is not None:
            loss, slopes = player.step(batch, draws)
            loss = loss.clone() if first else loss
        elif stepper is None:
            loss = steps.fused(objective, params, batch, draws, lr, part, span, losses_wanted=first)
        else:
            slopes, loss = steps.slopes(objective, params, batch, draws)
        if player is None and steps.uses_graphs:
            steps.graphs.count(of, params, batch, draws)
        if stepper is not None and slopes:  # fused steps of finished clients are 0: their examples have weight 0
            stepper.step(slopes, active)
        before = loss if first else before
    watch.report(1.0)
    if player is not None:
        whole = {n: p.clone() for n, p in params.items()}
    return (whole if span is None else span.end(whole, start, on, lr, own=own)), before


def _safe_part(steps: Steps, objective: Objective, params: Params, on: Examples, key: Key, how: Descent) -> Tensor:
    """The part of its step size that each client takes, so that no step is too long for its curvature."""
    rows = Batches.sample(how, on.weight, key)
    some, same = on if rows is None else some_rows(on, rows), Draws(key, 0, rows)

    def slopes_at(at: Params) -> Params:
        return gradients(objective, at, some, same, traits=steps.traits)[0]

    return step_part(how, slopes_at, params, clients=len(on.weight))


def copied(params: Params) -> Params:
    """A contiguous copy, which may be written into."""
    return {n: p.clone() if p.is_contiguous() else p.contiguous() for n, p in params.items()}
