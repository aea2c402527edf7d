"""Clients' examples in flat arrays on a device."""

from __future__ import annotations

import logging
import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.engine import ClientData, Rows
from corymb.core.objective import Examples
from corymb.core.pixels import as_numbers
from corymb.trees import align_leading

log = logging.getLogger(__name__)
MAX_HELD = 0.5
"""The fraction of a GPU's free memory that examples may take: larger data sets stay in the machine's memory."""


class _Layout(NamedTuple):
    """The layout of some clients' rows in a table."""

    longest: int
    """The largest number of rows of a client."""
    first: int | None
    """The first row, if the clients' rows are contiguous and equal in number; else None."""


class ExampleTable:
    """The examples of all clients; returns those of one client, or a padded stack of several clients'.

    `order` has the positions in `rows` of the table's clients 0, 1, ...; None if they are in this order. Examples are
    not moved. Returned examples are copies, so that client functions cannot change the table. For callers that do not
    write, `stack(copy=False)` returns views of the table if it can, and `unwritten` tells whether they were written to.
    Pixels stored as bytes are converted to floats when they are returned. Examples are returned on `device`; the table
    may be `held` elsewhere (see `held_on`).
    """

    def __init__(
        self,
        rows: Rows,
        order: Tensor | None,
        device: torch.device,
        dtype: torch.dtype,
        held: torch.device | None = None,
    ) -> None:
        self.held = held or device
        self.x, self.y = (_placed(t, self.held, dtype) for t in (rows.x, rows.y))
        offsets = rows.offsets.cpu().to(torch.int64)
        self.starts, self.counts = _starts_and_counts(offsets, order)
        self.device, self.dtype = device, dtype
        self._latest: tuple[Tensor, _Layout] | None = None

    @cached_property
    def sizes(self) -> Tensor:
        """The number of each client's rows, for those who need all at once: n."""
        return self.counts if isinstance(self.counts, Tensor) else self.counts.all()

    def one(self, client: int) -> Examples:
        """One client's examples, without padding."""
        start = int(self.starts[client])
        rows = slice(start, start + int(self.counts[client]))
        x, y = (self._on_device(t[rows], copy=True) for t in (self.x, self.y))
        return Examples(as_numbers(x, self.dtype), y, torch.ones(len(y), device=self.device, dtype=self.dtype))

    @property
    def unwritten(self) -> tuple[int, int]:
        """The versions of the table's tensors, which change when they are written to."""
        return self.x._version, self.y._version

    def stack(self, ids: Tensor, *, copy: bool = True) -> Examples:
        """Several clients' examples, n m ...; shorter clients are padded with rows of weight 0."""
        longest, first = self._layout(ids)
        if first is not None:
            rows = slice(first, first + longest * len(ids))
            own = (self._on_device(t[rows], copy=copy) for t in (self.x, self.y))
            x, y = (t.unflatten(0, (len(ids), longest)) for t in own)
            return Examples(
                as_numbers(x, self.dtype), y, torch.ones(len(ids), longest, device=self.device, dtype=self.dtype)
            )
        sizes, starts, places = self.counts[ids], self.starts[ids], torch.arange(longest)
        real = (places < sizes[:, None]).to(self.device)
        # Padding repeats the client's last example: if the loss is finite there, it is finite in the padding too.
        last = (sizes[:, None] - 1).clamp_min(0)
        rows_of = (starts[:, None] + torch.minimum(places, last)).clamp_max(len(self.y) - 1).to(self.held)
        x, y = (self._on_device(t[rows_of], copy=False) for t in (self.x, self.y))
        if bool((sizes == 0).any()):  # clients without examples get zeros, never another client's rows
            filled = (sizes > 0).to(self.device)
            x, y = (torch.where(align_leading(filled, t), t, 0) for t in (x, y))
        return Examples(as_numbers(x, self.dtype), y, real.to(self.dtype))

    def _on_device(self, rows: Tensor, *, copy: bool) -> Tensor:
        """Rows of the table on the device that computes; with `copy`, never the table's own memory."""
        if self.held != self.device:
            return _sent(rows, self.device)
        return rows.clone() if copy else rows

    @property
    def row_bytes(self) -> int:
        """The bytes of one example as it is returned."""
        each = torch.finfo(self.dtype).bits // 8 if self.x.dtype == torch.uint8 else self.x.itemsize
        return math.prod(self.x.shape[1:]) * each + math.prod(self.y.shape[1:]) * self.y.itemsize

    def longest(self, ids: Tensor) -> int:
        """The number of rows of `stack(ids)` for each client."""
        return self._layout(ids).longest

    def _layout(self, ids: Tensor) -> _Layout:
        """The layout of these clients' rows, cached since most rounds ask the same clients as the last one."""
        if self._latest is None or not torch.equal(self._latest[0], ids):
            sizes, starts = self.counts[ids], self.starts[ids]
            longest = int(sizes.max())
            neighbours = bool((sizes == longest).all()) and bool((starts.diff() == longest).all())
            self._latest = ids, _Layout(longest, int(starts[0]) if neighbours else None)
        return self._latest[1]

    def replace(self, ids: Tensor, rows: Rows) -> None:
        """Replace the examples of some clients by `rows`, which has them in the order of `ids`."""
        self._latest = None
        new = ExampleTable(rows, None, self.device, self.dtype, self.held)
        if self.x.dtype != new.x.dtype:  # one has bytes and the other floats
            self.x, new.x = (as_numbers(x, self.dtype) for x in (self.x, new.x))
        stay = torch.ones(len(self.sizes), dtype=torch.bool).index_fill(0, ids, False)
        kept = torch.cat(
            [
                torch.arange(int(start), int(start) + int(m))
                for start, m in zip(self.starts[stay], self.sizes[stay], strict=True)
            ]
            or [torch.empty(0, dtype=torch.int64)]
        ).to(self.held)
        starts, sizes = self.starts.clone(), self.sizes.clone()
        starts[stay] = sizes[stay].cumsum(0) - sizes[stay]
        starts[ids], sizes[ids] = new.starts + len(kept), new.sizes
        self.starts, self.counts, self.sizes = starts, sizes, sizes
        self.x, self.y = (torch.cat([old[kept], more]) for old, more in ((self.x, new.x), (self.y, new.y)))


