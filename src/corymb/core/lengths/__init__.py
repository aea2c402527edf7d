"""Measures how far a reply is from the model its client was sent.

Rows are compared in blocks, wide ones row by row, and in one pass where that is faster. On a GPU nothing waits for the
result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Share, Shares
from corymb.core.lengths.one_pass import in_one_pass
from corymb.core.sums import Sums
from corymb.trees import Params, Tree, align_leading, leaves, map_tensors, on_cpu

CPU_BLOCK_ENTRIES = 2**19
"""Entries compared at once on a CPU, so that intermediate results stay in its cache."""
WIDE_ROW_ENTRIES = 2**16
"""Entries per row from which rows on a CPU that start from different models are compared one by one."""
GPU_BLOCK_ENTRIES = 2**27
"""Entries compared at once on a GPU, which limits the memory for intermediate results."""
MIN_BLOCK_ROWS = 64
"""The least number of rows compared at once: wide rows are compared a slice at a time, to save calls."""


class Near(NamedTuple):
    """The models that replies are expected near: k rows, one for each sum."""

    models: Params
    by: Tensor | None = None
    """n k: the mixture of models that each asked client starts from; None if it is given by the reply's weights."""
    loose: bool = False
    """Whether to refuse only updates `guard.LOOSE_FACTOR` times as long as usual: for replies of about the models' size
    that need not be near them."""
    most: float | None = None
    """An absolute bound on the length, used instead of a comparison with other clients."""
    apart: bool = False
    """Whether a client's values for different sums come from different examples. Each sum is then reduced separately,
    and replies may have entries that the models lack."""
    handful: bool = False
    """Whether the whole federation has no more than `guard.FEW_CLIENTS` clients."""

    def at(self, places: Tensor) -> Near:
        """Restrict to the clients at these places among those asked."""
        return self if self.by is None else self._replace(by=self.by[places.to(self.by.device)])


class Lengths(NamedTuple):
    """The length of each reply's update, and the sum it goes into: -1 for several, or none."""

    length: Tensor  # n, float64
    group: Tensor  # n

    def allowing(self, larger: Tensor, most: float) -> Lengths:
        """Lengths divided by the extra length allowed to clients with `larger` times the usual number of examples.

        The extra length is at most `most` times the usual one.
        """
        return self._replace(length=self.length / larger.clamp(1, most).to(self.length))

    @staticmethod
    def none(n: int) -> Lengths:
        """Lengths of n replies that are not compared."""
        return Lengths(torch.zeros(n, dtype=torch.float64), torch.full((n,), -1))


class Deviations(NamedTuple):
    """The ingredients of lengths, on the replies' device: nothing synchronises with a GPU until `on_cpu`."""

    squares: Tensor
    """Squared distances of rows from their starts, for each tensor of a model: tensors n (k), float64."""
    weight: Tensor
    """Each row's weight in every sum, n k; 1 if nothing is added up."""
    models: Tensor | None
    """The norms of the tensors of the models in `Near`: tensors k, float64."""


def measured(rows: Tree, near: Near | None, clients: int, *, known: bool = False) -> Deviations | None:
    """Measure how far each of n stacked replies is from where it started; None for replies that are not compared.

    `known`: the models' lengths are already known and need not be computed.
    """
    if near is None and not isinstance(rows, (Share, Shares)):
        return None
    models = None if near is None or known else _model_lengths(near.models)
    if isinstance(rows, Shares):
        return _on_one_device(_of_shares(rows, near), rows.weight, models)
    if isinstance(rows, Share):
        weight = rows.weight
    else:
        assert near is not None
        weight = torch.ones(clients, len(next(iter(near.models.values()))))
    by = weight if near is None or near.by is None else near.by.cpu()
    return _on_one_device(_squared_deviations(values_of(rows), near, by), weight, models)


def _on_one_device(squares: Tensor, weight: Tensor, models: Tensor | None) -> Deviations:
    """`Deviations` on one device: with several devices, the models may be on another one than the replies."""
    return Deviations(squares, weight, None if models is None else models.to(squares.device))


