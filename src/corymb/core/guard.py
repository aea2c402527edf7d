"""Bounds how far a reply may be from the model its client was sent, relative to the other clients' replies.

An honest client's update is about as long as the others'. A much longer one is refused and its client named, so that
it never enters a sum. The bound is a multiple of the median length. It is wider if the interquartile range of lengths
is wide, if there are few clients to compare with, if several clients move equally far, and for clients with more
examples, which may take more steps. It does not depend on the order of arrival: lengths are rounded to steps of a
fourth root of 2 (`levels`), and sums are kept separately for each level until all lengths are known.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Share, Shares
from corymb.core.lengths import Deviations, Lengths, Near, model_lengths, only_sum, row_lengths, values_of
from corymb.core.sums import type_of_sum
from corymb.trees import Params, Tree

LEVELS_PER_DOUBLING = 4
"""Levels of length per factor of 2."""
MAX_TIMES_MEDIAN = 2.8
"""An update may be this many times as long as the median of the others (one client of ten that moves three times as far
backwards already costs its cluster a point or two of accuracy)."""
SMALL_GROUP_FACTOR = 30.0
"""With few others, MAX_TIMES_MEDIAN is multiplied by 1 + SMALL_GROUP_FACTOR / others³ (about 2 for three others, 1.04
for nine)."""
FENCE_WIDTH = 5.0
"""An update is also accepted up to the upper quartile of the others plus this many interquartile ranges: a wide Tukey
fence."""
MAX_SIZE_ALLOWANCE = 10.0 / MAX_TIMES_MEDIAN
"""Upper limit of the extra length allowed to a client in proportion to its number of examples: it may take more steps.
"""
FEW_CLIENTS = 5
"""Up to this many clients there is too little to compare with: only updates longer than MAX_TIMES_MEDIAN_WITH_PEERS
times the median are refused. With five stocks as clients, one with a far higher price is not a bad client."""
MAX_TIMES_MEDIAN_WITH_PEERS = 30.0
"""Up to this multiple of the median, updates of about the same length as another are accepted. All clients of a small
cluster are far from a model trained for others, and a rule against a single bad client must not exclude them. This also
covers clients whose lengths rise gradually (California among 48 states)."""
SIMILAR_RATIO = 2.0
"""Two updates are of about the same length if neither is more than this many times the other."""
NEGLIGIBLE_FRACTION = 1e-3
"""An update shorter than this fraction of the model's length is always accepted: near the optimum the others are tiny.
"""
ALONE_FACTOR = 100.0
"""A client alone in its cluster may move this many times farther: it affects nobody else's model."""
MAX_PAIR_RATIO = 10.0
"""In a cluster of two, the longer update may be this many times the shorter, if that exceeds the general bound."""
LOOSE_FACTOR = 1000.0
"""The refused multiple of the median (or of the models' length) for loose bounds and for sums that start from no model.
"""
ROUNDING_TOLERANCE = 1 + 1e-4
"""Tolerance of an absolute bound (`Near.most`) for rounding in low precision."""
UNBOUNDED_LEVEL = 2**31
"""A level above every length."""


def largest_possible(
    rows: Tree,
    near: Near | None,
    lengths: Lengths,
    models: Tensor | None = None,
    weight: Tensor | None = None,
    extra: float = MAX_SIZE_ALLOWANCE,
) -> Tensor | None:
    """An upper bound on the magnitude of each row's values, from its distance to where it started: n.

    `models` are the lengths of the models in `near`, and `weight` the rows' weights on the CPU, if known; `extra` is
    the most that `Lengths.allowing` divided by. None if lengths give no bound. NaN propagates.
    """
    length = 2 * extra * lengths.length  # the factor 2 is far more than rounding in float32 needs
    if not isinstance(rows, Share) or not isinstance(rows.value, dict):
        return None
    if near is None:
        return length
    if rows.value.keys() != near.models.keys():
        return None
    by = (rows.weight if weight is None else weight) if near.by is None else near.by
    between = (by >= 0).all(1).cpu() | (only_sum(by) >= 0)  # an affine mixture of models could have any length
    models = model_lengths(near.models) if models is None else models
    return torch.where(between, length + 2 * models.amax(), math.inf)


