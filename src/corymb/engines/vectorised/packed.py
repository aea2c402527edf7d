"""Packed sequences of a stack of clients, which stay padded.

The number of rows of a packed sequence depends on the lengths, and vmap cannot read values. `pack_padded_sequence`
therefore returns placeholders, and the padded series is stored for them, with a mask of the time steps within each
length. Recurrent layers keep their states unchanged after the end of a series. The placeholder for the rows is NaN: a
model that computes with them (`packed.data`) gives NaN, which the check before a run notices, and its clients run one
by one.

`pad_packed_sequence` without `total_length` pads to the length of the longest series in a batch, which is a value, too.
Most models mask what follows the end of a series, or add it up as zeros: they may be given more padding
(`padding_is_free`).

A series of length 0, which torch refuses, keeps its initial state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from corymb.keys import key_of, uniform

OUTPUT_RANGES = (-1.0, 1.0), (0.5, 1.0), (-1.0, -0.5)
"""The ranges of the numbers that replace a recurrent layer's outputs while more padding is tried."""
EXTRA_PADDING = (1, 4)
"""The numbers of additional time steps that are tried."""


class Padded(NamedTuple):
    """Series of different lengths."""

    x: Tensor
    """t b i"""
    real: Tensor
    """Whether a time step is within a series: t b."""
    lengths: Tensor


@dataclass
class PackedSequences:
    """The series packed while a model runs, by the id of the placeholder that the model holds.

    `free` means that the model may be given more padding than it asks for.
    """

    free: bool = False
    known: dict[int, tuple[Tensor, Padded]] = field(default_factory=dict)

    def pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        """`torch._VF._pack_padded_sequence`: placeholders for the rows and for how many series each time step has."""
        x = x.transpose(0, 1) if batch_first else x
        real = torch.arange(x.shape[0], device=x.device).unsqueeze(1) < lengths.to(x.device)
        x = _masked(x, real, 0)  # its padding may be NaN
        # A single number instead of one for each time step, so that `pad` can tell whether `total_length` was given.
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
        if total != x.shape[0] and not (self.free and total == 1):
            raise NotImplementedError(
                f"pad_packed_sequence without total_length={x.shape[0]} is as long as the longest series of each batch"
            )
        x = _masked(x, real, padding)
        return x.transpose(0, 1) if batch_first else x, lengths


def _masked(x: Tensor, real: Tensor, padding: float) -> Tensor:
    """The series t b ... with `padding` after their ends."""
    return torch.where(real.reshape(*real.shape, *(1 for _ in x.shape[2:])), x, padding)


def padding_is_free(losses: Callable[[], Tensor]) -> bool | None:
    """Whether a model that unpacks sequences has the same losses with more padding than it asks for.

    The outputs that it unpacks are replaced by numbers of both signs, then of each sign: a maximum over time, for
    example, depends on the padding only if all outputs are negative. None if the model unpacks nothing, or fails with
    more padding.
    """
    for low, high in OUTPUT_RANGES:
        mode = _MorePadding(0, low, high)
        with mode:
            want = losses()
        if not mode.calls:
            return None
        tolerance = 1e-9 if want.dtype == torch.float64 else 1e-3
        for further in EXTRA_PADDING:
            try:
                with _MorePadding(further, low, high):
                    got = losses()
            except (RuntimeError, ValueError, IndexError):
                return None
            if got.shape != want.shape or not torch.allclose(got, want, rtol=tolerance, atol=tolerance):
                return False
    return True


class _MorePadding(TorchFunctionMode):
    """Unpacks sequences with `further` more time steps of padding, and uniform numbers in place of their rows."""

    def __init__(self, further: int, low: float, high: float) -> None:
        super().__init__()
        self.further, self.low, self.high, self.calls = further, low, high, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return self._changed(*out, *args[2:4]) if getattr(func, "__name__", "") == "_pad_packed_sequence" else out

    def _changed(self, x: Tensor, lengths: Tensor, batch_first: bool, padding: float) -> tuple[Tensor, Tensor]:
        x = x.transpose(0, 1) if batch_first else x
        self.calls += 1
        drawn = uniform(key_of(0, self.calls).to(x.device), tuple(x.shape), x.dtype)
        real = torch.arange(len(x), device=x.device).unsqueeze(1) < lengths.to(x.device)
        x = _masked(self.low + (self.high - self.low) * drawn, real, padding)
        x = torch.cat([x, x.new_full((self.further, *x.shape[1:]), padding)])
        return x.transpose(0, 1) if batch_first else x, lengths