def lengths_of(found: Deviations, rows: Tree, near: Near | None) -> Lengths:
    """Lengths from the result of `measured`, after it was moved to the CPU."""
    if isinstance(rows, Shares):
        far = torch.where(found.weight > 0, found.squares.sum(0), 0).amax(1).sqrt()
        return Lengths(far, torch.full((len(far),), -1))
    group, squares = only_sum(found.weight), found.squares
    taken_for_one = isinstance(rows, Share) and near is not None and near.by is None and found.weight.shape[1] > 1
    if taken_for_one and rows.weight.device.type != "cpu" and bool((group < 0).any()):
        # Some started from a mixture, which `_mixture` ignored.
        squares = _squared_deviations(values_of(rows), near, found.weight).cpu()
    return Lengths(squares.sum(0).sqrt(), group)


def row_lengths(rows: Tree, near: Near | None, clients: int) -> Lengths | None:
    """How far each of n stacked replies is from where it started; None for replies that are not compared."""
    found = measured(rows, near, clients)
    return None if found is None else lengths_of(on_cpu(found), rows, near)


def values_of(rows: Tree) -> Tree:
    """The values of replies: their `value`, or the fields of a named tuple without one."""
    if hasattr(rows, "value"):
        return rows.value
    return rows._asdict() if hasattr(rows, "_asdict") else rows


def part_lengths(sums: Sums[Tree], near: Near | None, clients: int) -> Lengths:
    """How far the means of a host's partial sums are from where its clients started, repeated for each client."""
    if not sums.weight.numel():
        return Lengths.none(clients)
    used = sums.weight > 0
    weight = torch.where(used, sums.weight, 1).double()
    mean = map_tensors(lambda v: v.double() / align_leading(weight.to(v.device), v), sums.total)
    by = torch.eye(len(weight)) if near is None or near.by is None else near.by.double().mean(0).expand(len(weight), -1)
    lengths = torch.where(used.cpu(), _squared_deviations(mean, near, by).cpu().sum(0).sqrt(), 0)
    group = only_sum(sums.weight[None])
    return Lengths(lengths.amax().expand(clients), group.expand(clients))


def _of_shares(rows: Shares[Tree], near: Near | None) -> Tensor:
    """Squared distances of each row's values for each sum: tensors n k."""
    shape, found = rows.weight.shape, [torch.zeros_like(rows.weight, dtype=torch.float64)]
    if near is None:
        found += [_wide(leaf).reshape(*shape, -1).square().sum(2).double() for leaf in _filled(rows.value)]
    else:
        for name, start in near.models.items():
            leaf = _wide(rows.value[name])
            found.append((leaf - start.to(leaf)).reshape(*shape, -1).square().sum(2).double())
    return torch.stack(found)


def _filled(value: Tree) -> list[Tensor]:
    return [leaf for leaf in leaves(value) if leaf.numel()]


def _squared_deviations(value: Tree, near: Near | None, by: Tensor) -> Tensor:
    """Squared norms of rows, or of their differences from their mixtures of models: tensors n.

    Shares on a GPU are not read back: there, every row is assumed to have started from one model.
    """
    if near is None:
        far = [torch.linalg.vector_norm(_wide(leaf).reshape(len(by), -1), dim=1) for leaf in _filled(value)]
    else:
        mixture = _mixture(by)
        far = []
        for name, start in near.models.items():
            leaf, starts = _wide(value[name]).reshape(len(by), -1), _wide(start).reshape(len(start), -1)
            far.append(_distances(leaf, starts.to(leaf), mixture))
    if not far:
        return torch.zeros(1, len(by)).double()
    return torch.stack([torch.zeros_like(far[0]), *far]).double().square()


