"""All steps of a few clients, then all steps of the next few, so that their models stay in a processor's caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corymb.core.client import Examples, Objective
from corymb.engines.vectorised.batches import DrawnSteps, stack_sizes, steps_of
from corymb.engines.vectorised.kernels.on_threads import run_on_threads, tape_form
from corymb.engines.vectorised.kernels.steps import Steps
from corymb.engines.vectorised.kernels.together import descend_together
from corymb.engines.vectorised.kernels.watch import Watch
from corymb.engines.vectorised.threads import even_slices
from corymb.engines.vectorised.traits import Traits
from corymb.keys import Key
from corymb.local.descent import Descent
from corymb.trees import Params

CACHE_BYTES, THREADED_CACHE_BYTES = 2**22, 2**23
"""Bytes of models, for each thread, that stay in a processor's caches from step to step: with one thread, and with
several, which share work better if operations take longer. Measured: 4 MiB is 6 to 10 % faster than 8 with one thread,
and 3 % slower with two."""


def clients_in_caches(traits: Traits, how: Descent, device: str, threads: int) -> int:
    """How many clients' models stay in the caches of all threads from step to step."""
    if device != "cpu" or how.batch is None:
        return 2**62
    held = CACHE_BYTES if threads == 1 else THREADED_CACHE_BYTES
    return threads * max(1, held // traits.parameter_bytes)


def descend_in_groups(
    steps: Steps,
    watch: Watch,
    objective: Objective,
    params: Params,
    on: Examples,
    key: Key,
    how: Descent,
    *,
    few: int,
    threads: int,
    own: bool,
) -> tuple[Params, Tensor]:
    """The trained models of all clients and their losses before the first step, by the fused kernel, `few` at a time.

    With several threads, each takes an equal part of the few, in groups of its own.
    """
    own = own and all(p.is_contiguous() for p in params.values())
    trained = params if own else {name: torch.empty(p.shape, dtype=p.dtype) for name, p in params.items()}
    losses: dict[int, Tensor] = {}
    drawn = DrawnSteps(on, key, how) if DrawnSteps.fit(on, how) else None

    def left(some: slice) -> list[int]:
        return stack_sizes(how, on.weight[some])

    def train(some: slice, watch: Watch) -> None:
        models = {name: value[some] for name, value in trained.items()}
        if not own:  # copied only now, so that they are in the caches
            for name, value in models.items():
                value.copy_(params[name][some])
        examples = Examples(*(t[some] for t in on))
        batches = steps_of(examples, key[some], how, shrinks=True) if drawn is None else drawn.of(some, left(some))
        rows, losses[some.start] = descend_together(
            steps, watch, "fused", objective, models, examples, key[some], how, batches, own=True
        )
        for name, value in rows.items():
            if value.data_ptr() != models[name].data_ptr():
                models[name].copy_(value)

    def train_on_caller(some: slice) -> None:
        done = sum(map(len, list(losses.values())))
        with watch.part(done, some.stop - some.start, len(on.weight)):
            train(some, watch)

    if threads == 1 or how.safe:  # safe steps measure the curvature, which is not replayed
        for some in even_slices(len(on.weight), few):
            train_on_caller(some)
    else:
        form = tape_form(trained, on)

        def key_of(some: slice) -> tuple[Any, ...]:
            return id(objective), how, form, some.stop - some.start, on.weight.shape[1], *dict.fromkeys(left(some))

        jobs = even_slices(len(on.weight), few // threads, threads)
        run_on_threads(
            jobs, key_of, train_on_caller, lambda some, check: train(some, Watch(check)), threads, steps.tapes, watch
        )
    return trained, torch.cat([losses[start] for start in sorted(losses)])
