"""Weighted sums of clients' shares: what `Cohort.sum` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from corymb.core.client import Share, Shares
from corymb.trees import Params, Tree, align_leading, flatten, leaves, map_tensors, take, tree_map, unflatten

N = TypeVar("N")
WIDE_ROW_ENTRIES = 2**14
"""Entries per row above which adding the row takes longer than dispatching the addition from Python."""
HALF_DTYPES = frozenset({torch.float16, torch.bfloat16})


def type_of_sum(kind: torch.dtype, weight: torch.dtype) -> torch.dtype:
    """The dtype in which values of dtype `kind` are accumulated.

    Half precision would lose most of a long sum to rounding, and integers times a fractional weight would be truncated.
    """
    if not kind.is_floating_point:
        return weight if weight not in HALF_DTYPES else torch.float32
    return torch.float32 if kind in HALF_DTYPES else kind


class Sums(NamedTuple, Generic[N]):
    """k weighted sums over clients; labels and notes stay as one row per client."""

    total: Params  # k rows
    weight: Tensor  # k
    label: Tensor | None
    note: N

    def mean(self, empty: Params) -> Params:
        """total / weight, row by row; a row without weight is taken from `empty`."""
        flat, structure = flatten(self.total)
        weights = self.weight.tolist()  # synchronises with a GPU, but allows the cheaper branches below
        whole = min(weights, default=1) > 0
        if whole and len(weights) == 1 and self.weight.is_cuda:
            ratios = torch._foreach_div(flat, weights[0]) if flat else []  # one launch for all tensors
        else:
            divisor = self.weight if whole else torch.where(self.weight > 0, self.weight, 1)
            by = {kind: divisor.to(kind) for kind in {leaf.dtype for leaf in flat}}
            ratios = torch._foreach_div(flat, [align_leading(by[leaf.dtype], leaf) for leaf in flat]) if flat else []
        means: Params = unflatten(structure, ratios)
        if not whole:
            used = self.weight > 0
            means = tree_map(lambda mean, other: torch.where(align_leading(used, mean), mean, other), means, empty)
        if not any(leaf.dtype in HALF_DTYPES for leaf in leaves(empty)):
            return means
        return tree_map(lambda mean, other: mean.to(other.dtype) if other.dtype in HALF_DTYPES else mean, means, empty)


def add_up(rows: Share[N] | Shares[N]) -> Sums[N]:
    """The weighted sums of stacked replies: `value` has n rows (a `Share`) or n k rows (`Shares`)."""
    own = isinstance(rows, Shares)
    total = map_tensors(lambda value: _weighted_sum(value, rows.weight, own=own), rows.value)
    return Sums(total, _whole(rows.weight), rows.label, rows.note)


def sums_of(rows: Share[N] | Shares[N], parts: Sequence[Tensor]) -> list[Sums[N]]:
    """The weighted sums of each of several parts of the rows; the parts partition them."""
    if len(parts) == 1:
        return [add_up(rows)]
    weights = [_only(rows.weight, part) for part in parts]
    if isinstance(rows, Shares):
        return [add_up(rows._replace(weight=weight)) for weight in weights]
    k, together = rows.weight.shape[1], torch.cat(weights, 1)
    total = map_tensors(lambda value: _sums_at_once(value, together), rows.value)
    cuts = [slice(k * part, k * part + k) for part in range(len(parts))]
    return [
        Sums(take(total, cut), _whole(weight), rows.label, rows.note) for cut, weight in zip(cuts, weights, strict=True)
    ]


def all_of(parts: Sequence[Sums[N]], rows: Share[N] | Shares[N]) -> Sums[N]:
    """The weighted sums of all rows, from the sums of their parts."""
    first, *others = parts
    total = first.total
    for part in others:
        total = tree_map(torch.add, total, part.total)
    return Sums(total, _whole(rows.weight), rows.label, rows.note)


def _whole(weight: Tensor) -> Tensor:
    """The total weight of all rows: k."""
    return weight.sum(0, dtype=type_of_sum(weight.dtype, weight.dtype))


def _only(weight: Tensor, part: Tensor) -> Tensor:
    chosen = torch.zeros(len(weight), dtype=torch.bool).index_fill(0, part, True).to(weight.device)
    return torch.where(chosen[:, None], weight, 0)


def _sums_at_once(value: Tensor, weight: Tensor) -> Tensor:
    """The weighted sums of n rows by sparse weights (n k); on a CPU each wide row is read only for its weights ≠ 0."""
    wide = (
        value.dim() > 1
        and value[0].numel() >= WIDE_ROW_ENTRIES
        and value.device.type == "cpu"
        and value.is_floating_point()
    )
    if not wide:
        return _weighted_sum(value, weight, own=False)
    total = value.new_empty(weight.shape[1], *value.shape[1:], dtype=type_of_sum(value.dtype, weight.dtype))
    begun = set[int]()
    for i, j in weight.nonzero().tolist():
        row, factor = value[i].to(total.dtype), float(weight[i, j])
        if j in begun:
            total[j].add_(row, alpha=factor)
        else:  # instead of zeros first: a pass over a model less
            torch.mul(row, factor, out=total[j])
        begun.add(j)
    for j in set(range(len(total))) - begun:
        total[j].zero_()
    return total


def _weighted_sum(value: Tensor, weight: Tensor, *, own: bool) -> Tensor:
    value = value.to(type_of_sum(value.dtype, weight.dtype))
    weight = weight.to(value.dtype)
    if own:  # value is n k ...: one value per sum
        return (value * align_leading(weight, value)).sum(0)
    total = weight.T @ value.flatten(1) if value.dim() > 1 else weight.T @ value
    return total.reshape(len(total), *value.shape[1:])  # -1 would be ambiguous for empty values


class RowBuffer:
    """Rows of many parts, concatenated in a buffer that doubles when full.

    Thousands of small tensors kept alive among large short-lived ones would fragment memory.
    """

    def __init__(self, first: Tree) -> None:
        self._rows = first
        self._used: int | None = None  # rows filled; None while there is only the first part

    def add(self, more: Tree) -> None:
        """Add rows of the same signature."""
        room = _length(self._rows)
        before = room if self._used is None else self._used
        used = before + _length(more)
        if self._used is None or used > room:
            self._rows = map_tensors(lambda leaf: _grown(leaf, 2 * used), self._rows)
        tree_map(lambda rows, new: rows[before:used].copy_(new), self._rows, more)
        self._used = used

    def result(self) -> Tree:
        """All rows so far."""
        return self._rows if self._used is None else map_tensors(lambda leaf: leaf[: self._used], self._rows)


def _length(rows: Tree) -> int:
    return next((len(leaf) for leaf in leaves(rows)), 0)


def _grown(rows: Tensor, length: int) -> Tensor:
    grown = rows.new_empty(length, *rows.shape[1:])
    grown[: len(rows)] = rows
    return grown


class RunningSum:
    """Adds up partial sums as they arrive: memory holds a single sum, however many there are."""

    def __init__(self, first: Sums[Tree]) -> None:
        self._total: Tree = (first.total, first.weight)
        self._rows = RowBuffer((first.label, first.note))
        self._owned = False  # whether `_total` is ours to add to in place

    def add(self, more: Sums[Tree]) -> None:
        """Add one more partial sum, of the same signature."""
        new = (more.total, more.weight)
        if self._owned:
            tree_map(lambda total, part: total.add_(part), self._total, new)
        else:
            self._total, self._owned = tree_map(torch.add, self._total, new), True
        self._rows.add((more.label, more.note))

    def result(self) -> Sums[Tree]:
        """The sums so far, with labels and notes in order of arrival."""
        total, weight = self._total
        label, note = self._rows.result()
        return Sums(total, weight, label, note)
