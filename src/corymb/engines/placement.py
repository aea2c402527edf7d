"""Where clients compute, and how exactly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Placement:
    """Where and how exactly clients compute."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    mixed: bool = False
    """Matrix products in bfloat16, everything kept in `dtype`."""
    tf32: bool = False
    """Matrix products and convolutions on the GPU in TF32."""

    def describe(self) -> dict[str, Any]:
        """What changes bits, for the record of a run."""
        dtype = str(self.dtype).removeprefix("torch.")
        precision = "bfloat16" if self.mixed else "tf32" if self.tf32 else dtype
        return {"device": self.device, "precision": precision, "threads": torch.get_num_threads()}

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The precision of clients' arithmetic; averages of their replies stay outside."""
        kind = torch.device(self.device).type
        with ExitStack() as stack:
            stack.enter_context(_tf32(self.tf32 or self.mixed))  # TF32 holds every bfloat16 number
            if self.mixed:
                stack.enter_context(torch.autocast(kind, torch.bfloat16))
                if kind == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
                    stack.enter_context(_without_onednn())  # it has bfloat16 layers that fail on such a processor
            yield


@contextmanager
def exactly(kind: str) -> Iterator[None]:
    """Arithmetic as exact as the tensors are, on such a device, whatever was asked for around it."""
    with torch.autocast(kind, enabled=False), _tf32(False):
        yield


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """TF32 in products and, which torch allows unasked, in convolutions: float32 means float32."""
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
