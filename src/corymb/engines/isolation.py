"""Isolates client functions: whatever one does, neither the process nor the run ends.

Whatever it raises is that client's error, torch's global settings are restored afterwards, and its arguments are
copies, so that writing into them affects no other client. Malicious code can still end the process that it runs in
(`os._exit`): only a separate host protects against that.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor

from corymb.settings import first_line
from corymb.trees import flatten, map_tensors, unflatten

T = TypeVar("T")


class WouldEndProcess(RuntimeError):
    """Raised in place of SystemExit, KeyboardInterrupt and the like that a client function raised."""


@contextmanager
def isolated() -> Iterator[None]:
    """Run a client function: turns SystemExit and the like into errors, and restores torch's settings."""
    before = _settings()
    try:
        with _interrupts() as interrupted:
            yield
    except Exception:
        raise
    except BaseException as error:
        if interrupted:  # a real Ctrl-C, or SIGTERM
            raise
        kind, line = type(error).__name__, first_line(error)
        raise WouldEndProcess(kind if line == kind else f"{kind}: {line}") from error
    finally:
        _restore(before)


def copies(tree: T) -> T:
    """The tree with every tensor cloned."""
    flat, structure = flatten(tree)
    places = [place for place, leaf in enumerate(flat) if isinstance(leaf, Tensor)]
    if not any(flat[place].is_cuda for place in places):
        return map_tensors(torch.clone, tree)
    clones = [torch.empty_like(flat[place]) for place in places]
    torch._foreach_copy_(clones, [flat[place] for place in places])  # one launch for all tensors
    for place, clone in zip(places, clones, strict=True):
        flat[place] = clone
    cloned: T = unflatten(structure, flat)
    return cloned


TORCHS_OWN = (
    "The PyTorch API of nested tensors is in prototype stage",
    "There is a performance drop because we have not yet implemented the batching rule",
    "enable_nested_tensor is True",
    "RNN module weights are not part of single contiguous chunk of memory",
)
"""Beginnings of warnings about torch's internals, which users cannot act upon."""


@contextmanager
def torch_quiet() -> Iterator[None]:
    """Suppress warnings about torch's internals. Used around a whole run, since filters are global to the process."""
    with warnings.catch_warnings():
        for line in TORCHS_OWN:
            warnings.filterwarnings("ignore", message=line, category=UserWarning)
        yield


@contextmanager
def plain_modes() -> Iterator[None]:
    """Leave inference mode, which has no gradients, and autocast: a run has its own precision."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        for kind in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


# ---- Ctrl-C


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """A list of the SIGINT and SIGTERM signals received inside: only these may end the process."""
    seen: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # signals arrive only there
        handlers = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}
    for which, handler in handlers.items():
        if callable(handler):
            signal.signal(which, _recording(seen, handler))
    try:
        yield seen
    finally:
        for which, handler in handlers.items():
            if callable(handler):
                signal.signal(which, handler)


def _recording(seen: list[int], handler: Any) -> Any:
    def record(number: int, frame: FrameType | None) -> Any:
        seen.append(number)
        return handler(number, frame)

    return record


# ---- torch's global settings


def _settings() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.empty(0).device,  # the default device; `get_default_device` takes twenty times as long
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _restore(before: tuple[Any, ...]) -> None:
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
