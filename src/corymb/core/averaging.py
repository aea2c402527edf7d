"""How the server averages replies: by the mean, which is added up as replies arrive, or by a robust reduction of rows.

This is shared by all algorithms: they declare which models replies start from (`Cohort.near`), and the federation
averages inside each cluster with its `reduction`. Anything but the plain mean needs every client's reply separately:
memory holds n models instead of k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from corymb.core.client import Share, Shares
from corymb.core.guard import Near
from corymb.core.reductions import centred_clipping, geometric_median, krum, median, multi_krum, trimmed_mean
from corymb.core.sums import Sums, add_up
from corymb.settings import InvalidInput, require
from corymb.trees import Params, Tree

Aggregate = Literal["mean", "trimmed", "median", "geometric-median", "krum", "multi-krum", "centred-clipping"]
"""The names of reductions."""
TOLERATED = 0.25
"""The fraction of a cluster's replies that `trimmed`, `krum` and `multi-krum` take to be bad; the number is rounded
down."""
WEISZFELD = 32
"""Weiszfeld steps for a geometric median."""
CLIPPINGS = 3
"""Steps of centred clipping."""


@dataclass(frozen=True)
class Reduction:
    """A reduction of a cluster's replies, with an optional clipping length."""

    aggregate: Aggregate = "mean"
    clip: float | None = None
    """Longer updates are first scaled down to this length."""
    tolerated: float = TOLERATED
    """The fraction of a cluster's replies that may be bad."""

    @property
    def by_rows(self) -> bool:
        """Whether every reply is needed separately."""
        return self.aggregate != "mean" or self.clip is not None

    def sums(self, rows: Tree, near: Near) -> Sums[Tree]:
        """Stacked replies as sums whose mean is the reduction; a sum's weight is that of the replies that enter it."""
        if not isinstance(rows, (Share, Shares)):
            raise TypeError(f"replies are {type(rows).__name__}s: only Share and Shares can be averaged")
        starts = {name: _started(rows, near, name) for name in near.models}
        moved = {name: rows.value[name] - start for name, start in starts.items()}
        if self.clip is not None:
            factor = (self.clip / _length(moved, rows).clamp_min(self.clip)).to(rows.weight)
            moved = {name: value * _led(factor, value) for name, value in moved.items()}
        value = {**rows.value, **{name: starts[name] + moved[name] for name in moved}}
        plain = add_up(rows._replace(value=value))
        if self.aggregate == "mean":
            return plain
        several = isinstance(rows, Shares) or bool(((rows.weight > 0).sum(1) > 1).any() and near.by is None)
        require(
            near.apart or not several,
            f"aggregate={self.aggregate!r} needs clients that belong to one cluster each: leave it at 'mean' with soft "
            "clusters, or clip.",
        )
        return plain._replace(total={**plain.total, **self._totals(starts, moved, rows)})

    def within(self, rows: Params, labels: Tensor, starts: Params) -> Params:
        """The reduction of each group's rows, which started at that group's row of `starts`; empty groups keep it."""
        k = len(next(iter(starts.values())))
        weight = torch.nn.functional.one_hot(labels, k).to(next(iter(rows.values())))
        return self.sums(Share(rows, weight), Near(starts)).mean(empty=starts)

    def _totals(self, starts: Params, moved: Params, replies: Share[Tree] | Shares[Tree]) -> Params:
        """For each sum, its weight times the reduction of the replies that enter it."""
        weight, own = replies.weight, isinstance(replies, Shares)
        lead = weight.shape if own else weight.shape[:1]
        flat = torch.cat([value.reshape(*lead, -1) for value in moved.values()], dim=-1)
        origin = torch.cat([start.reshape(*lead, -1) for start in starts.values()], dim=-1)
        found = []
        for j in range(weight.shape[1]):
            members = (weight[:, j] > 0).nonzero().flatten()
            if not len(members):
                found.append(flat.new_zeros(flat.shape[-1]))
                continue
            update, started = (flat[members, j], origin[members, j]) if own else (flat[members], origin[members])
            # Replies to one sum share a start unless they start from mixtures: then reduce around the mean start.
            centre = started[0] if bool((started == started[0]).all()) else started.mean(0)
            reduced = centre + self._reduced(update + started - centre)
            found.append(reduced * weight[:, j].sum().to(reduced))
        rows = torch.stack(found)
        shapes = {name: value.shape[len(lead) :] for name, value in moved.items()}
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
                return geometric_median(updates, smoothing=1e-6 * least, steps=WEISZFELD)
            case "krum":
                return krum(updates, f)
            case "multi-krum":
                return multi_krum(updates, f)
            case "centred-clipping":
                return centred_clipping(updates, radius=least, steps=CLIPPINGS)
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


def _length(moved: Params, rows: Share[Tree] | Shares[Tree]) -> Tensor:
    lead = 2 if isinstance(rows, Shares) else 1
    squares = [
        value.flatten(lead).square().sum(lead) if value.dim() > lead else value.square() for value in moved.values()
    ]
    return torch.stack([square.double() for square in squares]).sum(0).sqrt()


def _led(factor: Tensor, value: Tensor) -> Tensor:
    return factor.reshape(*factor.shape, *[1] * (value.dim() - factor.dim())).to(value)
