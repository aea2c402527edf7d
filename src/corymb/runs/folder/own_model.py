"""Models of the user's own, which no run folder holds: is one that is given again the run's?

Its parameters must have the run's names and shapes. Those do not tell one `forward` from another, so a run records what
its model answers to made-up examples with made-up parameters, both the same in every process.
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
from corymb.engines.room import isolated, torch_quiet
from corymb.keys import Key, fold, integers, root, uniform
from corymb.objectives import Classification, Regression
from corymb.runs.history import is_number
from corymb.settings import InvalidInput, require
from corymb.trees import Params

ASKED = 4
"""Examples that are made up."""
ALIKE = 1e-3
"""Answers that differ by no more, as a part of the largest, differ by rounding: on another processor, say."""
NUDGE = 2e-6
"""A change of all parameters by a little more than they are rounded: answers must not tell it."""
ROUNDED = 1 + 1e-5
"""What a parameter may exceed the bounds of its distribution by."""
DRAWN = 65_521
"""Values that are drawn for a parameter; larger ones repeat them. A prime, so that no two rows begin alike."""
KEY = root(0)


def answers_of(objective: Objective, schema: DataSchema) -> list[float]:
    """What a model answers to made-up examples: a number for each, which stands for all its outputs.

    Empty where that would say nothing: the model does not take them (one that reads texts may find no word in them),
    draws at random, or its answers are not finite, or such as rounding alone could change after a long recurrence.
    """
    with suppress(Exception), torch.no_grad(), torch_quiet(), isolated():
        params = _made_up(objective.init(KEY))
        examples = _examples_for(params, schema)
        nudged = {name: value * (1 + NUDGE) for name, value in params.items()}
        first, again = (_summed(objective.predict(own, examples)) for own in (params, nudged))
        return first if _alike(first, again) else []
    return []


def ends_in_softmax(objective: Objective, schema: DataSchema) -> bool:
    """Whether a model's outputs for made-up examples are probabilities of classes, where a loss takes them for logits.

    Then the loss takes a softmax of them again: its gradients are small, and no class gets a large probability.
    """
    if not isinstance(objective, Classification):
        return False  # a loss of one's own may want them
    with suppress(Exception), torch.no_grad(), torch_quiet(), isolated():
        params = _made_up(objective.init(KEY))
        outputs = objective.predict(params, _examples_for(params, schema)).double()
        return bool((outputs >= 0).all()) and bool(((outputs.sum(-1) - 1).abs() < ALIKE).all())
    return False


def not_as_drawn(module: object) -> str:
    """A layer whose trained parameters were set by somebody: torch draws none so large; empty where none shows it."""
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
"""Of a model's outputs: they go anywhere, have one sign, or stay within -1 to 1."""
DRAWS, STRETCH = 8, 10.0
"""Parameters that are drawn to see how far outputs go, and how much larger they are than those of `answers_of`."""


def bounds_of(objective: Objective, schema: DataSchema) -> Bounds:
    """Bounds of a model of numbers that ends in a sigmoid, a softplus, an exponential or the like.

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


def _examples_for(params: Params, schema: DataSchema) -> Tensor:
    like, examples = next(iter(params.values())), _examples(schema)
    return examples.to(like) if examples.is_floating_point() else examples.to(like.device)


def _examples(schema: DataSchema) -> Tensor:
    """Numbers as they are after standardising, pixels from 0 to 1, or codes that every model with two of them has."""
    key, shape = fold(KEY, "examples"), (ASKED, *schema.features)
    if schema.codes:
        codes = integers(key, 2, shape)
        codes[:, 0] = 1  # 0 often means that nothing is there, and a text of nothing is refused by many models
        return codes
    numbers = uniform(key, shape)
    return numbers if schema.picture else 4 * numbers - 2


def _made_up(params: Params, key: Key = KEY) -> Params:
    """Parameters of the same shapes, of such sizes that signals neither vanish nor grow (He et al. 2015)."""

    def values(name: str, old: Tensor) -> Tensor:
        inputs, size = max(1, old[:1].numel()) if old.dim() > 1 else 6, old.numel()
        drawn = (2 * uniform(fold(key, name), (min(size, DRAWN),)) - 1) * math.sqrt(6 / inputs)
        return drawn.repeat(-(-size // DRAWN))[:size].reshape(old.shape).to(old)

    return {name: values(name, old) for name, old in params.items()}


def _summed(outputs: Tensor) -> list[float]:
    """Each example's outputs as one number: their sum, weighted so that no two count alike."""
    rows = outputs.double().reshape(ASKED, -1).cpu()
    weighted: list[float] = (rows @ uniform(fold(KEY, "outputs"), (rows.shape[1],), torch.float64)).tolist()
    return weighted


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether answers are the same but for rounding; never where they are not finite."""
    most = ALIKE * max(map(abs, one), default=0.0)
    return len(one) == len(other) and all(abs(a - b) <= most < math.inf for a, b in zip(one, other, strict=True))


def check_answers(given: Sequence[float], recorded: object, name: str) -> None:
    """Refuse a model that answers otherwise than the run's, where both are known: earlier runs recorded nothing."""
    if not isinstance(recorded, list) or not all(map(is_number, recorded)) or not recorded or not given:
        return
    require(
        _alike(recorded, given),
        f"The model is not the run's, which is {name}: with the same parameters it gives other outputs. Give it as it "
        "was when the run was made.",
    )


def check_parameters(made: Params, kept: Params, name: str) -> None:
    """Refuse another model than the run's, as far as its parameters tell."""
    ours, theirs = (
        {name: list(value.shape[lead:]) for name, value in of.items()} for of, lead in ((made, 0), (kept, 1))
    )
    odd = next((name for name in ours if theirs.get(name) != ours[name]), None) or next(
        iter(theirs.keys() - ours), None
    )
    if odd is not None:
        wanted, got = (f"of shape {of[odd]}" if odd in of else "missing" for of in (theirs, ours))
        raise InvalidInput(f"The model is not the run's, which is {name}: {odd!r} is {got}, in the run {wanted}.")