class Differences:
    """The number of rows of each client, by offsets: without an entry of its own for each."""

    def __init__(self, offsets: Tensor) -> None:
        self._starts, self._ends = offsets[:-1], offsets[1:]

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, which: Tensor | int) -> Tensor:
        return self._ends[which] - self._starts[which]

    def all(self) -> Tensor:
        """The number of rows of every client: n."""
        return self._ends - self._starts

    def max(self) -> Tensor:
        """The largest of them."""
        return self.all().max()


def _starts_and_counts(offsets: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor | Differences]:
    """The first row of each client, and its number of rows; `offsets` are used as they are if they tell both."""
    sizes = _in_one_place(offsets.diff())
    if order is not None:
        return offsets[:-1][order], _in_one_place(sizes[order])
    return offsets[:-1], Differences(offsets) if sizes.is_contiguous() and len(sizes) > 1 else sizes


def _in_one_place(sizes: Tensor) -> Tensor:
    """The same sizes; if all are equal, as test tables without examples are, they share one place in memory."""
    equal = len(sizes) > 1 and bool((sizes == sizes[0]).all())
    return sizes[:1].clone().expand(len(sizes)) if equal else sizes


def held_on(data: ClientData, device: torch.device, dtype: torch.dtype) -> torch.device:
    """Where to hold a data set: on the device that computes, unless that is a GPU and the data set is large for it."""
    tensors = [t for rows in (data.train, data.test) for t in (rows.x, rows.y)]
    if device.type != "cuda" or all(t.is_cuda for t in tensors):
        return device
    free, _ = torch.cuda.mem_get_info(device)
    needed = sum(t.numel() * (dtype.itemsize if t.is_floating_point() else t.itemsize) for t in tensors)
    if needed <= MAX_HELD * free:
        return device
    log.warning(
        "the examples take %.1f GiB and the GPU has %.1f GiB free: they stay in the machine's memory, and those of the "
        "clients at work are copied to the GPU in every round",
        needed / 2**30,
        free / 2**30,
    )
    return torch.device("cpu")


def _sent(rows: Tensor, device: torch.device) -> Tensor:
    """Rows copied to a GPU, by way of memory that it can read itself, which is faster."""
    return rows.pin_memory().to(device, non_blocking=True)


def _placed(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    placed = tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
    return placed.clone() if placed.is_inference() else placed  # examples that were made in inference mode
