"""The area under the ROC curve: exact from examples, or with a known error from histograms that can be summed."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.objectives.measures import mean_where, ratio

CELLS = 2048
"""Bins of all classes' histograms together."""
FEWEST_BINS = 32
FARTHEST, NEAR = 745.0, 0.01
"""Log odds farther than FARTHEST from a class's usual ones fall into the outermost bins; up to about NEAR from them,
bins have equal width."""


def areas(score: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """The share of pairs of a positive and a negative example in which the positive has the higher score: m c -> c.

    Ties count half. `positive` and `negative` are weights; a column that lacks either gets 0.
    """
    if not len(score):
        return score.sum(0)
    order = score.argsort(0)
    score, positive, negative = (torch.take_along_dim(rows, order, 0) for rows in (score, positive, negative))
    through = negative.cumsum(0)
    new, edge = score[1:] != score[:-1], torch.ones_like(score[:1], dtype=torch.bool)
    below = torch.where(torch.cat([edge, new]), through - negative, -1).cummax(0).values
    up_to = torch.where(torch.cat([new, edge]), through, torch.inf).flip(0).cummin(0).values.flip(0)
    return ratio((positive * (below + up_to) / 2).sum(0), positive.sum(0) * negative.sum(0))


def bins_for(classes: int) -> int:
    """The number of bins of each class."""
    return max(FEWEST_BINS, CELLS // classes)


def histogram(log_odds: Tensor, usual: Tensor, positive: Tensor, negative: Tensor, bins: int) -> Tensor:
    """The weights of positive and of negative examples in bins of the log odds: m c -> c 2 bins.

    Bins widen in proportion to the distance from the `usual` log odds of a class (c). They resolve the probabilities of
    a weak model, which all lie close to the usual ones, as well as those of a model that is nearly certain.
    """
    columns = log_odds.shape[1]
    away = ((log_odds - usual).clamp(-FARTHEST, FARTHEST) / NEAR).asinh() / math.asinh(FARTHEST / NEAR)
    place = ((away + 1) / 2 * bins).long().clamp(0, bins - 1)
    start = 2 * bins * torch.arange(columns, device=log_odds.device)
    where = torch.cat([(place + start).flatten(), (place + start + bins).flatten()])
    weight = torch.cat([positive.flatten(), negative.flatten()]).float()  # counts: exact up to 16 million per bin
    return weight.new_zeros(2 * bins * columns).scatter_add(0, where, weight).reshape(columns, 2, bins)


class Area(NamedTuple):
    """The mean over classes of the area under the curve, and a bound on its error."""

    value: float
    error: float


def binned_area(counts: Tensor) -> Area | None:
    """The area from histograms (c 2 bins), with examples in one bin as ties; None if no class has both kinds.

    The exact area differs by at most half the share of ties among all pairs.
    """
    positive, negative = counts[:, 0], counts[:, 1]
    pairs = positive.sum(-1) * negative.sum(-1)
    if not bool((pairs > 0).any()):
        return None
    below = negative.cumsum(-1) - negative
    half = negative / 2
    exact, tied = (ratio((positive * rows).sum(-1), pairs) for rows in (below, half))
    return Area(float(mean_where(exact + tied, pairs > 0)), float(mean_where(tied, pairs > 0)))
