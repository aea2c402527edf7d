"""Estimates the cost of comparing every client with every other, before it begins."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from time import perf_counter
from typing import NamedTuple

import torch

from corymb.core.federation import Federation
from corymb.core.objective import Examples
from corymb.keys import root
from corymb.local.operations import one_example, operations
from corymb.settings import require
from corymb.trees import Params, nbytes

log = logging.getLogger(__name__)
TRIAL = 0.2
"""Approximate seconds for a trial: on a CPU, the time of a comparison is measured."""
ROWS = 512
"""About this many examples are computed at once in a trial, as by engines: fewer take longer each."""
FLOPS = {"cpu": 5e9, "cuda": 1e12}
"""Assumed operations per second if nothing is measured: a laptop's core with small models, and a GPU."""
BUSY = {"cpu": 4e10, "cuda": 2e13}
"""The same for convolutions and recurrent layers, which reuse a layer at many positions of an example."""
COPIES = 3
"""Matrices of all pairs that are in memory at the same time."""
LONGEST = 3600.0
"""Seconds above which a comparison is refused unless asked for."""
LOGGED_FROM = 60.0
"""Seconds from which the cost is logged."""
MEMORY = 0.8
"""The fraction of the machine's memory that may be used."""


class Cost(NamedTuple):
    """An estimate, accurate to a small factor."""

    pairs: int
    seconds: float
    bytes: int

    def __str__(self) -> str:
        return f"{self.pairs:,} pairs: about {_time(self.seconds)} and {self.bytes / 1e9:.2g} GB"


def pairwise_cost(fed: Federation, *, losses: bool, sample: int | None = None) -> Cost:
    """The cost of distances between all clients' models: by cross-losses (`losses`), or by parameters alone.

    With a `sample`, the cost of comparing all clients with that many, in both directions.
    """
    n = len(fed.clients)
    start = fed.objective.init(root(0))
    model, device = nbytes(start), next(iter(start.values())).device.type
    examples = float(fed.clients.sizes.double().mean()) if n else 0.0
    each = 2 * sum(value.numel() for value in start.values()) / FLOPS.get(device, FLOPS["cpu"])
    if losses:
        measured = _measured(fed, start, round(examples)) if device == "cpu" and n else None
        assumed = BUSY.get(device, BUSY["cpu"])
        each = examples * max(each, _operations(fed, start) / assumed) if measured is None else measured
    pairs = n * n if sample is None or sample >= n else 2 * n * sample
    return Cost(pairs, pairs * each, COPIES * 8 * pairs + 2 * n * model)


def _measured(fed: Federation, model: Params, examples: int) -> float | None:
    """Seconds for the loss of one model on this many examples, measured on zeros; None if that fails.

    A single evaluation is dominated by call overhead, so that a model is run on several clients' examples at once.
    """
    with suppress(Exception), torch.no_grad():  # a custom model may need examples that no schema describes
        alone = one_example(fed.schema, model)
        on = Examples(*(part.expand(max(1, examples), *part.shape[1:]) for part in alone))
        fed.objective.losses(model, on)  # warm-up: a network analyses itself in its first pass
        began = perf_counter()
        fed.objective.losses(model, on)
        one = perf_counter() - began
        clients = min(ROWS // len(on.weight), int(TRIAL / max(one, 1e-9)))
        return one if clients < 2 else min(one, *(_at_once(fed, model, on, clients) for _ in range(2)))
    return None


def _at_once(fed: Federation, model: Params, on: Examples, clients: int) -> float:
    """Seconds per pair for the loss of one model on the examples of so many clients."""
    rows = Examples(*(part.repeat(clients, *[1] * (part.dim() - 1)) for part in on))
    began = perf_counter()
    fed.objective.losses(model, rows)
    return (perf_counter() - began) / clients


def _operations(fed: Federation, model: Params) -> int:
    """The operations for one example; 0 if no such example can be made."""
    with suppress(Exception):  # a custom model may need examples that no schema describes
        return operations(fed.objective, model, one_example(fed.schema, model))
    return 0


def warn_or_refuse(cost: Cost, what: str, *, asked: bool) -> None:
    """Log the cost of a large comparison; refuse one that takes over an hour or too much memory, unless `asked` for."""
    if cost.seconds < LOGGED_FROM and cost.bytes < MEMORY * _memory() / 8:
        return
    too_much = cost.seconds > LONGEST or cost.bytes > MEMORY * _memory()
    require(
        asked or not too_much,
        f"{what} compares {cost}. Give sample=400 (--sample 400) to compare with some clients only, costly=True "
        "(--costly) to do it anyway, or use an algorithm that does not compare clients, such as ifca.",
    )
    extra = "for the comparison alone; training is extra"
    log.warning("%s compares %s %s", what, cost, extra)


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # not available on this system
        return 16e9


def _time(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} seconds"
