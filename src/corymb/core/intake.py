"""Every reply is checked before it counts: on the rows, before they enter a partial sum.

Engines put rows (or the lack of them) into a `Tally`, which keeps partial results by signature, so that the signature
of most clients wins and no first reply can outlaw the others. Offenders are dropped and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from corymb.core.client import Share, Shares, Slot
from corymb.trees import Params, Signature, Tree, concat, leaves, map_tensors, nbytes, signature, tree_map

N = TypeVar("N")
Rejection = tuple[int, str]  # a client's position and why its reply does not count
MANY = 2**24  # sums of this many accepted replies are finite


class Sums(NamedTuple, Generic[N]):
    """k weighted sums over clients; labels and notes stay rows, one for each client."""

    total: Params  # k rows
    weight: Tensor  # k
    label: Tensor | None
    note: N

    def mean(self, empty: Params) -> Params:
        """total / weight, row by row; a row without weight is taken from `empty`."""
        return tree_map(lambda total, default: _ratio(total, self.weight, default), self.total, empty)


def _ratio(total: Tensor, weight: Tensor, default: Tensor) -> Tensor:
    weight = weight.reshape(-1, *[1] * (total.dim() - 1)).to(total.dtype)
    return torch.where(weight > 0, total / torch.where(weight > 0, weight, 1), default)


class Part(NamedTuple):
    """What an engine hands back for some clients: their rows, or their partial sums."""

    ids: Tensor
    value: Any
    rejected: list[Rejection]
    bytes_up: int


def add_up(rows: Share[Any] | Shares[Any]) -> Sums[Any]:
    """The weighted sums of stacked replies: `value` n rows (a `Share`) or n k rows (`Shares`)."""
    own = isinstance(rows, Shares)
    total = map_tensors(lambda value: _weighted_sum(value, rows.weight, own=own), rows.value)
    return Sums(total, rows.weight.sum(0), rows.label, rows.note)


def _weighted_sum(value: Tensor, weight: Tensor, *, own: bool) -> Tensor:
    value = value if value.is_floating_point() else value.to(weight.dtype)  # half of 3 is not 1
    weight = weight.to(value.dtype)
    if own:  # n k ...: each sum has its own values
        return (value * weight.reshape(*weight.shape, *[1] * (value.dim() - 2))).sum(0)
    return (weight.T @ value.flatten(1) if value.dim() > 1 else weight.T @ value).reshape(-1, *value.shape[1:])


def merge_sums(parts: Sequence[Sums[Any]]) -> Sums[Any]:
    """Partial sums added up, rows one after another."""
    total, weight = parts[0].total, parts[0].weight
    for part in parts[1:]:
        total = tree_map(torch.add, total, part.total)
        weight = weight + part.weight
    return Sums(total, weight, concat([p.label for p in parts]), concat([p.note for p in parts]))


def faults(rows: Tree, sizes: Tensor) -> dict[int, str]:
    """Which rows of stacked replies cannot count, and why; `sizes` are the clients' numbers of examples."""
    found: dict[int, str] = {}
    share = isinstance(rows, (Share, Shares))
    for bad, reason in _share_faults(rows, sizes) if share else _value_faults(rows, None):
        for row in bad.nonzero().flatten().tolist():
            found.setdefault(row, reason)
    return found


def _share_faults(rows: Share[Any] | Shares[Any], sizes: Tensor) -> Iterator[tuple[Tensor, str]]:
    k = rows.weight.shape[1]
    most = sizes.clamp_min(1).to(rows.weight)[:, None] * (1 + 1e-6)
    yield from _value_faults(rows[1:], None)
    yield from _value_faults(rows.value, rows.weight.amax(1))
    yield (rows.weight < 0).any(1), "weight is negative"
    yield (rows.weight > most).any(1), "weight is more than the client's size allows"
    if rows.label is not None:
        label = rows.label.flatten(1) if rows.label.dim() > 1 else rows.label[:, None]
        yield ((label < 0) | (label >= k)).any(1), f"label is out of range for {k} clusters"


def _value_faults(rows: Tree, weight: Tensor | None) -> Iterator[tuple[Tensor, str]]:
    """Numbers that are none; and, where rows are added up by `weight`, those that would make the sum infinite."""
    for leaf in leaves(rows):
        if leaf.is_floating_point() and leaf.numel():
            flat = leaf.reshape(len(leaf), -1)
            largest = torch.maximum(flat.amax(1), -flat.amin(1))  # NaN goes through; `isfinite` of all takes far longer
            yield ~torch.isfinite(largest), "value is not finite"
            if weight is not None:
                room = torch.finfo(leaf.dtype).max / (1 if leaf.dtype == torch.float16 else MANY)
                yield ~(largest * weight <= room), "value is too large to be added up"


