"""Layers that a stack of clients needs in a form of their own: LSTMs, and look-ups of codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.overrides import TorchFunctionMode

from corymb.engines.vectorised.recurrent import Cells
from corymb.engines.vectorised.traits import Traits


@contextmanager
def stacked_layers(traits: Traits | None) -> Iterator[None]:
    """What a model with these traits has to run in, under vmap over clients."""
    with ExitStack() as stack:
        if traits is not None and traits.celled:
            stack.enter_context(Cells())
        if traits is not None and traits.looks_up:
            stack.enter_context(Lookups())
        yield


class Lookups(TorchFunctionMode):
    """A code that an embedding has no row for becomes NaN, so that its client's reply is refused.

    Under vmap torch looks codes up in the tables of all clients, which lie one behind the other: without this, such a
    code would read another client's row, and train it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is embedding:
            return _looked_up(*args, **(kwargs or {}))
        if func is torch.embedding:
            weight, codes, *more = args
            return _looked_up(codes, weight, *more, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _looked_up(input: Tensor, weight: Tensor, *more: Any, **options: Any) -> Tensor:
    known = (input >= 0) & (input < weight.shape[0])
    found = embedding(torch.where(known, input, 0), weight, *more, **options)
    return torch.where(known.unsqueeze(-1), found, torch.nan)
