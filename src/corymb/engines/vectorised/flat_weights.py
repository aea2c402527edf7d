"""The weights of a recurrent layer in one piece of memory, as cuDNN needs them.

Otherwise, torch copies them in every forward and backward pass, at a third of the cost of a small layer. A module keeps
them together (`flatten_parameters`); in a client's model taken from a stack, each is stored separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.backends.cudnn.rnn import get_cudnn_mode

from corymb.models.recurrent import are_packed
from corymb.trees import Params

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


class Recurrence(NamedTuple):
    """A recurrent layer, or several in a row: the names of its weights, in torch's order, and its form."""

    kind: str
    weights: tuple[str, ...]
    biased: bool
    layers: int
    both_ways: bool


def recurrence(kind: str, args: Sequence[Any], names: Mapping[int, str]) -> Recurrence | None:
    """The layer for which one of torch's functions was called; None if the id of a weight has no name in `names`."""
    if len(args) != 9:
        return None
    weights, biased, layers, _, _, both_ways = args[3:9] if are_packed(args) else args[2:8]
    if not all(id(weight) in names for weight in weights):
        return None
    return Recurrence(kind, tuple(names[id(weight)] for weight in weights), biased, layers, both_ways)


def flattened(params: Params, recurrences: Iterable[Recurrence]) -> Params:
    """Copies of these layers' weights, each layer's in one piece of memory, for the layers that cuDNN supports."""
    found: dict[str, Tensor] = {}
    for one in recurrences:
        weights = [params[name].view_as(params[name]) for name in one.weights]  # which are moved, not those of `params`
        if found.keys().isdisjoint(one.weights) and all(map(torch.backends.cudnn.is_acceptable, weights)):
            _flatten(one, weights)
            found |= zip(one.weights, weights, strict=True)
    return found


def _flatten(one: Recurrence, weights: list[Tensor]) -> None:
    """Move these weights into one piece of memory."""
    each = len(weights) // (one.layers * (2 if one.both_ways else 1))
    across = weights[1]
    hidden = across.shape[0] // GATES[one.kind]
    projected = across.shape[1] if each > (4 if one.biased else 2) else 0
    mode = get_cudnn_mode(one.kind.upper())
    form = (weights[0].shape[1], mode, hidden, projected, one.layers, False, one.both_ways)
    torch._cudnn_rnn_flatten_weight(weights, each, *form)
