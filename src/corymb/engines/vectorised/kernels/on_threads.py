"""Trains clients on several threads, as far as their steps are replayed from tapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from corymb.core.client import Examples
from corymb.engines.vectorised.kernels.watch import Watch
from corymb.engines.vectorised.tape import Tapes
from corymb.engines.vectorised.threads import one_thread, run_jobs, worthwhile_threads
from corymb.trees import Params

Job = TypeVar("Job")


def run_on_threads(
    jobs: Sequence[Job],
    key_of: Callable[[Job], tuple[Any, ...]],
    train_on_caller: Callable[[Job], None],
    train_on_worker: Callable[[Job, Callable[..., None]], None],
    threads: int,
    tapes: Tapes,
    watch: Watch,
) -> None:
    """Run all jobs (clients to train) on several threads; jobs with the same `key_of` replay the same tapes.

    Each thread works on its own clients, so that none waits for the others after every product. Only jobs whose steps
    are all replayed run on other threads, since modules and objectives need not be thread-safe, and only if their
    operations take long enough. A job is computed by a single thread wherever it runs, so that its bits do not depend
    on where.
    """
    left = []
    with one_thread():
        for job in jobs:
            if key_of(job) in tapes.replayed:
                left.append(job)
            else:
                with tapes.job(key_of(job)):
                    train_on_caller(job)
        keys = {key_of(job) for job in left}
        worthwhile = 1  # if tapes were dropped in the meantime
        if keys <= tapes.replayed.keys():
            worthwhile = worthwhile_threads(tapes.seconds_per_operation(keys), threads)
        with watch.repeating() as repeat, tapes.recording_on_this_thread_only():
            run_jobs(left, train_on_caller, train_on_worker, worthwhile, while_waiting=repeat)
    watch.report(1.0)


def tape_form(params: Params, on: Examples) -> tuple[Any, ...]:
    """What the tapes of stacked clients depend on, besides the number of examples."""
    models = tuple((name, p.shape[1:], p.stride()[1:], p.dtype) for name, p in params.items())
    return models, *((t.shape[2:], t.stride()[1:], t.dtype) for t in on)
