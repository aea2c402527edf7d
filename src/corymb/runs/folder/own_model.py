"""Checks that a user-defined model given for a saved run is the model of that run.

A run folder does not contain the model's code. Its parameters must have the run's names and shapes. Those do not
distinguish one `forward` from another, so a run also records the model's outputs on made-up examples with made-up
parameters, both the same in every process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor, nn

from corymb.core.objective import Objective
from corymb.data.schema import DataSchema
from corymb.engines.isolation import isolated, torch_quiet
from corymb.keys import Key, fold, integers, root, uniform
from corymb.objectives import Classification, Regression
from corymb.runs.history import is_number
from corymb.settings import InvalidInput, require
from corymb.trees import Params

EXAMPLES = 4
"""The number of made-up examples."""
TOLERANCE = 1e-3
"""Outputs that differ by at most this fraction of the largest count as equal up to rounding, as on another CPU."""
NUDGE = 2e-6
"""A relative change of all parameters slightly larger than rounding, which must not change the outputs visibly."""
ROUNDED = 1 + 1e-5
"""The factor by which a parameter may exceed the bounds of its distribution, due to rounding."""
DRAWN = 65_521
"""Distinct values drawn for a parameter; larger ones repeat them. A prime, so that rows do not start alike."""
KEY = root(0)


def answers_of(objective: Objective, schema: DataSchema) -> list[float]:
    """The model's outputs on made-up examples, summarised as one number per example.

    Empty if they would not identify the model: it rejects the examples (a text model may find no word in them), is
    random, or its outputs are not finite or change visibly by rounding alone, as after a long recurrence.
    """
    with suppress(Exception), torch.no_grad(), torch_quiet(), isolated():
        params = _made_up(objective.init(KEY))
        examples = _examples_for(params, schema)
        nudged = {name: value * (1 + NUDGE) for name, value in params.items()}
        first, again = (_summed(objective.predict(own, examples)) for own in (params, nudged))
        return first if _nearly_equal(first, again) else []
    return []


def ends_in_softmax(objective: Objective, schema: DataSchema) -> bool:
    """Whether a model's outputs for made-up examples are probabilities of classes, where a loss takes them for logits.

    Then the loss takes a softmax of them again: its gradients are small, and no class gets a large probability.
    """
    if not isinstance(objective, Classification):
        return False  # a user-defined loss may expect them
    with suppress(Exception), torch.no_grad(), torch_quiet(), isolated():
        params = _made_up(objective.init(KEY))
        outputs = objective.predict(params, _examples_for(params, schema)).double()
        return bool((outputs >= 0).all()) and bool(((outputs.sum(-1) - 1).abs() < TOLERANCE).all())
    return False


def not_as_drawn(module: object) -> str:
    """A layer whose parameters were set by the user, since torch draws none so large; empty if there is none."""
    if not isinstance(module, nn.Module):
        return ""
    for name, layer in module.named_modules():
        for parameter in (value for value in layer.parameters(recurse=False) if value.requires_grad):
            if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
                bound = layer.weight[0].numel() ** -0.5
            elif isinstance(layer, nn.RNNBase):
                bound = layer.hidden_size**-0.5
            elif isinstance(layer, (nn.LayerNorm, nn.GroupNorm)):
                bound = 1.0
            else:
                continue
            if bool((parameter.detach().abs() > bound * ROUNDED).any()):
                return f"layer {name!r}" if name else "its layer"
    return ""


Bounds = Literal["none", "sign", "one"]
"""The bounds of a model's outputs: none, a single sign, or within -1 to 1."""
DRAWS, STRETCH = 8, 10.0
"""The number of parameter draws to find the bounds of outputs, and their scale relative to those of `answers_of`."""


def bounds_of(objective: Objective, schema: DataSchema) -> Bounds:
    """The bounds of a regression model that ends in a sigmoid, a softplus, an exponential or the like.

    It cannot learn targets that are standardised: those are on both sides of 0, and beyond 1.
    """
    if not isinstance(objective, Regression):
        return "none"
    with suppress(Exception), torch.no_grad(), torch_quiet(), isolated():
        began, found = objective.init(KEY), []
        for draw in range(DRAWS):
            params = {name: STRETCH * value for name, value in _made_up(began, fold(KEY, f"draw {draw}")).items()}
            found.append(objective.predict(params, _examples_for(params, schema)).double())
        outputs = torch.cat(found)
        if bool((outputs.abs() <= 1).all()):
            return "one"
        return "sign" if bool((outputs >= 0).all() or (outputs <= 0).all()) else "none"
    return "none"


