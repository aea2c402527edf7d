"""Squared distances of many wide rows from their starts on a GPU, reading every entry once.

Subtracting first and then taking the norm writes and reads a whole stack of models again, and with several starts it
copies one for every row. Triton comes with torch for CUDA; where it cannot be used, the caller subtracts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from corymb.settings import first_line

log = logging.getLogger(__name__)
MIN_ENTRIES = 2**26
"""Entries from which the kernel pays off: loading and compiling it takes a second or two, once per process."""


def in_one_pass(rows: Tensor, starts: Tensor, only: Tensor | None) -> Tensor | None:
    """The squared distance of each row (n d) from its start: n, float64.

    `only` (n) indexes the starts (k d); None if all rows share one start. Returns None if the kernel does not pay off
    or cannot be used.
    """
    if rows.device.type != "cuda" or rows.numel() < MIN_ENTRIES or rows.dtype not in (torch.float32, torch.float64):
        return None
    kernel = _kernel(rows.dtype, rows.device)
    if kernel is None:
        return None
    which = torch.zeros(len(rows), dtype=torch.int64, device=rows.device) if only is None else only.to(rows.device)
    return kernel(rows, starts, which)


@cache
def _kernel(kind: torch.dtype, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The compiled kernel if it passes a small test on this device, else None."""
    rows = torch.arange(15.0, dtype=kind, device=device).reshape(3, 5)
    starts, only = rows[:2] + 1, torch.tensor([1, 0, 1], device=device)
    try:
        from corymb.core.lengths.distance_kernel import squared_distances

        right = torch.equal(squared_distances(rows, starts, only), (rows - starts[only]).square().sum(1).double())
    except Exception as error:  # no Triton, no C compiler, an unsupported GPU: these share no exception class
        log.info("model distances are computed in several passes: %s", first_line(error))
        return None
    if not right:
        log.warning(
            "model distances are computed in several passes: the one-pass kernel gives wrong results on this GPU"
        )
    return squared_distances if right else None
