"""Measures over many examples, some of them at a time: what a pass takes of memory does not grow with the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from corymb.core.client import Examples
from corymb.engines.vectorised.traits import Traits

ON_CPU, ON_GPU = 2**28, 2**32  # bytes of one pass; a GPU wants more at once to be busy
LEAST = 16  # examples of a client
CACHED, WORTH = (
    2**21,
    1000,
)  # bytes that stay in a processor's caches from layer to layer; rows that are worth a product


def rows_at_once(traits: Traits, on: Examples, device: str) -> int | None:
    """How many examples of each client go into one pass, if all are too many and examples do not know of each other."""
    if not traits.independent:
        return None
    clients, longest = on.weight.shape
    rows = max(LEAST, (ON_CPU if device == "cpu" else ON_GPU) // max(1, clients * traits.activation_bytes))
    return rows if rows < longest else None


def rows_in_cache(traits: Traits, threads: int) -> int:
    """How many examples pass through a model at once on a CPU: with more, each layer waits for memory.

    Measured: 60,000 examples through four perceptrons take a fifth longer 20,000 at a time than 2,000 at a time.
    """
    return threads * max(WORTH, CACHED // max(1, traits.activation_bytes))


def mean_of_blocks(measure: Callable[[Examples, Tensor], Tensor], on: Examples, rows: int) -> Tensor:
    """The weighted mean of a measure over all examples, n k, from those of blocks of the clients that reach them."""
    total = torch.zeros(())
    for start, who, block in _blocks(on, rows):
        weight = block.weight.sum(1, keepdim=True)
        share = torch.where(weight > 0, measure(block, who) * weight, 0)
        total = total.index_add(0, who, share) if start else share
    return total / on.weight.sum(1, keepdim=True).clamp_min(torch.finfo(on.weight.dtype).tiny)


def rows_of_blocks(predict: Callable[[Examples, Tensor], Tensor], on: Examples, rows: int) -> Tensor:
    """What is said of each example, n m ...; zeros where a client has none in a block."""
    said: list[Tensor] = []
    for _, who, block in _blocks(on, rows):
        part = predict(block, who)
        everybody = part.new_zeros(len(on.weight), *part.shape[1:])
        said.append(everybody.index_copy(0, who, part))
    return torch.cat(said, dim=1)


def _blocks(on: Examples, rows: int) -> Iterator[tuple[int, Tensor, Examples]]:
    """Where a block begins, the clients that reach it (the first: everybody) and their examples there."""
    lengths = reach(on).clamp_min(1)
    for start in range(0, on.weight.shape[1], rows):
        who = (lengths > start).nonzero().flatten()
        yield start, who, Examples(*(t[who, start : start + rows] for t in on))


def reach(on: Examples) -> Tensor:
    """Up to which row each client's examples go; after that there is only padding."""
    places = torch.arange(1, on.weight.shape[1] + 1, device=on.weight.device)
    return torch.where(on.weight > 0, places, 0).amax(1)
