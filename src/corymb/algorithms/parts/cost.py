"""What comparing every client with every other costs, said before it begins."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import NamedTuple

from corymb.core.federation import Federation
from corymb.keys import root
from corymb.local.operations import one_example, operations
from corymb.settings import require
from corymb.trees import Params, nbytes

log = logging.getLogger(__name__)
FLOPS = {"cpu": 5e9, "cuda": 1e12}
"""Multiplications and additions in a second: what one core of a laptop does with small models, and what a GPU does."""
BUSY = {"cpu": 4e10, "cuda": 2e13}
"""The same where a layer is used at many places of an example, by convolutions and recurrent layers."""
COPIES = 3
"""Matrices of all pairs that are held at once."""
LONGEST = 3600.0
"""Seconds."""
WORTH_SAYING = 60.0
"""Seconds from which on the cost is said."""
MEMORY = 0.8
"""The part of the machine's memory that may be taken."""


class Cost(NamedTuple):
    """An estimate, within a factor of a few."""

    pairs: int
    seconds: float
    bytes: int

    def __str__(self) -> str:
        return f"{self.pairs:,} pairs: about {_time(self.seconds)} and {self.bytes / 1e9:.2g} GB"


def pairwise_cost(fed: Federation, *, losses: bool, sample: int | None = None) -> Cost:
    """Of distances between all clients' models: by everybody's losses under all models, or by parameters alone.

    With a `sample`, of all clients to those and back.
    """
    n = len(fed.clients)
    start = fed.objective.init(root(0))
    model, device = nbytes(start), next(iter(start.values())).device.type
    examples = float(fed.clients.sizes.double().mean()) if n else 0.0
    each = 2 * sum(value.numel() for value in start.values()) / FLOPS.get(device, FLOPS["cpu"])
    if losses:
        each = examples * max(each, _operations(fed, start) / BUSY.get(device, BUSY["cpu"]))
    pairs = n * n if sample is None or sample >= n else 2 * n * sample
    return Cost(pairs, pairs * each, COPIES * 8 * pairs + 2 * n * model)


def _operations(fed: Federation, model: Params) -> int:
    """What one example takes: counted where such an example can be made, 0 where it cannot."""
    with suppress(Exception):  # a model of one's own may want examples that no schema describes
        return operations(fed.objective, model, one_example(fed.schema, model))
    return 0


def say_or_refuse(cost: Cost, what: str, *, asked: bool) -> None:
    """Say what a large comparison costs; one that takes more than an hour, or than memory, must have been asked for."""
    if cost.seconds < WORTH_SAYING and cost.bytes < MEMORY * _memory() / 8:
        return
    too_much = cost.seconds > LONGEST or cost.bytes > MEMORY * _memory()
    require(
        asked or not too_much,
        f"{what} compares {cost}. Give sample=400 (--sample 400) to compare with some clients only, costly=True "
        "(--costly) to do it all the same, or take an algorithm that compares nobody, such as ifca.",
    )
    extra = "for the comparison alone; training, in its rounds and to find clusters, is extra"
    log.warning("%s compares %s %s", what, cost, extra)


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # not on this system
        return 16e9


def _time(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} seconds"
