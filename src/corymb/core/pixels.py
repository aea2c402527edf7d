"""Images stored as bytes, and their conversion to floats.

Examples of dtype uint8 are pixels from 0 to 255. They stay bytes, which take a quarter of the memory and transfer time,
until a client's examples are read for a call; models see floats from 0 to 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_PIXEL = 255


def as_numbers(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert bytes to floats from 0 to 1: x / 255 in float32, then cast to `dtype`. Other dtypes are returned as is.

    The bits equal those of images divided in advance, on every device and in every precision.
    """
    if x.dtype != torch.uint8:
        return x
    # Divide by a tensor: a GPU divides by a Python scalar by multiplying with its reciprocal, which rounds differently.
    top = torch.full((), MAX_PIXEL, dtype=torch.float32, device=x.device)
    return x.to(torch.float32).div_(top).to(dtype)
