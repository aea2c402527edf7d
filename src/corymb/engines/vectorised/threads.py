"""Pieces of work on several threads at once, each with a single thread of torch's."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch

Piece = TypeVar("Piece")
MOST = 1024
"""More threads than any machine needs at once: a piece of work never waits for those of other runs."""
HANDING_OVER = 9e-6
"""Seconds of every operation in which no other thread can use Python. Measured: with two threads, a round takes twice
as long as with one if an operation takes 5 microseconds, 1.15 times with 14, 0.8 with 22, and 0.6 from 50 on."""


class Cancelled(Exception):
    """Ends a piece of work whose results are not wanted any more."""


def even_slices(total: int, most: int, multiple: int = 1) -> list[slice]:
    """Slices of `total` things, each of at most `most`, their sizes equal up to one.

    Their number is a multiple of `multiple`, so that as many threads are busy to the end, as far as there are things.
    """
    count = -(-total // most)
    count = min(total, -(-count // multiple) * multiple)
    ends = [total * (i + 1) // count for i in range(count)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def worthwhile_threads(seconds_per_operation: float, most: int) -> int:
    """How many threads are faster than fewer, if each calls short operations of torch from Python: at least one."""
    return max(1, int(min(most, seconds_per_operation / HANDING_OVER)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations on the calling thread alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share(
    pieces: Sequence[Piece],
    here: Callable[[Piece], None],
    elsewhere: Callable[[Piece, Callable[..., None]], None],
    threads: int,
) -> None:
    """Do all pieces, those that come first before the others: some `here`, on the calling thread, the rest `elsewhere`.

    `elsewhere` gets a function to call now and then, which raises `Cancelled` after a piece has failed. Returns when
    all threads are done, and raises the first error; to be called within `one_thread`.
    """
    waiting, cancelled = deque(pieces), list[bool]()
    grads, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def check(*_: Any) -> None:
        if cancelled:
            raise Cancelled

    def work() -> None:
        with torch.inference_mode(inference), torch.set_grad_enabled(grads):
            while waiting and not cancelled:
                try:
                    piece = waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                try:
                    elsewhere(piece, check)
                except Cancelled:
                    return
                except BaseException:
                    cancelled.append(True)
                    raise

    others = [_pool().submit(work) for _ in range(min(threads, len(pieces)) - 1)]
    try:
        while waiting and not cancelled:
            try:
                piece = waiting.popleft()
            except IndexError:
                break
            here(piece)
    except BaseException:
        cancelled.append(True)
        raise
    finally:
        errors = [other.exception() for other in others]  # waits for them
    for error in errors:
        if error is not None:
            raise error


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads that are kept, as many as were ever busy at once: torch's libraries keep memory for every thread."""
    return ThreadPoolExecutor(MOST, "corymb", initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
