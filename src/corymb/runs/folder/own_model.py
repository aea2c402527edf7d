"""Checks that a user-defined model given for a saved run is the model of that run.

A run folder does not contain the model's code. Its parameters must have the run's names and shapes. Those do not
distinguish one `forward` from another, so a run also records the model's outputs on made-up examples with made-up
parameters, both the same in every process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from corymb.core.objective import Objective
from corymb.data.schema import DataSchema
from corymb.engines.room import torch_quiet, walls
from corymb.keys import fold, integers, root, uniform
from corymb.runs.history import is_number
from corymb.settings import InvalidInput, require
from corymb.trees import Params

ASKED = 4
"""The number of made-up examples."""
ALIKE = 1e-3
"""Outputs that differ by at most this fraction of the largest count as equal up to rounding, as on another CPU."""
NUDGE = 2e-6
"""A relative change of all parameters slightly larger than rounding, which must not change the outputs visibly."""
DRAWN = 65_521
"""Distinct values drawn for a parameter; larger ones repeat them. A prime, so that rows do not start alike."""
KEY = root(0)


def answers_of(objective: Objective, schema: DataSchema) -> list[float]:
    """The model's outputs on made-up examples, summarised as one number per example.

    Empty if they would not identify the model: it rejects the examples (a text model may find no word in them), is
    random, or its outputs are not finite or change visibly by rounding alone, as after a long recurrence.
    """
    with suppress(Exception), torch.no_grad(), torch_quiet(), walls():
        params = _made_up(objective.init(KEY))
        like = next(iter(params.values()))
        examples = _examples(schema)
        examples = examples.to(like) if examples.is_floating_point() else examples.to(like.device)
        nudged = {name: value * (1 + NUDGE) for name, value in params.items()}
        first, again = (_summed(objective.predict(own, examples)) for own in (params, nudged))
        return first if _alike(first, again) else []
    return []


def _examples(schema: DataSchema) -> Tensor:
    """Made-up examples: numbers in the range of standardised features, pixels from 0 to 1, or the codes 0 and 1."""
    key, shape = fold(KEY, "examples"), (ASKED, *schema.features)
    if schema.codes:
        codes = integers(key, 2, shape)
        codes[:, 0] = 1  # 0 often stands for padding, and many models reject text that is all padding
        return codes
    numbers = uniform(key, shape)
    return numbers if schema.picture else 4 * numbers - 2


def _made_up(params: Params) -> Params:
    """Made-up parameters of the same shapes, scaled so that signals neither vanish nor explode (He et al. 2015)."""

    def values(name: str, old: Tensor) -> Tensor:
        inputs, size = max(1, old[:1].numel()) if old.dim() > 1 else 6, old.numel()
        drawn = (2 * uniform(fold(KEY, name), (min(size, DRAWN),)) - 1) * math.sqrt(6 / inputs)
        return drawn.repeat(-(-size // DRAWN))[:size].reshape(old.shape).to(old)

    return {name: values(name, old) for name, old in params.items()}


def _summed(outputs: Tensor) -> list[float]:
    """Summarise each example's outputs as one number: a sum with random weights, so that every output matters."""
    rows = outputs.double().reshape(ASKED, -1).cpu()
    weighted: list[float] = (rows @ uniform(fold(KEY, "outputs"), (rows.shape[1],), torch.float64)).tolist()
    return weighted


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether outputs are equal up to rounding; False if they are not finite."""
    most = ALIKE * max(map(abs, one), default=0.0)
    return len(one) == len(other) and all(abs(a - b) <= most < math.inf for a, b in zip(one, other, strict=True))


def check_answers(given: Sequence[float], recorded: object, name: str) -> None:
    """Reject a model whose outputs differ from the run's, if both are known; earlier versions did not record them."""
    if not isinstance(recorded, list) or not all(map(is_number, recorded)) or not recorded or not given:
        return
    require(
        _alike(recorded, given),
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
