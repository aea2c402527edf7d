"""Layers that a stack of clients needs in a form of their own: LSTMs, and look-ups of codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
        if traits is not None and traits.attends:
            stack.enter_context(_unfused_attention())
        yield


def _unfused_attention() -> AbstractContextManager[None]:
    """Attention by matrix products: its fused kernels have no vmap rule, so that torch would loop over the clients."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    unfused: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return unfused


class Lookups(TorchFunctionMode):
    """Embeddings under vmap, where torch looks codes up in the tables of all clients laid end to end.

    A code that a table has no row for would read, and train, another client's row: here it becomes NaN, so that its
    client's reply is refused. `padding_idx` would be the row of that number in the first client's table only, and every
    other client would train its padding: here no gradient passes where the code is the padding.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is embedding:
            return _looked_up(*args, **(kwargs or {}))
        if func is torch.embedding:
            return _looked_up_raw(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _looked_up(input: Tensor, weight: Tensor, padding_idx: int | None = None, *more: Any, **options: Any) -> Tensor:
    known = (input >= 0) & (input < weight.shape[0])
    found = embedding(torch.where(known, input, 0), weight, None, *more, **options)
    found = torch.where(known.unsqueeze(-1), found, torch.nan)
    if padding_idx is None:
        return found
    return torch.where((input == padding_idx % weight.shape[0]).unsqueeze(-1), found.detach(), found)


def _looked_up_raw(weight: Tensor, indices: Tensor, padding_idx: int = -1, *more: Any, **options: Any) -> Tensor:
    """`torch.embedding`, for which -1 means no padding."""
    return _looked_up(indices, weight, None if padding_idx == -1 else padding_idx, None, 2.0, *more, **options)
