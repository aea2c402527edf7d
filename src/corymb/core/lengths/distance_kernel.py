"""The Triton kernel behind `corymb.core.lengths.one_pass`, in a separate module since importing it needs Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, BLOCKS = 4096, 8
"""Entries that a program reads at once, and the number of such reads."""


@triton.jit  # type: ignore[untyped-decorator]
def _distances(rows, starts, only, found, width, parts, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    row, part = (
        tl.program_id(0).to(tl.int64),
        tl.program_id(1).to(tl.int64),
    )  # rows vary fastest, so that they share a start's part in the cache
    start = tl.load(only + row)
    total = tl.zeros([BLOCK], dtype=rows.dtype.element_ty)
    for block in range(BLOCKS):
        at = (part * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        ours = tl.load(rows + row * width + at, mask=at < width, other=0.0)
        theirs = tl.load(starts + start * width + at, mask=at < width, other=0.0)
        total += (ours - theirs) * (ours - theirs)
    tl.store(found + row * parts + part, tl.sum(total.to(tl.float64)))


def squared_distances(rows: Tensor, starts: Tensor, only: Tensor) -> Tensor:
    """The squared distance of each of n rows from its row of `starts`, indexed by `only`: n, float64."""
    n, width = rows.shape
    parts = triton.cdiv(width, BLOCK * BLOCKS)
    found = torch.empty(n, parts, dtype=torch.float64, device=rows.device)
    with torch.cuda.device(rows.device):
        _distances[(n, parts)](rows.contiguous(), starts.contiguous(), only, found, width, parts, BLOCK, BLOCKS)
    return found.sum(1)
