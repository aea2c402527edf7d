"""Evaluates models on blocks of examples, so that memory use is bounded however many examples clients have."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from corymb.core.client import Examples
from corymb.engines.vectorised.traits import Traits

CPU_PASS_BYTES, GPU_PASS_BYTES = 2**28, 2**32
"""Bytes of activations in one pass; a GPU needs more at once to be busy."""
MIN_PASS_ROWS = 16
"""The least number of rows per client in a pass."""
MAX_SIZE_RATIO = 1.5
"""The largest ratio of the longest to the shortest client in a pass, or in a chunk."""
LSTM_FACTOR = 8
"""Memory for an LSTM's four gates, for all time steps and in two layouts, relative to that for its states."""
MAX_PASS_SHRINKAGE = 64
"""To avoid padding, a pass is not made smaller than one `MAX_PASS_SHRINKAGE`-th of the largest."""
CACHE_BYTES, MIN_PRODUCT_ROWS = 2**21, 1000
"""Bytes of activations that stay in a core's caches from layer to layer; rows from which a product is efficient."""


def passes(traits: Traits, on: Examples, device: str) -> list[slice] | None:
    """The slices of rows to evaluate one after another; None if all rows fit into one pass.

    On a GPU, clients of very different sizes share a chunk, which makes training faster, so a single pass might be
    mostly padding. A pass there also ends at `MAX_SIZE_RATIO` times the length of the shortest client that has rows in
    it. If examples depend on each other, there is always one pass.
    """
    if not traits.independent:
        return None
    clients, longest = on.weight.shape
    budget, each = (CPU_PASS_BYTES, 1) if device == "cpu" else (GPU_PASS_BYTES, LSTM_FACTOR if traits.recurrent else 1)
    most = max(MIN_PASS_ROWS, budget // max(1, clients * each * traits.activation_bytes))
    ends = (
        [longest]
        if device == "cpu"
        else _even_ends(sorted(used_rows(on).tolist()), longest, most // MAX_PASS_SHRINKAGE)
    )
    slices, start = [], 0
    for end in ends:
        slices += [slice(at, min(end, at + most)) for at in range(start, end, most)]
        start = end
    return slices if len(slices) > 1 else None


def _even_ends(ascending: list[int], longest: int, least: int) -> list[int]:
    """Rows at which passes end, so that each client is padded to at most `MAX_SIZE_RATIO` times its length.

    `ascending` has the clients' lengths in ascending order. Passes have at least `least` rows, even if that pads more.
    """
    ends, end = [], 0
    while end < longest:
        following = bisect_right(ascending, end)
        shortest = ascending[following] if following < len(ascending) else longest
        end = min(longest, max(int(MAX_SIZE_RATIO * shortest), end + least, end + 1))
        ends.append(end)
    return ends


def rows_in_cache(traits: Traits, threads: int) -> int:
    """How many examples to evaluate at once on a CPU: with more, activations leave the caches between layers.

    Measured: four perceptrons on 60,000 examples take a fifth longer 20,000 at a time than 2,000 at a time.
    """
    return threads * max(MIN_PRODUCT_ROWS, CACHE_BYTES // max(1, traits.activation_bytes))


def mean_of_blocks(measure: Callable[[Examples, Tensor], Tensor], on: Examples, rows: Sequence[slice]) -> Tensor:
    """The weighted mean of a measure over all examples, n k, combined from blocks of rows.

    `measure` gets a block and the indices of the clients that have rows in it.
    """
    total = torch.zeros(())
    for start, clients, block in _blocks(on, rows):
        weight = block.weight.sum(1, keepdim=True)
        share = torch.where(weight > 0, measure(block, clients) * weight, 0)
        total = total.index_add(0, clients, share) if start else share
    return total / on.weight.sum(1, keepdim=True).clamp_min(torch.finfo(on.weight.dtype).tiny)


def rows_of_blocks(predict: Callable[[Examples, Tensor], Tensor], on: Examples, rows: Sequence[slice]) -> Tensor:
    """The prediction for each example, n m ..., computed in blocks; zeros where a client has no rows in a block."""
    predictions: list[Tensor] = []
    for _, clients, block in _blocks(on, rows):
        part = predict(block, clients)
        zeros = part.new_zeros(len(on.weight), *part.shape[1:])
        predictions.append(zeros.index_copy(0, clients, part))
    return torch.cat(predictions, dim=1)


def _blocks(on: Examples, rows: Sequence[slice]) -> Iterator[tuple[int, Tensor, Examples]]:
    """For each block its first row, the indices of clients with rows in it (all, in the first), and their examples."""
    lengths = used_rows(on).clamp_min(1)
    for block in rows:
        clients = (lengths > block.start).nonzero().flatten()
        yield block.start, clients, Examples(*(t[clients, block] for t in on))


def used_rows(on: Examples) -> Tensor:
    """Each client's number of rows up to its last example; all later rows are padding."""
    places = torch.arange(1, on.weight.shape[1] + 1, device=on.weight.device)
    return torch.where(on.weight > 0, places, 0).amax(1)
