"""Packed sequences of a stack of clients, which stay padded.

How many rows a packed sequence has depends on the lengths, and vmap cannot look at values. `pack_padded_sequence` here
returns placeholders, and the padded series is remembered beside them, with a mask of the time steps within each length.
Recurrent layers hold their states where a series has ended. The placeholder for the rows is NaN: a model that computes
with them (`packed.data`) gives NaN, which the check before a run notices, and its clients run one by one.

A series of length 0, which torch refuses, keeps the state it starts with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


class Padded(NamedTuple):
    """Series of different lengths."""

    x: Tensor
    """t b i"""
    real: Tensor
    """Whether a time step is within a series: t b."""
    lengths: Tensor


@dataclass
class PackedSequences:
    """What is packed while a model runs, by the id of the placeholder that the model holds."""

    known: dict[int, tuple[Tensor, Padded]] = field(default_factory=dict)

    def pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        """`torch._VF._pack_padded_sequence`: placeholders for the rows and for how many series each time step has."""
        x = x.transpose(0, 1) if batch_first else x
        real = torch.arange(x.shape[0], device=x.device).unsqueeze(1) < lengths.to(x.device)
        x = torch.where(real.reshape(*real.shape, *(1 for _ in x.shape[2:])), x, 0)  # it may be padded with NaN
        # One number, although there is one for each time step: so `pad` can tell whether it is given a `total_length`.
        return self.remember(Padded(x, real, lengths)), torch.tensor([x.shape[1]])

    def remember(self, series: Padded) -> Tensor:
        """The placeholder for these series."""
        placeholder = series.x.new_full((1, *series.x.shape[2:]), torch.nan)
        self.known[id(placeholder)] = placeholder, series
        return placeholder

    def find(self, placeholder: Tensor) -> Padded:
        """The series that a placeholder stands for."""
        if id(placeholder) not in self.known:
            raise NotImplementedError("the rows of packed sequences are changed: their clients run one by one")
        return self.known[id(placeholder)][1]

    def pad(self, rows: Tensor, batch_first: bool, padding: float, total: int) -> tuple[Tensor, Tensor]:
        """`torch._VF._pad_packed_sequence`, if its result is as long as the series were when they were packed."""
        x, real, lengths = self.find(rows)
        if total != x.shape[0]:
            raise NotImplementedError(
                f"pad_packed_sequence without total_length={x.shape[0]} is as long as the longest series of each batch"
            )
        x = torch.where(real.reshape(*real.shape, *(1 for _ in x.shape[2:])), x, padding)
        return x.transpose(0, 1) if batch_first else x, lengths
