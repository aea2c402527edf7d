"""Where a run computes and how exactly, from the words that users have for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from corymb.core.client import Objective
from corymb.core.engine import ClientData, Journal
from corymb.core.snapshot import Snapshot
from corymb.engines import LoopEngine, Placement, VectorisedEngine
from corymb.engines.vectorised.kernels import KernelName
from corymb.settings import InvalidInput, did_you_mean, require

EngineName = Literal["vectorised", "loop"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["float32", "tf32", "bfloat16", "float64"]
Memory = int | Literal["auto"]


def where_of(device: str, precision: str) -> Placement:
    """The device and the precision of clients' arithmetic."""
    precisions = ("float32", "tf32", "bfloat16", "float64")
    require(precision in precisions, f"There is no precision {precision!r}. {did_you_mean(precision, precisions)}")
    place = _device(device)
    require(
        not (place == "mps" and precision == "float64"), "MPS has no float64: use another precision, or device='cpu'."
    )
    dtype = torch.float64 if precision == "float64" else torch.float32
    return Placement(place, dtype, mixed=precision == "bfloat16", tf32=precision == "tf32")


def _device(name: str) -> str:
    there = available_devices()
    if name == "auto":
        return there[-1]
    kind = name.partition(":")[0]
    require(kind in ("cpu", "cuda", "mps"), f"There is no device {name!r}: wanted auto, cpu, cuda or mps.")
    require(kind in there, f"Device {name!r} is not available here: this machine has {', '.join(there)}.")
    return name


def available_devices() -> list[str]:
    """The devices of this machine, the fastest last."""
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return ["cpu", *mps, *(["cuda"] if torch.cuda.is_available() else [])]


@contextmanager
def threads_set(threads: int | None) -> Iterator[None]:
    """Torch with so many threads, and afterwards with as many as before."""
    require(threads is None or threads >= 1, f"threads must be at least 1, got {threads}.")
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_engine(
    name: str,
    objective: Objective,
    data: ClientData,
    where: Placement,
    *,
    memory: Memory,
    kernel: KernelName | None,
    journal: Journal | None = None,
) -> LoopEngine | VectorisedEngine:
    """An engine with these clients."""
    require(
        name in ("vectorised", "loop"), f"There is no engine {name!r}. {did_you_mean(name, ('vectorised', 'loop'))}"
    )
    require(memory == "auto" or (isinstance(memory, int) and memory > 0), f"memory is 'auto' or bytes, got {memory!r}.")
    if name == "loop":
        require(kernel is None, "The loop engine has no kernels: leave kernel out, or use engine='vectorised'.")
        return LoopEngine(objective, data, where, journal=journal)
    budget = None if memory == "auto" else memory
    return VectorisedEngine(objective, data, where, memory=budget, kernel=kernel, journal=journal)


def placed(what: Any, where: Placement) -> Any:
    """An objective where the run computes; one that cannot move stays as it is."""
    if not hasattr(what, "to"):
        if where != Placement():
            raise InvalidInput(
                f"{type(what).__name__} has no to(device, dtype): it can run on device='cpu' with float32 only."
            )
        return what
    return what.to(where.device, where.dtype)


def placed_snapshot(snapshot: Snapshot, where: Placement) -> Snapshot:
    """A snapshot whose models are where the run computes. Labels and whatever is counted stay on the CPU."""

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(where.device, where.dtype)

    floats = (torch.float32, torch.float64) if where.dtype == torch.float64 else (torch.float32,)
    return replace(
        snapshot,
        models={name: move(value) for name, value in snapshot.models.items()},
        shares=None if snapshot.shares is None else move(snapshot.shares),
        carry={name: move(v) if v.dtype in floats else v for name, v in snapshot.carry.items()},
    )
