"""LSTM layers as products that vmap can batch: torch's own have no rule for a stack of clients.

The products with the inputs of all time steps are one, and each time step has one more: for a stack of clients they are
batched products. The numbers are those of `torch.nn.LSTM`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Cells(TorchFunctionMode):
    """Takes every LSTM layer apart into its cells; other operations go through.

    Without cuDNN meanwhile: for it, `torch.nn.LSTM` looks where its weights are in memory, which a stack does not say.
    """

    def __enter__(self) -> Cells:
        self.before = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = False
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.backends.cudnn.enabled = self.before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "lstm" and len(args) == 9 and not kwargs:
            return lstm(*args)
        return func(*args, **(kwargs or {}))


def lstm(
    x: Tensor,
    state: Any,
    weights: Any,
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs of all time steps, and the last hidden and cell states: the arguments of torch's own."""
    if not isinstance(state, (tuple, list)) or len(state) != 2 or bidirectional or (dropout and train):
        raise NotImplementedError("packed sequences, both directions at once and dropout between layers have no cells")
    each = 4 if has_biases else 2
    if len(weights) != each * layers:
        raise NotImplementedError("an LSTM with projections has no cells")
    inputs = list((x.transpose(0, 1) if batch_first else x).unbind(0))  # time steps, of b i each
    hidden, memory = [], []
    for layer in range(layers):
        own = weights[each * layer : each * (layer + 1)]
        inputs, h, c = _layer(torch.stack(inputs), state[0][layer], state[1][layer], own)
        hidden.append(h)
        memory.append(c)
    out = torch.stack(inputs, 1 if batch_first else 0)
    return out, torch.stack(hidden), torch.stack(memory)


def _layer(x: Tensor, h: Tensor, c: Tensor, weights: Any) -> tuple[list[Tensor], Tensor, Tensor]:
    into, across, *biases = weights
    given = x @ into.mT  # t b 4h
    for bias in biases:
        given = given + bias
    outputs = []
    for one in given.unbind(0):
        i, f, g, o = (one + h @ across.mT).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return outputs, h, c
