"""The order of clients."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor


def in_order(names: Sequence[str]) -> Tensor:
    """The positions of names in order: as text, with runs of digits as numbers."""
    return torch.tensor(sorted(range(len(names)), key=lambda i: _pieces(names[i])), dtype=torch.int64)


def _pieces(name: str) -> tuple[list[str | int], str]:
    pieces: list[str | int] = list(re.split(r"([0-9]+)", name))
    pieces[1::2] = [int(digits) for digits in pieces[1::2]]
    return pieces, name
