"""Replacements for layers that do not work as they are under vmap over clients: recurrent layers and embeddings."""

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
    """The modes in which a model with these traits must run under vmap over clients."""
    with ExitStack() as stack:
        if traits is not None and traits.celled:
            stack.enter_context(Cells())
        if traits is not None and traits.looks_up:
            stack.enter_context(Lookups())
        yield


class Lookups(TorchFunctionMode):
    """A mode in which an embedding gives NaN for a code out of range, so that the client's reply is rejected.

    Under vmap, torch looks codes up in the concatenated tables of all clients: a code out of range would silently read,
    and train, another client's row.
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
    rows = embedding(torch.where(known, input, 0), weight, *more, **options)
    return torch.where(known.unsqueeze(-1), rows, torch.nan)
