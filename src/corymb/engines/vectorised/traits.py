"""What kind of model an objective has, found by watching it work on one example."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from corymb.core.client import Examples, Objective
from corymb.trees import Params, leaves, nbytes


class Traits(NamedTuple):
    """What the choice of a kernel and the size of a chunk depend on."""

    parameters: int
    parameter_bytes: int
    activation_bytes: int
    """Of one example, everything a forward pass makes."""
    fusable: bool
    """Every parameter is used exactly once, by a linear layer."""
    convolutional: bool
    recurrent: bool
    independent: bool = True
    """An example's loss does not depend on the other examples in its batch."""


def watch(objective: Objective, params: Params, one: Examples) -> Traits:
    """The traits of an objective, from one forward pass."""
    watcher = _Watcher(params)
    with torch.no_grad(), watcher:
        objective.losses(params, one)
    return Traits(
        parameters=sum(p.numel() for p in params.values()),
        parameter_bytes=nbytes(params),
        activation_bytes=watcher.made,
        fusable=all(uses == ["linear"] for uses in watcher.uses.values()),
        convolutional=watcher.convolutional,
        recurrent=watcher.recurrent,
    )


class _Watcher(TorchFunctionMode):
    def __init__(self, params: Params) -> None:
        super().__init__()
        self.uses: dict[int, list[str]] = {id(p): [] for p in params.values()}
        self.made = 0
        self.convolutional = self.recurrent = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__") and not isinstance(out, Tensor):  # p.shape uses no parameter, p.T does
            return out
        self.convolutional |= name.startswith("conv")
        self.recurrent |= name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell")
        for leaf in leaves([list(args), dict(kwargs or {})]):
            if id(leaf) in self.uses:
                self.uses[id(leaf)].append(name)
        self.made += sum(leaf.numel() * leaf.element_size() for leaf in leaves(out) if isinstance(leaf, Tensor))
        return out