class Kept(NamedTuple):
    """Replies that passed, with what their clients want to keep in memory."""

    ids: Tensor
    value: Any  # rows, or one partial sum
    writes: list[tuple[Tensor, dict[str, Slot]]]


class Tally:
    """Replies of one call as they come in, checked row by row and kept by signature."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.rejected: list[Rejection] = []
        self.bytes_up = 0
        self._kept: dict[tuple[Signature, Signature], list[Kept]] = {}

    def add(self, ids: Tensor, rows: Tree, sizes: Tensor, writes: dict[str, Slot]) -> None:
        """Take in stacked replies (and memory writes) of the clients `ids`, who have `sizes` examples."""
        self.bytes_up += nbytes(rows)
        if problem := self._problem(rows):
            self.rejected += [(client, problem) for client in ids.tolist()]
            return
        sign = signature(rows, rows=True), signature({name: _of_one_form(slot) for name, slot in writes.items()})
        if found := faults(rows, sizes):
            self.rejected += [(int(ids[row]), reason) for row, reason in found.items()]
            good = torch.tensor([row for row in range(len(ids)) if row not in found], dtype=torch.int64)
            ids, rows = ids[good], _rows_at(rows, good)
            writes = {name: _slot_at(slot, good) for name, slot in writes.items()}
        if len(ids):
            self._keep(sign, Kept(ids, add_up(rows) if self.verb == "sum" else rows, [(ids, writes)]))

    def _keep(self, sign: tuple[Signature, Signature], new: Kept) -> None:
        group = self._kept.setdefault(sign, [])
        if self.verb == "sum" and group:  # stream: one partial sum a signature
            old = group.pop()
            new = Kept(torch.cat([old.ids, new.ids]), merge_sums([old.value, new.value]), old.writes + new.writes)
        group.append(new)

    def _problem(self, rows: Tree) -> str | None:
        if not isinstance(rows, (Share, Shares)):
            return f"reply is a {type(rows).__name__}, `sum` wants a Share or Shares" if self.verb == "sum" else None
        weight, label = cast(Tree, rows.weight), cast(Tree, rows.label)  # whatever the client sent
        if not isinstance(weight, Tensor) or weight.dim() != 2:
            return f"weight is {signature(weight, rows=True)}, wanted [k]"
        if not isinstance(label, Tensor | None):
            return f"label is a {type(label).__name__}, wanted a tensor"
        if isinstance(rows, Shares) and _rows_differ(rows):
            return "value has not k rows"
        return None

    def reject(self, client: int, reason: str) -> None:
        """Name a client whose reply never came to be."""
        self.rejected.append((client, reason))

    def result(self) -> tuple[Part, list[tuple[Tensor, dict[str, Slot]]]]:
        """The replies of the winning signature as one part, and their memory writes; the others are rejected."""
        if not self._kept:
            return Part(torch.empty(0, dtype=torch.int64), None, self.rejected, self.bytes_up), []
        votes = {sign: sum(len(kept.ids) for kept in group) for sign, group in self._kept.items()}
        winner = max(votes, key=lambda sign: votes[sign])
        for sign, group in self._kept.items():
            if sign != winner:
                reason = f"reply is {sign[0]}, most clients sent {winner[0]}"
                self.rejected += [(client, reason) for kept in group for client in kept.ids.tolist()]
        group = self._kept[winner]
        values = [kept.value for kept in group]
        value = merge_sums(values) if self.verb == "sum" else concat(values)
        ids = torch.cat([kept.ids for kept in group])
        return Part(ids, value, self.rejected, self.bytes_up), [write for kept in group for write in kept.writes]


def _of_one_form(slot: Slot) -> Tree:
    """What must agree between the clients that write a slot; along examples, their number may differ."""
    skip = 1 if slot.along is None else 2
    return {f"along {slot.along}": map_tensors(lambda leaf: leaf.new_empty(leaf.shape[skip:]), slot.value)}


def _slot_at(slot: Slot, which: Tensor) -> Slot:
    return Slot(_rows_at(slot.value, which), _rows_at(slot.present, which), slot.along)


def _rows_at(rows: Tree, which: Tensor) -> Tree:
    return map_tensors(lambda leaf: leaf[which.to(leaf.device)], rows)


def _rows_differ(rows: Shares[Any]) -> bool:
    return any(leaf.dim() < 2 or leaf.shape[1] != rows.weight.shape[1] for leaf in leaves(rows.value))
