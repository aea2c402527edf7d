"""Recurrent layers whose dropout goes through `torch.nn.functional.dropout`, where it can draw from keys."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import _VF, Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

from corymb.settings import InvalidInput


def drop_between_layers(stack: nn.RNNBase, rate: float) -> None:
    """Let an LSTM, a GRU or an RNN of several layers drop the inputs of all layers but the first by `dropout`."""
    stack.forward = partial(_forward, stack, rate)


def _forward(
    stack: nn.RNNBase, rate: float, input: Tensor, hx: Tensor | tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Any]:
    """The forward pass of torch's own layers, one layer at a time: the same arguments and results."""
    if isinstance(input, PackedSequence) or input.dim() != 3:
        got = "packed sequences" if isinstance(input, PackedSequence) else f"an input of shape {list(input.shape)}"
        raise InvalidInput(
            f"The model's {stack.mode} has dropout {rate} between its layers and gets {got}: wanted padded series of "
            "examples, positions and features (in the order of batch_first); give it those, or use dropout='off'."
        )
    ways, ends, out = (2 if stack.bidirectional else 1), [], input
    states = _initial(stack, input, ways) if hx is None else hx if isinstance(hx, tuple) else (hx,)
    for number in range(stack.num_layers):
        if number:
            out = _dropped(out, rate, batch_first=stack.batch_first)
        own = slice(number * ways, (number + 1) * ways)
        weights = [stack._parameters[name] for names in stack._all_weights[own] for name in names]
        state = tuple(rows[own] for rows in states)
        form = (stack.bias, 1, 0.0, stack.training, stack.bidirectional, stack.batch_first)
        layer = getattr(_VF, stack.mode.lower())
        out, *end = layer(out, state if len(state) > 1 else state[0], weights, *form)
        ends.append(end)
    last = tuple(torch.cat(rows) for rows in zip(*ends, strict=True))
    return out, last if len(last) > 1 else last[0]


def _initial(stack: nn.RNNBase, input: Tensor, ways: int) -> tuple[Tensor, ...]:
    """States of zeros, as torch's layers begin with."""
    m = input.shape[0 if stack.batch_first else 1]
    sizes = [stack.proj_size or stack.hidden_size, *([stack.hidden_size] if stack.mode == "LSTM" else [])]
    zeros = partial(torch.zeros, dtype=input.dtype, device=input.device)
    return tuple(zeros(stack.num_layers * ways, m, size) for size in sizes)


def _dropped(x: Tensor, rate: float, *, batch_first: bool) -> Tensor:
    """Dropout with examples on the first axis, as keyed draws need them."""
    return dropout(x, rate) if batch_first else dropout(x.transpose(0, 1), rate).transpose(0, 1)
