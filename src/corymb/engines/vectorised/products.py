"""Products of linear layers on a CPU, by oneDNN where that is faster than torch's own choice.

torch multiplies float32 matrices by MKL, which makes little use of AVX-512 on AMD's processors. oneDNN, which torch
uses for convolutions, does: large products take half the time. A call costs 20 µs, so small ones are left to MKL. Which
library is used depends on the processor and on shapes alone, so that a run has the same bits when it is repeated.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from corymb.engines.vectorised.traits import linear_arguments
from corymb.keys import no_transform_active

MIN_FLOPS = 2**23
"""Floating-point operations from which oneDNN is faster: 1.2 to 1.5 times at this size, twice at ten times this."""

MOST_THREADS = 2
"""With more threads, each takes clients of the stack instead of a share of every product. For steps, that is already so
with two threads: MKL takes as long."""


@cache
def onednn_is_faster() -> bool:
    """Whether this is an AMD processor with AVX-512, and this build of torch has both libraries."""
    mkl = "BLAS_INFO=mkl" in torch.__config__.show()
    return mkl and _vendor() == "AuthenticAMD" and torch.backends.cpu.get_cpu_capability() == "AVX512" and _works()


def _vendor() -> str:
    """The processor's vendor as it names itself; empty if unknown."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return platform.processor().rpartition(" ")[2]  # as on Windows
    lines = (line.partition(":") for line in facts.read_text(encoding="utf-8", errors="replace").splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == "vendor_id"), "")


def _works() -> bool:
    """Whether oneDNN can be called as below, which is not part of torch's public interface."""
    x, weight = torch.arange(6.0).reshape(2, 3), torch.ones(4, 3)
    try:
        return torch.equal(_by_onednn(x, weight, torch.ones(4)), linear(x, weight, torch.ones(4)))
    except (AttributeError, RuntimeError, TypeError):
        return False


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear`, without gradients."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _pays(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is faster for `linear` of one client: x ... i, weight o i."""
    plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and weight.dim() == 2
    return plain and 2 * x.numel() * len(weight) >= MIN_FLOPS and onednn_is_faster()


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """n clients' linear layers: x n m i, weight n o i, bias n o."""
    if torch.get_num_threads() <= MOST_THREADS and _pays(x[0], weight[0]):
        biases = [None] * len(x) if bias is None else bias.reshape(len(bias), -1)
        return torch.stack([_by_onednn(*one) for one in zip(x, weight, biases, strict=True)])
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias.reshape(len(bias), 1, -1), x, weight.mT)


def step_stacked(weight: Tensor, grad: Tensor, x: Tensor, lr: float) -> None:
    """n clients' weights n o i, less lr · gradᵀ x, in place: grad n m o, x n m i."""
    if torch.get_num_threads() == 1 and _pays(x[0], grad[0].mT):
        for own, slope, given in zip(weight, grad.mT.contiguous(), x.mT, strict=True):
            own.add_(_by_onednn(slope, given), alpha=-lr)  # while both are in the caches
    else:
        weight.baddbmm_(grad.mT, x, alpha=-lr)


def stacked_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """The gradients of n clients' weights, gradᵀ x: grad n m o, x n m i."""
    if torch.get_num_threads() == 1 and _pays(x[0], grad[0].mT):
        found = x.new_empty(len(x), grad.shape[2], x.shape[2])
        for own, slope, given in zip(found, grad.mT.contiguous(), x.mT, strict=True):
            own.copy_(_by_onednn(slope, given))
        return found
    return torch.bmm(grad.mT, x)


class Products(TorchFunctionMode):
    """A mode that computes large `linear`s by oneDNN where no gradient is wanted."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is linear:
            x, weight, bias = linear_arguments(*args, **(kwargs or {}))
            tensors = [x, weight] if bias is None else [x, weight, bias]
            if _pays(x, weight) and no_transform_active() and not any(t.requires_grad for t in tensors):
                return _by_onednn(x, weight, bias)
        return func(*args, **(kwargs or {}))
