"""The reference implementation, for one client at a time, which every kernel is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Measure, Pointwise
from corymb.core.objective import Draws, Examples, Objective, has_training_losses
from corymb.keys import Key
from corymb.local.curvature import step_part
from corymb.local.descent import Batches, Descent, Stepper
from corymb.trees import Params, take


class Descended(NamedTuple):
    """A model after descent, and the mean training loss before it, on the examples of the first step."""

    params: Params
    loss: Tensor


def pointwise(what: Pointwise, objective: Objective) -> Callable[[Params, Examples], Tensor]:
    """The function that gives a model's prediction, or its loss, for each example."""
    return objective.losses if what == "losses" else lambda params, on: objective.predict(params, on.x)


def measure_one(what: Measure, objective: Objective, models: Params, on: Examples) -> Tensor:
    """The mean loss or score of each of k models on one client's examples: k."""
    per_example: Callable[[Params, Examples], Tensor] = getattr(objective, what)
    k = next(iter(models.values())).shape[0]
    return torch.stack([_mean(per_example(take(models, j), on), on.weight) for j in range(k)])


def training_losses(objective: Objective, params: Params, on: Examples, draws: Draws) -> Tensor:
    """The loss of each example that a training step minimises: with dropout and the like, if the objective has any."""
    if has_training_losses(objective):
        return objective.training_losses(params, on, draws)
    return objective.losses(params, on)


def gradient_one(objective: Objective, params: Params, on: Examples, draws: Draws) -> Params:
    """The gradient of the mean training loss on one client's examples."""
    return gradient_and_loss(objective, params, on, draws)[0]


def gradient_and_loss(objective: Objective, params: Params, on: Examples, draws: Draws) -> tuple[Params, Tensor]:
    """The gradient of the mean training loss on one client's examples, and that loss."""
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in params.values()]
        mean = _mean(training_losses(objective, as_params(params, leaves), on, draws), on.weight)
        grads = torch.autograd.grad(mean, leaves, allow_unused=True, materialize_grads=True)
    return as_params(params, grads), mean.detach()


def descend_one(
    objective: Objective, params: Params, on: Examples, key: Key, how: Descent, *, own: bool = False
) -> Descended:
    """Descent on one client's examples; with `own`, the model is stepped in place."""
    params = params if own else {name: value.clone() for name, value in params.items()}
    part = None
    if how.safe:
        rows = Batches.sample(how, on.weight, key)
        sample, draws = _rows(on, rows), Draws(key, 0, rows)
        part = step_part(how, lambda at: gradient_one(objective, at, sample, draws), params)
    stepper = Stepper(how, list(params.values()), part)
    before: Tensor | None = None
    for step, (rows, _) in enumerate(Batches(how, on.weight, key)):
        slopes, loss = gradient_and_loss(objective, params, _rows(on, rows), Draws(key, step, rows))
        before = loss if before is None else before
        stepper.step(list(slopes.values()))
        del slopes  # else they would be kept until the next ones are complete
    assert before is not None  # every descent has at least one step
    return Descended(params, before)


def _rows(on: Examples, rows: Tensor | None) -> Examples:
    return on if rows is None else Examples(on.x[rows], on.y[rows], on.weight[rows])


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean of one value for each example; values of another shape would be broadcast against weights."""
    if values.shape != weight.shape:
        raise ValueError(f"The objective gave values of shape {list(values.shape)}, wanted {list(weight.shape)}.")
    return weighted_mean(values, weight)


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Σ w·v / Σ w along the last axis. Values of weight 0 are masked, not multiplied by 0, since 0 × NaN is NaN."""
    total = torch.where(weight > 0, values * weight, 0).sum(-1)
    return total / weight.sum(-1).clamp_min(torch.finfo(weight.dtype).tiny)


def as_params(like: Params, values: Sequence[Tensor]) -> Params:
    """`values` as a dict with the names of `like`, in its order."""
    return dict(zip(like, values, strict=True))
