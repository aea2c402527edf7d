"""Runs independent jobs on several threads at once; within each job, torch uses a single thread."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch

Job = TypeVar("Job")
POLL_SECONDS = 0.1
"""Seconds between calls of `while_waiting`."""
MAX_THREADS = 1024
"""More threads than any machine needs at once: a job never waits for those of other runs."""
GIL_SECONDS = 9e-6
"""Seconds of every operation for which its thread holds the GIL. Measured: with two threads, a round takes twice as
long as with one if an operation takes 5 microseconds, 1.15 times with 14, 0.8 with 22, and 0.6 from 50 on."""


class Cancelled(Exception):
    """Raised within a job whose result is no longer needed."""


def even_slices(total: int, longest: int, multiple: int = 1) -> list[slice]:
    """Cut `total` items into slices of at most `longest` items, whose sizes differ by at most one.

    If there are enough items, the number of slices is a multiple of `multiple`, so that this many threads stay busy to
    the end.
    """
    count = -(-total // longest)
    count = min(total, -(-count // multiple) * multiple)
    ends = [total * (i + 1) // count for i in range(count)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def worthwhile_threads(seconds_per_operation: float, available: int) -> int:
    """The fastest number of threads, at least one, if each calls torch operations of this duration from Python."""
    return max(1, int(min(available, seconds_per_operation / GIL_SECONDS)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations on the calling thread alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_jobs(
    jobs: Sequence[Job],
    on_caller: Callable[[Job], None],
    on_worker: Callable[[Job, Callable[..., None]], None],
    threads: int,
    while_waiting: Callable[[], None] = lambda: None,
) -> None:
    """Run all jobs, started in this order, on the calling thread (by `on_caller`) and on workers (by `on_worker`).

    The second argument of `on_worker` is a function to call now and then: it raises `Cancelled` once another job has
    failed. `while_waiting` is called now and then while only workers are busy; an error that it raises ends their work.
    Returns when all threads are done, and raises the first error. Must be called within `one_thread`.
    """
    waiting, cancelled = deque(jobs), list[bool]()
    grads, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def check(*_: Any) -> None:
        if cancelled:
            raise Cancelled

    def work() -> None:
        # Not when the pool starts a thread, which may be after this call: it also sets what new threads begin with.
        torch.set_num_threads(1)
        with torch.inference_mode(inference), torch.set_grad_enabled(grads):
            while waiting and not cancelled:
                try:
                    job = waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                try:
                    on_worker(job, check)
                except Cancelled:
                    return
                except BaseException:
                    cancelled.append(True)
                    raise

    workers: list[Future[None]] = []
    try:
        for _ in range(min(threads, len(jobs)) - 1):
            workers.append(_pool().submit(work))  # noqa: PERF401 - Ctrl-C may arrive here, too
        while waiting and not cancelled:
            try:
                job = waiting.popleft()
            except IndexError:
                break
            on_caller(job)
        while wait(workers, POLL_SECONDS).not_done:
            while_waiting()
    except BaseException:  # Ctrl-C too: it arrives here while workers are busy
        cancelled.append(True)
        raise
    finally:
        errors = [worker.exception() for worker in workers]  # waits for them
    for error in errors:
        if error is not None:
            raise error


@cache
def _pool() -> ThreadPoolExecutor:
    """Worker threads for all calls, as many as were ever busy at once: torch's libraries keep memory for each one."""
    return ThreadPoolExecutor(MAX_THREADS, "corymb")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
