"""Pieces of work on several threads at once, each with a single thread of torch's."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch

Piece = TypeVar("Piece")


LOOK = 0.2
"""Seconds between looks at the clock while other threads finish."""


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
    waits: Callable[[], None] = lambda: None,
) -> None:
    """Do all pieces, those that come first before the others: some `here`, on the calling thread, the rest `elsewhere`.

    `elsewhere` gets a function to call now and then, which raises `Cancelled` after a piece has failed. `waits` is
    called now and then while only other threads are busy; what it raises ends their work. Returns when all threads are
    done, and raises the first error; to be called within `one_thread`.
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

    others = [_pool(threads).submit(work) for _ in range(min(threads, len(pieces)) - 1)]
    try:
        while waiting and not cancelled:
            try:
                piece = waiting.popleft()
            except IndexError:
                break
            here(piece)
        others = [other for other in others if not other.cancel()]  # other runs may keep threads from beginning
        while wait(others, LOOK).not_done:
            waits()
    except BaseException:  # Ctrl-C too: it arrives here while other threads work
        cancelled.append(True)
        raise
    finally:
        errors = [other.exception() for other in others]  # waits for them
    for error in errors:
        if error is not None:
            raise error


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that are kept: torch's libraries keep memory for every thread that ever called them."""
    return ThreadPoolExecutor(threads - 1, "corymb", initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
