"""The walls of the client's room: what a client function does inside ends neither the process nor the run.

Whatever it raises is that client's error; torch's global settings are put back afterwards; and what it is handed is a
copy, so that writing into an argument changes nobody else's numbers. Code that means harm can still end a process that
it runs in (`os._exit`): only hosts of their own keep that away.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import torch

from corymb.settings import first_line
from corymb.trees import map_tensors

T = TypeVar("T")


class WouldEndProcess(RuntimeError):
    """A client function raised what ends a process, such as SystemExit: an error like any other, once outside."""


@contextmanager
def walls() -> Iterator[None]:
    """Run a client function: `SystemExit` and its like become errors, and torch's settings stay as they were."""
    before = _settings()
    try:
        with _interrupts() as interrupted:
            yield
    except Exception:
        raise
    except BaseException as error:
        if interrupted:  # somebody did press Ctrl-C
            raise
        kind, line = type(error).__name__, first_line(error)
        raise WouldEndProcess(kind if line == kind else f"{kind}: {line}") from error
    finally:
        _put_back(before)


def copies(tree: T) -> T:
    """The same values in memory of their own, to be handed out."""
    return map_tensors(torch.clone, tree)


TORCHS_OWN = (
    "The PyTorch API of nested tensors is in prototype stage",
    "There is a performance drop because we have not yet implemented the batching rule",
    "enable_nested_tensor is True",
    "RNN module weights are not part of single contiguous chunk of memory",
)
"""How warnings begin that are about torch's own ways through a model: nobody who uses one here can do anything."""


@contextmanager
def torch_quiet() -> Iterator[None]:
    """Without warnings that are torch's own business; for a whole run, since filters are global to the process."""
    with warnings.catch_warnings():
        for line in TORCHS_OWN:
            warnings.filterwarnings("ignore", message=line, category=UserWarning)
        yield


# ---- Ctrl-C


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """A list that is empty until a signal asks the process to stop: only those may pass the walls."""
    seen: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # no other thread ever gets one
        handlers = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}
    for which, handler in handlers.items():
        if callable(handler):
            signal.signal(which, _noting(seen, handler))
    try:
        yield seen
    finally:
        for which, handler in handlers.items():
            if callable(handler):
                signal.signal(which, handler)


def _noting(seen: list[int], handler: Any) -> Any:
    def note(number: int, frame: FrameType | None) -> Any:
        seen.append(number)
        return handler(number, frame)

    return note


# ---- torch's global settings


def _settings() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.empty(0).device,  # the default; `get_default_device` takes twenty times as long
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _put_back(before: tuple[Any, ...]) -> None:
    after = _settings()
    if after == before:
        return
    dtype, device, grad, threads, products, deterministic, warn_only = before
    torch.set_default_dtype(dtype)
    if after[1] != device:
        torch.set_default_device(device)
    torch.set_grad_enabled(grad)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(products)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