def misfit(rows: Tree, near: Near, *, summed: bool = False) -> str | None:
    """Why stacked replies or sums do not have the models' form (the same tensors, and k sums), or None.

    The form of most clients is not enough if few are asked: all members of a small cluster may be bad.
    """
    value, models = (rows.total if summed else values_of(rows)), near.models
    lead, k = (2 if isinstance(rows, Shares) else 1), len(next(iter(models.values()), ()))
    if (summed or isinstance(rows, (Share, Shares))) and rows.weight.shape[-1] != k:
        return f"reply has weights for {rows.weight.shape[-1]} sums, but there are {k} models"
    for name, start in models.items():
        found = value.get(name) if isinstance(value, dict) else None
        if not isinstance(found, Tensor):
            return f"reply lacks {name!r}, which the model has"
        kind = type_of_sum(start.dtype, rows.weight.dtype) if summed else start.dtype
        one, other = (found.dtype, list(found.shape[lead:])), (kind, list(start.shape[1:]))
        if one != other:
            forms = (f"{str(dtype).removeprefix('torch.')}{shape}" for dtype, shape in (one, other))
            return "{!r} of the reply is {}, of the model {}".format(name, *forms)
    named = not summed and not isinstance(rows, dict) and not hasattr(rows, "value")
    more = next((name for name in value if name not in models), None)
    if more is None or near.apart or named:  # other fields of a named tuple are not models
        return None
    return f"reply has {str(more)[:80]!r}, which the model lacks"


def levels(lengths: Tensor) -> Tensor:
    """Lengths on a logarithmic scale with `LEVELS_PER_DOUBLING` per factor of 2, rounded down: n."""
    return (LEVELS_PER_DOUBLING * lengths.clamp_min(1e-300).log2()).floor().long()


class Bounds(NamedTuple):
    """The highest accepted level, in general and by sum, and the usual (median) length."""

    everybody: int
    by_group: dict[int, int]
    usual: float

    def over(self, level: Tensor, group: Tensor) -> Tensor:
        """Which replies are too far."""
        most = torch.full_like(level, self.everybody)
        for number, most_of_group in self.by_group.items():
            most[group == number] = most_of_group
        return level > most

    def reason(self, length: float) -> str:
        """Why a reply is refused."""
        times = length / self.usual if self.usual > 0 else math.inf
        return f"update is {times:.3g} times as long as is usual"


def bounds(found: Lengths, near: Near | None, models: Tensor | None = None) -> Bounds:
    """The bounds on length that follow from the lengths of all replies.

    `models` are the lengths of the models in `near`, if known.
    """
    length, group = found
    if near is not None and near.most is not None:
        return Bounds(_level(near.most * ROUNDING_TOLERANCE), {}, near.most)
    models = model_lengths(near.models) if models is None and near is not None else models
    negligible = 0.0 if models is None else NEGLIGIBLE_FRACTION * float(models.amax())
    moved = _moved(length)
    usual = _quantile(moved[:-1], 0.5)
    if near is None or near.loose:
        size = 0.0 if models is None else _quantile(models.sort().values, 0.5)
        return Bounds(_level(LOOSE_FACTOR * max(usual, size)), {}, usual)
    most = max(_most(moved), negligible)
    most = max(most, MAX_TIMES_MEDIAN_WITH_PEERS * usual) if near.handful else most
    by_group, numbers = {}, group.unique().tolist()
    for number in numbers if len(numbers) > 1 or len(length) < 3 else ():  # one group of all has the general bound
        members = length[group == number]
        if number >= 0:
            few = ALONE_FACTOR * most if len(members) == 1 else MAX_PAIR_RATIO * float(members.amin())
            by_group[number] = _level(max(most, few if len(members) < 3 else _most(_moved(members))))
    return Bounds(_level(most), by_group, usual)


