"""Measures over many examples, some of them at a time: what a pass takes of memory does not grow with the clients."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from corymb.core.client import Examples
from corymb.engines.vectorised.traits import Traits

ON_CPU, ON_GPU = 2**28, 2**32  # bytes of one pass; a GPU wants more at once to be busy
LEAST = 16  # examples of a client
UNEVEN = 1.5  # the longest client of a pass may be this much longer than the shortest
GATES = 8  # what the four gates of an LSTM take, for all time steps and in two orders, beside its states
MANY = 64  # passes that are as small as such a part of the largest are not worth another
CACHED, WORTH = (
    2**21,
    1000,
)  # bytes that stay in a processor's caches from layer to layer; rows that are worth a product


def passes(traits: Traits, on: Examples, device: str) -> list[slice] | None:
    """The rows that go through a model in one pass each, if all at once would be too many; None if they would not.

    On a GPU clients of unlike sizes stay together for the sake of their training, so that a pass over all rows may be
    mostly padding: there it ends, too, where the clients that still have examples have half as many again as they
    would at their shortest. Examples that know of each other stay together.
    """
    if not traits.independent:
        return None
    clients, longest = on.weight.shape
    room, each = (ON_CPU, 1) if device == "cpu" else (ON_GPU, GATES if traits.celled else 1)
    most = max(LEAST, room // max(1, clients * each * traits.activation_bytes))
    ends = [longest] if device == "cpu" else _even_ends(sorted(reach(on).tolist()), longest, most // MANY)
    found, start = [], 0
    for end in ends:
        found += [slice(at, min(end, at + most)) for at in range(start, end, most)]
        start = end
    return found if len(found) > 1 else None


def _even_ends(rising: list[int], longest: int, least: int) -> list[int]:
    """Where passes end so that nobody's examples are padded to more than half as many again, in steps of `least`."""
    ends, end = [], 0
    while end < longest:
        following = bisect_right(rising, end)
        shortest = rising[following] if following < len(rising) else longest
        end = min(longest, max(int(UNEVEN * shortest), end + least, end + 1))
        ends.append(end)
    return ends


def rows_in_cache(traits: Traits, threads: int) -> int:
    """How many examples pass through a model at once on a CPU: with more, each layer waits for memory.

    Measured: 60,000 examples through four perceptrons take a fifth longer 20,000 at a time than 2,000 at a time.
    """
    return threads * max(WORTH, CACHED // max(1, traits.activation_bytes))


def mean_of_blocks(measure: Callable[[Examples, Tensor], Tensor], on: Examples, rows: Sequence[slice]) -> Tensor:
    """The weighted mean of a measure over all examples, n k, from those of blocks of the clients that reach them."""
    total = torch.zeros(())
    for start, who, block in _blocks(on, rows):
        weight = block.weight.sum(1, keepdim=True)
        share = torch.where(weight > 0, measure(block, who) * weight, 0)
        total = total.index_add(0, who, share) if start else share
    return total / on.weight.sum(1, keepdim=True).clamp_min(torch.finfo(on.weight.dtype).tiny)


def rows_of_blocks(predict: Callable[[Examples, Tensor], Tensor], on: Examples, rows: Sequence[slice]) -> Tensor:
    """What is said of each example, n m ...; zeros where a client has none in a block."""
    said: list[Tensor] = []
    for _, who, block in _blocks(on, rows):
        part = predict(block, who)
        everybody = part.new_zeros(len(on.weight), *part.shape[1:])
        said.append(everybody.index_copy(0, who, part))
    return torch.cat(said, dim=1)


def _blocks(on: Examples, rows: Sequence[slice]) -> Iterator[tuple[int, Tensor, Examples]]:
    """Where a block begins, the clients that reach it (the first: everybody) and their examples there."""
    lengths = reach(on).clamp_min(1)
    for some in rows:
        who = (lengths > some.start).nonzero().flatten()
        yield some.start, who, Examples(*(t[who, some] for t in on))


def reach(on: Examples) -> Tensor:
    """Up to which row each client's examples go; after that there is only padding."""
    places = torch.arange(1, on.weight.shape[1] + 1, device=on.weight.device)
    return torch.where(on.weight > 0, places, 0).amax(1)