OUT_OF_REACH = 30.0
"""Usual steps do not reach targets this many times as far from a fresh model's outputs as those vary (or as 1)."""


def out_of_reach(objective: Objective, schema: DataSchema, mean: float, deviation: float) -> bool:
    """Whether targets of this mean and standard deviation are far from what a fresh model predicts."""
    with suppress(Exception), torch.no_grad(), torch_quiet(), isolated():
        params = objective.init(KEY)
        outputs = objective.predict(params, _examples_for(params, schema)).double().flatten()
        far = math.hypot(mean - float(outputs.mean()), deviation)
        return far > OUT_OF_REACH * max(1.0, float(outputs.std(correction=0)))
    return False


def _examples_for(params: Params, schema: DataSchema) -> Tensor:
    like, examples = next(iter(params.values())), _examples(schema)
    return examples.to(like) if examples.is_floating_point() else examples.to(like.device)


def _examples(schema: DataSchema) -> Tensor:
    """Made-up examples: numbers in the range of standardised features, pixels from 0 to 1, or the codes 0 and 1."""
    key, shape = fold(KEY, "examples"), (EXAMPLES, *schema.features)
    if schema.codes:
        codes = integers(key, 2, shape)
        codes[:, 0] = 1  # 0 often stands for padding, and many models reject text that is all padding
        return codes
    numbers = uniform(key, shape)
    return numbers if schema.picture else 4 * numbers - 2


def _made_up(params: Params, key: Key = KEY) -> Params:
    """Made-up parameters of the same shapes, scaled so that signals neither vanish nor explode (He et al. 2015)."""

    def values(name: str, old: Tensor) -> Tensor:
        inputs, size = max(1, old[:1].numel()) if old.dim() > 1 else 6, old.numel()
        drawn = (2 * uniform(fold(key, name), (min(size, DRAWN),)) - 1) * math.sqrt(6 / inputs)
        return drawn.repeat(-(-size // DRAWN))[:size].reshape(old.shape).to(old)

    return {name: values(name, old) for name, old in params.items()}


def _summed(outputs: Tensor) -> list[float]:
    """Summarise each example's outputs as one number: a sum with random weights, so that every output matters."""
    rows = outputs.double().reshape(EXAMPLES, -1).cpu()
    weighted: list[float] = (rows @ uniform(fold(KEY, "outputs"), (rows.shape[1],), torch.float64)).tolist()
    return weighted


def _nearly_equal(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether outputs are equal up to rounding; False if they are not finite."""
    most = TOLERANCE * max(map(abs, one), default=0.0)
    return len(one) == len(other) and all(abs(a - b) <= most < math.inf for a, b in zip(one, other, strict=True))


def check_answers(given: Sequence[float], recorded: object, name: str) -> None:
    """Reject a model whose outputs differ from the run's, if both are known; earlier versions did not record them."""
    if not isinstance(recorded, list) or not all(map(is_number, recorded)) or not recorded or not given:
        return
    require(
        _nearly_equal(recorded, given),
        f"The model is not the run's ({name}): with the same parameters it gives different outputs. Give the model as "
        "it was when the run was made.",
    )


def check_parameters(made: Params, kept: Params, name: str) -> None:
    """Reject a model whose parameters differ from the run's in name or shape."""
    ours, theirs = (
        {name: list(value.shape[lead:]) for name, value in of.items()} for of, lead in ((made, 0), (kept, 1))
    )
    odd = next((name for name in ours if theirs.get(name) != ours[name]), None) or next(
        iter(theirs.keys() - ours), None
    )
    if odd is not None:
        wanted, got = (f"of shape {of[odd]}" if odd in of else "missing" for of in (theirs, ours))
        raise InvalidInput(f"The model is not the run's ({name}): {odd!r} is {got}, but in the run it is {wanted}.")
