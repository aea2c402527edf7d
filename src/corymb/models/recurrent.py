"""Recurrent layers whose dropout goes through `torch.nn.functional.dropout`, where it can draw from keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

from corymb.settings import InvalidInput

LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Torch's functions for `nn.LSTM`, `nn.GRU` and `nn.RNN`."""


def are_packed(args: Sequence[Any]) -> bool:
    """Whether these arguments of a recurrent layer of torch's are those for packed sequences."""
    return len(args) == 9 and isinstance(args[3], (tuple, list))  # the weights, which otherwise are the third


def rate_between_layers(args: Sequence[Any]) -> float:
    """The rate at which a function with these arguments would drop the inputs of all layers but the first."""
    count, rate, training = args[5:8] if are_packed(args) else args[4:7]
    return float(rate) if training and count > 1 else 0.0


def one_layer_after_another(function: Callable[..., tuple[Tensor, ...]], *args: Any) -> tuple[Tensor, ...]:
    """The results of torch's function for a stack of layers, called for one layer at a time with dropout between."""
    if are_packed(args):
        kind, rate = function.__name__.partition("_")[0].upper(), rate_between_layers(args)
        raise InvalidInput(
            f"The model's {kind} has dropout {rate} between its layers and gets packed sequences: wanted padded series "
            "of examples, positions and features (in the order of batch_first); give it those, or use dropout='off'."
        )
    out, start, weights, has_biases, layers, rate, training, bidirectional, batch_first = args
    states, ends = start if isinstance(start, (tuple, list)) else (start,), []
    ways, of_layer = (2 if bidirectional else 1), len(weights) // layers
    for layer in range(layers):
        if layer:
            out = _dropped(out, rate, batch_first=batch_first)
        own = weights[layer * of_layer : (layer + 1) * of_layer]
        state = tuple(rows[layer * ways : (layer + 1) * ways] for rows in states)
        given = state if len(state) > 1 else state[0]
        out, *end = function(out, given, own, has_biases, 1, 0.0, training, bidirectional, batch_first)
        ends.append(end)
    return out, *(torch.cat(rows) for rows in zip(*ends, strict=True))


def _dropped(x: Tensor, rate: float, *, batch_first: bool) -> Tensor:
    """Dropout with examples on the first axis, as keyed draws need them."""
    return dropout(x, rate) if batch_first else dropout(x.transpose(0, 1), rate).transpose(0, 1)
