"""The rules a reply must meet to count, from a client or from a host: first its form, then its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from corymb.core.client import Share, Shares, Slot
from corymb.core.engine import Part, Verb
from corymb.core.sums import Sums
from corymb.trees import Signature, Tree, flatten, leaves, map_tensors, nbytes, on_cpu, signature, unflatten

MAX_MAGNITUDE = 1e15
"""Largest magnitude that may be summed, per unit of weight: no model has it, and it would swamp the other clients."""
ROUNDING_TOLERANCE = 1 + 1e-6


class Flags(NamedTuple):
    """Rows of stacked replies that cannot count, by reason, from checks other than those of their values."""

    bad: list[Tensor]  # n each
    reasons: list[str]
    first: int
    """How many of the reasons take precedence over faults of values."""


def flag_rows(rows: Tree, sizes: Tensor) -> Flags:
    """Check everything but the values, on the replies' device and without synchronising.

    `sizes` are the clients' numbers of examples. Replies that are not added up consist of values only.
    """
    if not isinstance(rows, (Share, Shares)):
        return Flags([], [], 0)
    faults = list(_not_finite(rows[1:]))
    first, most = len(faults), sizes.clamp_min(1).to(rows.weight)[:, None] * ROUNDING_TOLERANCE
    faults.append(((rows.weight < 0).any(1), "weight is negative"))
    faults.append(((rows.weight > most).any(1), "weight is more than the client's size allows"))
    if rows.label is not None:
        faults.append((_outside(rows.label, rows.weight.shape[1]), _out_of_range(rows.weight.shape[1])))
    return Flags([bad for bad, _ in faults], [reason for _, reason in faults], first)


def row_faults(rows: Tree, flags: Flags, at_most: Tensor | None = None) -> dict[int, str]:
    """The rows of stacked replies that cannot count, each with a reason; `flags` is the result of `flag_rows`.

    `at_most`: an upper bound on the magnitude of each row's values, if known (`guard.largest_possible`).
    """
    values = list(_value_faults(rows, at_most) if isinstance(rows, (Share, Shares)) else _not_finite(rows))
    reasons = [*flags.reasons[: flags.first], *(reason for _, reason in values), *flags.reasons[flags.first :]]
    bad = on_cpu([*flags.bad[: flags.first], *(bad for bad, _ in values), *flags.bad[flags.first :]])
    found: dict[int, str] = {}
    for flag, reason in zip(bad, reasons, strict=True):
        for row in flag.nonzero().flatten().tolist() if bool(flag.any()) else ():
            found.setdefault(row, reason)
    return dict(sorted(found.items()))


def _value_faults(rows: Share[Tree] | Shares[Tree], at_most: Tensor | None) -> Iterator[tuple[Tensor, str]]:
    kind = rows.weight.dtype  # integers are summed in the weight's dtype
    numbers = [leaf if leaf.is_floating_point() else leaf.to(kind) for leaf in leaves(rows.value) if leaf.numel()]
    if at_most is not None and bool((at_most <= max_summable(rows.value)).all()):
        return  # the bound rules out any fault; scanning all values would cost as much as adding them up
    largest = [_largest(leaf) for leaf in numbers]
    for most_of_row in largest:
        yield ~(most_of_row < torch.inf), "value is not finite"
    for leaf, most_of_row in zip(numbers, largest, strict=True):
        yield ~(most_of_row <= _bound(leaf)) & (rows.weight.amax(1) > 0), "value is too large to be added up"


class SumFlags(NamedTuple):
    """Faults of partial sums, by reason."""

    bad: list[Tensor]
    reasons: list[str]

    @property
    def fault(self) -> str | None:
        """The first reason that applies, or None. Synchronises with the device."""
        return next((reason for bad, reason in zip(on_cpu(self.bad), self.reasons, strict=True) if bool(bad)), None)


def flag_sums(sums: Sums[Tree], sizes: Tensor) -> SumFlags:
    """Check a partial sum over clients of these sizes, on its device and without synchronising."""
    faults = list(_sums_faults(sums, sizes))
    return SumFlags([bad.any() for bad, _ in faults], [reason for _, reason in faults])


def max_summable(value: Tree) -> float:
    """The largest magnitude that every tensor of a summed reply may have."""
    return min((_bound(leaf) for leaf in leaves(value) if leaf.is_floating_point()), default=MAX_MAGNITUDE)


def sums_fault(sums: Sums[Tree], sizes: Tensor) -> str | None:
    """Why a partial sum over clients of these sizes cannot count, or None; it must meet the same rules as rows."""
    return flag_sums(sums, sizes).fault


def _sums_faults(sums: Sums[Tree], sizes: Tensor) -> Iterator[tuple[Tensor, str]]:
    yield from _not_finite((sums.label, sums.note))
    k, weight = len(sums.weight), sums.weight.double()
    yield ~(weight.abs() < torch.inf), "value is not finite"
    yield weight < 0, "weight is negative"
    yield weight > float(sizes.clamp_min(1).sum()) * ROUNDING_TOLERANCE, "weight is more than its clients' sizes allow"
    numbers = [leaf for leaf in leaves(sums.total) if leaf.is_floating_point() and leaf.numel()]
    if numbers:
        largest = torch.stack([_largest(leaf) for leaf in numbers]).double()
        yield ~(largest < torch.inf), "value is not finite"
        yield (
            largest > weight.to(largest.device) * MAX_MAGNITUDE * ROUNDING_TOLERANCE,
            "total is larger than its weight allows",
        )
    if sums.label is not None:
        yield _outside(sums.label, k), _out_of_range(k)


def _not_finite(rows: Tree) -> Iterator[tuple[Tensor, str]]:
    for leaf in leaves(rows):
        if leaf.is_floating_point() and leaf.numel():
            yield ~(_largest(leaf) < torch.inf), "value is not finite"


def _largest(rows: Tensor) -> Tensor:
    """The largest magnitude in every row; NaN propagates, and neither it nor infinity is below infinity.

    `isfinite` of every entry takes far longer; even of the result it takes five operations instead of two.
    """
    flat = rows.reshape(len(rows), -1)
    if flat.device.type != "cpu":
        largest: Tensor = torch.linalg.vector_norm(flat, torch.inf, dim=1)
        return largest
    return torch.maximum(flat.amax(1), -flat.amin(1))


def _bound(leaf: Tensor) -> float:
    return min(MAX_MAGNITUDE, torch.finfo(leaf.dtype).max)


def _out_of_range(k: int) -> str:
    return f"label is out of range for {k} cluster{'s' * (k != 1)}"


def _outside(label: Tensor, k: int) -> Tensor:
    flat = label.flatten(1) if label.dim() > 1 else label[:, None]
    return ((flat < 0) | (flat >= k)).any(1)


SENDABLE_DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)
"""The dtypes allowed in a reply. Others cannot be checked, or cannot be added up."""


def kind_problem(tree: Tree) -> str | None:
    """Why tensors of a reply are of an unsupported kind (sparse, complex, quantised, meta), or None."""
    for leaf in leaves(tree):
        kind = _odd_kind(leaf)
        if kind:
            return f"holds {kind}: wanted dense tensors of plain numbers"
    return None


def _odd_kind(leaf: Tensor) -> str:
    if type(leaf) not in (Tensor, torch.nn.Parameter):
        return f"a {type(leaf).__name__}"
    if leaf.is_nested:
        return "a nested tensor"
    if leaf.layout != torch.strided:
        return "a sparse tensor"
    if leaf.device.type == "meta":
        return "a meta tensor"
    return "" if leaf.dtype in SENDABLE_DTYPES else f"numbers of type {str(leaf.dtype).removeprefix('torch.')}"


def rows_problem(rows: Tree, verb: Verb) -> str | None:
    """What is wrong with the form of stacked replies, independently of other replies; None if nothing."""
    if problem := kind_problem(rows):
        return f"reply {problem}"
    if not isinstance(rows, (Share, Shares)):
        kind = "nothing" if rows is None else f"a {type(rows).__name__}"
        return f"reply is {kind}, `sum` wants a Share or Shares: Share(model, weight=...)" if verb == "sum" else None
    weight, label = cast(Tree, rows.weight), cast(Tree, rows.label)  # whatever the client sent
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.shape[1] or not weight.is_floating_point():
        return f"weight is {_form(weight)}, wanted [k] of floating point"
    if problem := _label_problem(label):
        return problem
    k = weight.shape[1]
    if any(leaf.shape[:1] != weight.shape[:1] for leaf in leaves((rows.value, label, rows.note))):
        return "the reply's number of rows differs from that of its weights"
    if isinstance(rows, Shares) and any(leaf.dim() < 2 or leaf.shape[1] != k for leaf in leaves(rows.value)):
        return "value does not have one row for each weight"
    return None


def part_problem(part: Part, verb: Verb) -> str | None:
    """What is wrong with the form of a part, independently of other parts; None if nothing."""
    n = len(part.ids)
    if problem := kind_problem(part.value):
        return f"part {problem}"
    if verb == "sum":
        sums = part.value
        if not isinstance(sums, Sums) or not isinstance(cast(Tree, sums.weight), Tensor):
            return f"part is a {type(sums).__name__}, wanted Sums"
        if not sums.weight.is_floating_point():
            return f"weight is {_form(sums.weight)}, wanted [k] of floating point"
        if problem := _label_problem(cast(Tree, sums.label)):
            return problem
        if sums.weight.dim() != 1 or any(leaf.shape[:1] != sums.weight.shape for leaf in leaves(sums.total)):
            return "the part's number of sums differs from that of its weights"
    if any(rows.shape[:1] != (n,) for rows in _rows_of(part, verb)):
        return "the part's number of rows differs from that of its clients"
    return rows_problem(part.value, verb) if verb == "map" else None


def _label_problem(label: Tree) -> str | None:
    if label is None:
        return None
    if not isinstance(label, Tensor):
        return f"label is a {type(label).__name__}, wanted a tensor"
    return None if label.dim() and not label.is_floating_point() else f"label is {_form(label)}, wanted integers"


def _form(value: Tree) -> str:
    return str(signature(value, rows=True)) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _rows_of(part: Part, verb: Verb) -> list[Tensor]:
    return leaves((part.value.label, part.value.note) if verb == "sum" else part.value)


def part_signature(part: Part, verb: Verb) -> Signature:
    """What must agree between parts for them to be merged."""
    if verb == "map":
        return signature(part.value, rows=True)
    flat, structure = flatten(part.value)
    rows = {id(leaf) for leaf in _rows_of(part, verb)}
    return signature(unflatten(structure, [leaf[:0] if id(leaf) in rows else leaf for leaf in flat]))


def slot_form(slot: Slot) -> Tree:
    """What must agree between clients that write a slot; in slots along examples, the number of rows may differ."""
    skip = 1 if slot.along is None else 2
    return {f"along {slot.along}": map_tensors(lambda leaf: leaf.new_empty(leaf.shape[skip:]), slot.value)}


def part_bytes(part: Part, verb: Verb) -> int:
    """The bytes that the clients of a part sent: the sizes of their own messages, even if a host added them up."""
    if verb == "map":
        return nbytes(part.value)
    sums, n = part.value, len(part.ids)
    k = len(sums.weight)
    value = nbytes(sums.total) if part.spread else nbytes(sums.total) // max(k, 1)
    return n * (value + nbytes(sums.weight)) + nbytes((sums.label, sums.note))
