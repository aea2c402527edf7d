"""Replacements for layers that fail or are slow under vmap over clients: recurrent layers, embeddings, attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
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
        if traits is not None and traits.recurrent:
            stack.enter_context(Cells(free_padding=traits.free_padding))
        if traits is not None and traits.looks_up:
            stack.enter_context(Lookups())
        if traits is not None and traits.attends:
            stack.enter_context(_unfused_attention)
        yield


class _UnfusedAttention:
    """Computes attention by matrix products: its fused kernels have no vmap rule, so torch would loop over clients.

    Torch's switches are global: with runs on several threads, the first to enter sets them and the last to leave
    restores them. Otherwise a run might restore the switches of another, which would stay that way for the process.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._switches = Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with self._lock:
            if not self._inside:
                self._switches.enter_context(sdpa_kernel(SDPBackend.MATH))
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._switches.close()


_unfused_attention = _UnfusedAttention()


class Lookups(TorchFunctionMode):
    """A mode that corrects embeddings under vmap, where torch looks codes up in the concatenated tables of all clients.

    There, an out-of-range code would silently read, and train, another client's row: here it gives NaN, so that the
    client's reply is rejected. `padding_idx` would apply to the first client's table only, and the other clients would
    train their padding: here the padding code gets no gradient.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is embedding:
            return _looked_up(*args, **(kwargs or {}))
        if func is torch.embedding:
            return _looked_up_raw(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _looked_up(input: Tensor, weight: Tensor, padding_idx: int | None = None, *more: Any, **options: Any) -> Tensor:
    known = (input >= 0) & (input < weight.shape[0])
    rows = embedding(torch.where(known, input, 0), weight, None, *more, **options)
    rows = torch.where(known.unsqueeze(-1), rows, torch.nan)
    if padding_idx is None:
        return rows
    return torch.where((input == padding_idx % weight.shape[0]).unsqueeze(-1), rows.detach(), rows)


def _looked_up_raw(weight: Tensor, indices: Tensor, padding_idx: int = -1, *more: Any, **options: Any) -> Tensor:
    """`torch.embedding`, for which -1 means no padding."""
    return _looked_up(indices, weight, None if padding_idx == -1 else padding_idx, None, 2.0, *more, **options)
