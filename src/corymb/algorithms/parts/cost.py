"""What comparing every client with every other costs, said before it begins."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from time import perf_counter
from typing import NamedTuple

import torch
from torch.func import vmap

from corymb.core.federation import Federation
from corymb.core.objective import Examples
from corymb.keys import root
from corymb.local.operations import one_example, operations
from corymb.settings import require
from corymb.trees import Params, nbytes

log = logging.getLogger(__name__)
TRIAL = 0.2
"""Seconds that a trial may take, about: on a CPU the time of a comparison is measured."""
TRIED = 256
"""Pairs that a trial computes at once, at most."""
FLOPS = {"cpu": 5e9, "cuda": 1e12}
"""Where it is not: multiplications and additions in a second, of a laptop's core with small models, and of a GPU."""
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
        measured = _measured(fed, start, round(examples)) if device == "cpu" and n else None
        assumed = BUSY.get(device, BUSY["cpu"])
        each = examples * max(each, _operations(fed, start) / assumed) if measured is None else measured
    pairs = n * n if sample is None or sample >= n else 2 * n * sample
    return Cost(pairs, pairs * each, COPIES * 8 * pairs + 2 * n * model)


def _measured(fed: Federation, model: Params, examples: int) -> float | None:
    """Seconds for the loss of one model at a client with so many examples, tried on zeros; None where that fails.

    One alone mostly takes the time of the calls, not of the arithmetic, so that many are tried at once, as engines do.
    """
    with suppress(Exception), torch.no_grad():  # a model of one's own may want examples that no schema describes
        alone = one_example(fed.schema, model)
        on = Examples(*(part.expand(max(1, examples), *part.shape[1:]) for part in alone))
        fed.objective.losses(model, on)  # a network looks at itself in its first pass
        began = perf_counter()
        fed.objective.losses(model, on)
        one = perf_counter() - began
        pairs = min(TRIED, int(TRIAL / max(one, 1e-9)))
        return one if pairs < 2 else min(one, *(_at_once(fed, model, on, pairs) for _ in range(2)))
    return None


def _at_once(fed: Federation, model: Params, on: Examples, pairs: int) -> float:
    """Seconds a pair, where each has a model and examples of its own."""
    models = {name: value.expand(pairs, *value.shape).contiguous() for name, value in model.items()}
    rows = Examples(*(part.expand(pairs, *part.shape).contiguous() for part in on))
    began = perf_counter()
    vmap(fed.objective.losses)(models, rows)
    return (perf_counter() - began) / pairs


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