def clearly_near(found: Deviations, near: Near | None, larger: Tensor, max_value: float) -> Tensor | None:
    """Whether lengths alone show that no reply is too far and no value above `max_value` (a bool on their device).

    They do if every reply moved, started from one model, and the longest is within `MAX_TIMES_MEDIAN` medians, which
    every bound allows: then neither bounds nor values need be checked. None if this test does not apply. `larger` is as
    in `Lengths.allowing`.
    """
    usual = near is not None and near.by is None and near.most is None and not near.loose
    if not usual or found.models is None or len(larger) < 3:
        return None
    weight = found.weight
    allowed = larger.clamp(1, MAX_SIZE_ALLOWANCE).to(found.squares.device, non_blocking=True)
    ascending = (found.squares.sum(0).sqrt() / allowed).sort().values
    longest, middle = ascending[-1], ascending[(len(ascending) - 1) // 2]  # the median of the others
    one_model = ((weight > 0).sum(1) == 1).all() & (weight >= 0).all()
    fits = (
        2 * MAX_SIZE_ALLOWANCE * longest + 2 * found.models.square().sum(0).sqrt().amax() <= max_value
    )  # as in `largest_possible`
    return one_model & fits & (ascending[0] > 0) & (longest <= MAX_TIMES_MEDIAN * middle)


def too_far(found: Lengths, near: Near | None, models: Tensor | None = None) -> tuple[Tensor, Bounds] | None:
    """A mask of the replies that are too far, and the bounds; None if no reply is."""
    limit = bounds(found, near, models)
    far = limit.over(levels(found.length), found.group)
    return (far, limit) if bool(far.any()) else None


def longest_accepted(rows: Params, start: Params) -> float | None:
    """The longest update accepted from a client that answers after these; None if none of these moved."""
    found = row_lengths(rows, Near(start), len(next(iter(rows.values()))))
    lengths = torch.zeros(0) if found is None else found.length
    if not bool((lengths > 0).any()):
        return None
    return max(MAX_TIMES_MEDIAN * _quantile(_moved(lengths)[:-1], 0.5), SIMILAR_RATIO * float(lengths.max()))


def _most(moved: Tensor) -> float:
    """The longest accepted one of these ascending lengths, judged by all but the longest."""
    rest = moved[:-1]
    if len(rest) < 2:  # with two clients, either may be the outlier
        return math.inf
    low, middle, high = (_quantile(rest, part) for part in (0.25, 0.5, 0.75))
    most = max(MAX_TIMES_MEDIAN * (1 + SMALL_GROUP_FACTOR / len(rest) ** 3) * middle, high + FENCE_WIDTH * (high - low))
    below = int((moved <= most).sum())  # lengths that are accepted; the last of them is where an extension starts
    ascending: list[float] = moved[
        max(0, below - 1) : int((moved <= MAX_TIMES_MEDIAN_WITH_PEERS * middle).sum())
    ].tolist()
    for shorter, longer in pairwise(ascending):  # extend to lengths about as long as an accepted one
        most = longer if shorter <= most < longer <= SIMILAR_RATIO * shorter else most
    beyond = [length for length in ascending if length > most]
    similar = [longer for shorter, longer in pairwise(beyond) if longer <= SIMILAR_RATIO * shorter]
    return max([most, *similar])


def _moved(lengths: Tensor) -> Tensor:
    """All lengths but zeros, ascending: clients that did not move may have no examples."""
    return lengths[lengths > 0].sort().values


def _quantile(ascending: Tensor, part: float) -> float:
    """The nearest-rank quantile: without interpolation, a huge length cannot distort it."""
    return float(ascending[int(part * (len(ascending) - 1) + 0.5)]) if len(ascending) else 0.0


def _level(length: float) -> int:
    """The level of a bound; `UNBOUNDED_LEVEL` if there is nothing to compare with: no other client, or none moved."""
    return int(levels(torch.tensor(length, dtype=torch.float64))) if 0 < length < math.inf else UNBOUNDED_LEVEL
