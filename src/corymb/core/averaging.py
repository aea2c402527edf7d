"""How the server averages replies: by the mean, which is added up as replies arrive, or by a robust reduction of rows.

This is shared by all algorithms: they declare which models replies start from (`Cohort.near`), and the federation
averages inside each cluster with its `reduction`. Anything but the plain mean needs every client's reply separately:
memory holds n models instead of k.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from corymb.core.client import Share, Shares
from corymb.core.lengths import Near
from corymb.core.reductions import centred_clipping, geometric_median, krum, median, multi_krum, trimmed_mean
from corymb.core.sums import Sums, add_up
from corymb.settings import InvalidInput, require
from corymb.trees import Params, Tree, align_leading

Aggregate = Literal["mean", "trimmed", "median", "geometric-median", "krum", "multi-krum", "centred-clipping"]
"""The names of reductions."""
BAD_FRACTION = 0.25
"""The fraction of a cluster's replies that `trimmed`, `krum` and `multi-krum` take to be bad; the number is rounded
down."""
WEISZFELD_STEPS = 32
"""Weiszfeld steps for a geometric median."""
CLIPPING_STEPS = 3
"""Steps of centred clipping."""


@dataclass(frozen=True)
class Reduction:
    """A reduction of a cluster's replies, with an optional clipping length."""

    aggregate: Aggregate = "mean"
    clip: float | None = None
    """Longer updates are first scaled down to this length."""
    tolerated: float = BAD_FRACTION
    """The fraction of a cluster's replies that may be bad."""

    @property
    def by_rows(self) -> bool:
        """Whether every reply is needed separately."""
        return self.aggregate != "mean" or self.clip is not None

    def sums(self, rows: Tree, near: Near) -> Sums[Tree]:
        """Stacked replies as sums whose mean is the reduction; a sum's weight is that of the replies that enter it."""
        if not isinstance(rows, (Share, Shares)):
            raise TypeError(f"replies are {type(rows).__name__}s: only Share and Shares can be averaged")
        factor = None if self.clip is None else _shortening(rows, near, self.clip)
        plain = add_up(rows._replace(value={name: rows.value[name] for name in rows.value if name not in near.models}))
        if self.aggregate == "mean":
            total = {name: _clipped_sum(rows, near, name, factor) for name in near.models}
            return plain._replace(total={**plain.total, **total})
        several = isinstance(rows, Shares) or bool(((rows.weight > 0).sum(1) > 1).any() and near.by is None)
        require(
            near.apart or not several,
            f"aggregate={self.aggregate!r} needs clients that belong to one cluster each: leave it at 'mean' with soft "
            "clusters, or clip.",
        )
        return plain._replace(total={**plain.total, **self._totals(rows, near, factor)})

    def within(self, rows: Params, labels: Tensor, starts: Params) -> Params:
        """The reduction of each group's rows, which started at that group's row of `starts`; empty groups keep it."""
        k = len(next(iter(starts.values())))
        weight = torch.nn.functional.one_hot(labels, k).to(next(iter(rows.values())))
        return self.sums(Share(rows, weight), Near(starts)).mean(empty=starts)

    def _totals(self, replies: Share[Tree] | Shares[Tree], near: Near, factor: Tensor | None) -> Params:
        """For each sum, its weight times the reduction of the replies that enter it."""
        weight, lead = replies.weight, 2 if isinstance(replies, Shares) else 1
        shapes = {name: replies.value[name].shape[lead:] for name in near.models}
        width, found = sum(shape.numel() for shape in shapes.values()), []
        for j in range(weight.shape[1]):
            members = (weight[:, j] > 0).nonzero().flatten()
            if not len(members):
                found.append(next(iter(near.models.values())).new_zeros(width))
                continue
            updates, centre = _updates(replies, near, factor, members, j)
            reduced = centre + self._reduced(updates)
            found.append(reduced * weight[:, j].sum().to(reduced))
        rows = torch.stack(found)
        parts = rows.split([shape.numel() for shape in shapes.values()], dim=1)
        return {name: part.reshape(len(found), *shapes[name]) for name, part in zip(shapes, parts, strict=True)}

    def _reduced(self, updates: Tensor) -> Tensor:
        f = int(self.tolerated * len(updates) + 1e-9)
        usual = float(updates.norm(dim=1).sort().values[(len(updates) - 1) // 2])
        least = max(usual, torch.finfo(updates.dtype).tiny)
        match self.aggregate:
            case "median":
                return median(updates)
            case "trimmed":
                return trimmed_mean(updates, f)
            case "geometric-median":
                return geometric_median(updates, smoothing=1e-6 * least, steps=WEISZFELD_STEPS)
            case "krum":
                return krum(updates, f)
            case "multi-krum":
                return multi_krum(updates, f)
            case "centred-clipping":
                return centred_clipping(updates, radius=least, steps=CLIPPING_STEPS)
        raise InvalidInput(f"aggregate is {self.aggregate!r}: wanted one of {', '.join(get_args(Aggregate))}.")


class HasAveraging(Protocol):
    """An algorithm with averaging settings."""

    @property
    def aggregate(self) -> Aggregate: ...
    @property
    def clip(self) -> float | None: ...


def reduction_of(algorithm: HasAveraging) -> Reduction:
    """The reduction given by an algorithm's settings."""
    return Reduction(algorithm.aggregate, algorithm.clip)


def check_averaging(algorithm: HasAveraging) -> None:
    """Raise InvalidInput unless `clip` is None or a positive finite length."""
    clip = algorithm.clip
    require(clip is None or 0 < clip < torch.inf, f"clip must be positive and finite, got {clip}.")


def _started(rows: Share[Tree] | Shares[Tree], near: Near, name: str) -> Tensor:
    """One parameter of the model that each reply started from: n ..., or n k ... for `Shares`."""
    value, start = rows.value[name], near.models[name].to(rows.value[name])
    if isinstance(rows, Shares):
        return start.expand_as(value)
    by = (rows.weight if near.by is None else near.by).to(value)
    share = by / by.sum(1, keepdim=True).clamp_min(torch.finfo(by.dtype).tiny)
    if bool(((by > 0).sum(1) == 1).all()):
        return start[by.argmax(1)]  # exact, whatever the weight
    mixed: Tensor = torch.tensordot(share, start, dims=1)
    return mixed


def _shortening(rows: Share[Tree] | Shares[Tree], near: Near, clip: float) -> Tensor:
    """The factor, at most 1, by which each update is shortened: n, or n k for `Shares`."""
    length = torch.stack([_squares(rows, near, name) for name in near.models]).sum(0).sqrt()
    return (clip / length.clamp_min(clip)).to(rows.weight)


def _squares(rows: Share[Tree] | Shares[Tree], near: Near, name: str) -> Tensor:
    """The squared length of each update in one parameter: n, or n k for `Shares`."""
    moved: Tensor = rows.value[name] - _started(rows, near, name)
    lead = 2 if isinstance(rows, Shares) else 1
    return (moved.flatten(lead).square().sum(lead) if moved.dim() > lead else moved.square()).double()


def _clipped_sum(rows: Share[Tree] | Shares[Tree], near: Near, name: str, factor: Tensor | None) -> Tensor:
    """The sums of one parameter, with shortened updates."""
    value = rows.value[name]
    if factor is not None:
        start = _started(rows, near, name)
        value = start + (value - start) * align_leading(factor, value).to(value)
    total: Tensor = add_up(rows._replace(value={name: value})).total[name]
    return total


def _updates(
    replies: Share[Tree] | Shares[Tree], near: Near, factor: Tensor | None, members: Tensor, j: int
) -> tuple[Tensor, Tensor]:
    """The updates of the replies that enter one sum, and the centre that they are relative to: J d, and d.

    Replies to one sum share a start, unless they start from mixtures: then the centre is the mean start. The updates
    are the only copy of all rows: n models are most of the memory.
    """
    own = isinstance(replies, Shares)
    starts = {name: _starts(replies, near, name, members, j).flatten(1) for name in near.models}
    alike = all(len(start) == 1 or bool((start == start[0]).all()) for start in starts.values())
    widths, kinds = [start.shape[1] for start in starts.values()], {start.dtype for start in starts.values()}
    first = next(iter(starts.values()))
    updates = first.new_empty(len(members), sum(widths), dtype=reduce(torch.promote_types, kinds))
    centres = []
    for part, (name, start) in zip(updates.split(widths, dim=1), starts.items(), strict=True):
        value, centre = replies.value[name], start[0] if alike else start.mean(0)
        value = value[members, j] if own else value if len(members) == len(value) else value[members]
        torch.sub(value.reshape(len(members), -1), start, out=part)
        if factor is not None:
            part.mul_((factor[members, j] if own else factor[members])[:, None])
        part.add_(start).sub_(centre)
        centres.append(centre)
    return updates, torch.cat(centres)


def _starts(replies: Share[Tree] | Shares[Tree], near: Near, name: str, members: Tensor, j: int) -> Tensor:
    """One parameter of the models that the replies to a sum started from: a row for each, or one for all."""
    start = near.models[name].to(replies.value[name])
    start = start if start.dim() > 1 else start[:, None]
    if isinstance(replies, Shares):
        return start[j : j + 1]
    by = (replies.weight if near.by is None else near.by)[members].to(start)
    label = by.argmax(1)
    if not bool(((by > 0).sum(1) == 1).all()):
        share = by / by.sum(1, keepdim=True).clamp_min(torch.finfo(by.dtype).tiny)
        mixed: Tensor = torch.tensordot(share, start, dims=1)
        return mixed
    return start[label[:1]] if bool((label == label[0]).all()) else start[label]
