"""Pictures that are kept as bytes: what a byte means, and where it becomes a number.

Examples of the type uint8 are pixels from 0 to 255. They stay bytes, a quarter of the memory and of the way to the
device, until a client's examples are taken for a call; models see numbers from 0 to 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

TOP = 255


def as_numbers(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bytes as numbers from 0 to 1, x / 255 in float32 and then of `dtype`; anything else as it is.

    The bits are those of pictures that were divided beforehand, on every device and in every precision.
    """
    if x.dtype != torch.uint8:
        return x
    # By a tensor: a GPU divides by a Python number as it multiplies by its reciprocal, with other last bits.
    top = torch.full((), TOP, dtype=torch.float32, device=x.device)
    return x.to(torch.float32).div_(top).to(dtype)