class _Mixture(NamedTuple):
    """Where rows started: from shares of all starts, or from one start each."""

    share: Tensor | None  # n k
    only: Tensor | None  # n; None if all rows have the same start

    def of(self, starts: Tensor, rows: slice) -> Tensor:
        """The starts of some rows."""
        if self.share is not None:
            return self.share[rows].to(starts) @ starts
        return starts if self.only is None else starts.index_select(0, self.only[rows].to(starts.device))


def _mixture(by: Tensor) -> _Mixture:
    if by.shape[1] == 1:
        return _Mixture(None, None)
    if by.device.type != "cpu":
        return _Mixture(None, (by != 0).int().argmax(1))
    only = only_sum(by)
    if len(only) and int(only.min()) < 0:
        return _Mixture(by.double() / by.sum(1, keepdim=True).clamp_min(1e-300).double(), None)
    return _Mixture(None, only)


def _distances(rows: Tensor, starts: Tensor, mixture: _Mixture) -> Tensor:
    """The distance of every row from its mixture of the starts: n."""
    n, width = rows.shape
    at_once = CPU_BLOCK_ENTRIES if rows.device.type == "cpu" else GPU_BLOCK_ENTRIES
    if mixture.share is None and (squares := in_one_pass(rows, starts, mixture.only)) is not None:
        return squares.sqrt()
    if mixture.only is not None and rows.device.type == "cpu" and width >= WIDE_ROW_ENTRIES:
        return _distances_row_by_row(rows, starts, mixture.only)
    if rows.numel() <= at_once:
        whole: Tensor = torch.linalg.vector_norm(rows - mixture.of(starts, slice(None)), dim=1)
        return whole
    few = min(n, max(MIN_BLOCK_ROWS, at_once // width))
    found = []
    for first in range(0, n, few):
        here = slice(first, first + few)
        total = rows.new_zeros(len(rows[here]), dtype=torch.float64)
        for columns, origin in zip(rows[here].split(at_once // few, 1), starts.split(at_once // few, 1), strict=True):
            total += torch.linalg.vector_norm(columns - mixture.of(origin, here), dim=1).double().square()
        found.append(total)
    return torch.cat(found).sqrt()


@torch.no_grad()
def _distances_row_by_row(rows: Tensor, starts: Tensor, only: Tensor) -> Tensor:
    """`_distances` for wide rows, without a copy of each row's start: 1.3 to 1.8 times as fast."""
    start_blocks = [start.split(CPU_BLOCK_ENTRIES) for start in starts]
    difference = rows.new_empty(min(CPU_BLOCK_ENTRIES, rows.shape[1]))
    squares = [
        sum(
            float(torch.linalg.vector_norm(torch.sub(block, origin, out=difference[: len(block)]))) ** 2
            for block, origin in zip(row.split(CPU_BLOCK_ENTRIES), start_blocks[start], strict=True)
        )
        for row, start in zip(rows, only.tolist(), strict=True)
    ]
    return torch.tensor(squares, dtype=torch.float64).sqrt()


def _wide(leaf: Tensor) -> Tensor:
    return leaf if leaf.dtype == torch.float64 else leaf.float()


def only_sum(weight: Tensor) -> Tensor:
    """The index of each row's only non-zero weight; -1 if there are several, or none."""
    used = weight.cpu() != 0
    if not used.shape[1]:
        return torch.full((len(used),), -1)
    return torch.where(used.sum(1) == 1, used.long().argmax(1), -1)


def model_lengths(models: Params, found: Tensor | None = None) -> Tensor:
    """The Euclidean length of each of k models: k, float64, on the CPU. `found`: their tensors' norms, if known."""
    lengths: Tensor = (_model_lengths(models).cpu() if found is None else found).square().sum(0).sqrt()
    return lengths


def _model_lengths(models: Params) -> Tensor:
    """The norms of the tensors of each of k models: tensors k, float64."""
    rows = [_wide(value).reshape(len(value), -1) for value in models.values()]
    lengths = [torch.linalg.vector_norm(row, dim=1) for row in rows if row.numel()]
    return torch.stack(lengths).double() if lengths else torch.zeros(1, len(rows[0])).double()
