"""The device and the precision of clients' computations."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True)
class Placement:
    """The device and the precision of clients' computations."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    mixed: bool = False
    """Matrix products in bfloat16; everything is stored in `dtype`."""
    tf32: bool = False
    """Matrix products and convolutions on the GPU in TF32."""

    def describe(self) -> dict[str, Any]:
        """Everything that can change the bits of results, for the run's record."""
        dtype = str(self.dtype).removeprefix("torch.")
        precision = "bfloat16" if self.mixed else "tf32" if self.tf32 else dtype
        return {"device": self.device, "precision": precision, "threads": torch.get_num_threads()}

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Set the precision of clients' arithmetic; averaging of replies is done outside of this context."""
        kind = torch.device(self.device).type
        with ExitStack() as stack:
            stack.enter_context(_tf32(self.tf32 or self.mixed))  # TF32 represents every bfloat16 exactly
            if self.mixed:
                stack.enter_context(copy.copy(_in_bfloat16(kind)))  # it keeps what it restores: one for each use
                if kind == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
                    stack.enter_context(_without_onednn())  # its bfloat16 layers fail on processors without support
            yield


@cache
def _in_bfloat16(kind: str) -> torch.autocast:
    """Autocast to bfloat16, made once: making one asks the driver what the GPU supports."""
    return torch.autocast(kind, torch.bfloat16, cache_enabled=True)


@contextmanager
def exactly(kind: str) -> Iterator[None]:
    """Compute in the full precision of the tensors on this kind of device, whatever the context around it."""
    with torch.autocast(kind, enabled=False), _tf32(False):
        yield


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in matrix products and in convolutions, where torch allows it by default."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = allowed
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


@contextmanager
def _without_onednn() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
