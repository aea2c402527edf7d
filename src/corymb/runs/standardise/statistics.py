"""Merges what clients send into means and scales, and finds the clients that are out of proportion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.engine import each
from corymb.core.federation import Federation
from corymb.core.sums import Sums
from corymb.runs.standardise import (
    FAR,
    NARROW,
    Moments,
    report_dominance,
    report_outlying_targets,
    send_deviations,
    send_means,
)
from corymb.runs.standardise.objective import UNLIMITED, Standard
from corymb.trees import Params

BEYOND = 3.0
"""The same limit for a feature in which a client is out of proportion by far."""
FEW = 0.15
"""At most this fraction of the clients can be excluded together: more of them would not be exceptions."""
REPEATS = 4
"""How often moments are computed again without the clients that dominated a variance."""

Excluded = dict[str, list[int]]
"""Feature indices by client name; the index after the last feature stands for the targets."""


class RobustStandard(NamedTuple):
    """Means and scales, and the clients to report."""

    standard: Standard
    excluded: Excluded
    """Clients that would dominate a variance and are excluded from it."""
    broad: Excluded
    """Clients whose features vary out of all proportion to those of most clients, but are included."""
    narrow: Excluded
    """Clients whose features hardly vary compared with those of most clients."""
    targets: tuple[float, float]
    """The mean of all targets and their standard deviation, whether they are standardised or not."""


class _Statistics(NamedTuple):
    """The statistics of the examples of all included clients together."""

    mean: Moments
    unit: Moments
    """Mean magnitudes: the units of the squares, which keep them near 1."""
    squares: Moments
    """Mean squared deviations from the mean."""
    examples: Moments
    """How many examples count for each feature, and for the targets."""
    replied: Tensor | None
    """Which clients replied, if not all."""

    @property
    def total(self) -> Moments:
        """The sums of squared deviations."""
        return Moments(self.squares.x * self.examples.x, self.squares.y * self.examples.y)

    @property
    def deviations(self) -> Moments:
        """The standard deviations, on the CPU."""
        return Moments(*(_deviation(*pair).cpu() for pair in zip(self.squares, self.unit, strict=True)))


def standard_of(fed: Federation, features: tuple[int, ...], *, targets: bool) -> Standard:
    """Means and standard deviations over the training examples of all clients; with `targets`, of the targets too."""
    return robust_standard(fed, features, targets=targets).standard


def robust_standard(fed: Federation, features: tuple[int, ...], *, targets: bool) -> RobustStandard:
    """Compute the standardisation and the clients out of proportion; the rounds taken are added to the ledger."""
    kept = before = None
    broad, narrow = Excluded(), Excluded()
    extreme = Moments(torch.zeros(math.prod(features), dtype=torch.bool), torch.tensor(False))
    for repeat in range(1 + REPEATS):
        found = _statistics(fed, kept, before)
        before = found.unit
        if repeat == REPEATS:
            break
        replies = fed.clients.map(
            report_dominance, found.mean, found.unit, found.total, found.examples, _to_each(kept), found.replied
        )
        fed.ledger.rounds += 1
        answers = Moments(replies.value.x.cpu(), replies.value.y.cpu() * targets)  # classes have no scale
        over = Moments(answers.x > 0, answers.y > 1)
        if not any(bool(part.any()) for part in over):
            broad, narrow = _other_units(replies.clients.names, replies.value.spread.cpu(), targets=targets)
            far = replies.clients.put(torch.zeros(len(fed.names), dtype=torch.bool), replies.value.far.cpu())
            if targets and (adjusted := _without_few(fed, far, kept or _everybody(fed, over), before)) is not None:
                kept, found = adjusted
                extreme = Moments(extreme.x, torch.tensor(True))
            break
        extreme = Moments(extreme.x | (answers.x > 1).any(0), extreme.y | (answers.y > 1).any())
        kept = kept or _everybody(fed, over)
        kept = replies.clients.put(
            kept, Moments(*(a & ~b for a, b in zip(replies.clients.pick(kept), over, strict=True)))
        )
    excluded = _excluded(fed, kept, targets=targets)
    broad = {
        name: left for name, its in broad.items() if (left := [at for at in its if at not in excluded.get(name, ())])
    }
    of_targets = float(found.mean.y), float(found.deviations.y)
    return RobustStandard(_standard(found, extreme, features, targets=targets), excluded, broad, narrow, of_targets)


def _standard(found: _Statistics, extreme: Moments, features: tuple[int, ...], *, targets: bool) -> Standard:
    """The standardisation; values that are `extreme` at a client are limited more tightly."""
    scale, target_scale = found.deviations
    target_mean = found.mean.y.cpu()
    if not targets:
        target_mean, target_scale = torch.zeros(()), torch.ones(())
    limit = torch.where(extreme.x, BEYOND, FAR).to(scale)
    rows = Standard(
        found.mean.x.cpu().reshape(features),
        scale.reshape(features),
        target_mean,
        target_scale,
        limit.reshape(features),
        torch.where(extreme.y, BEYOND, UNLIMITED),
    )
    return Standard(*(row.float() for row in rows))


def changed_scales(fed: Federation, standard: Standard, *, targets: bool) -> list[int]:
    """The features of new data, and last the target, whose values are out of all proportion to a standardisation.

    They vary `NARROW` times as much as the data that it is from, or as little, or their mean is `FAR` deviations away.
    """
    found = _statistics(fed, None, None)
    scale = _flat(found.deviations)
    varied = _flat(Moments(*(square.cpu() > 0 for square in found.squares)))
    mean = _flat(Moments(*(part.cpu() for part in found.mean)))
    was = _flat(Moments(standard.scale, standard.target_scale)).to(scale)
    was_mean = _flat(Moments(standard.mean, standard.target_mean)).to(mean)
    other = varied & ((scale > NARROW * was) | (scale < was / NARROW)) | ((mean - was_mean).abs() > FAR * was)
    other[-1] &= targets
    return other.nonzero()[:, 0].tolist()


def _flat(moments: Moments) -> Tensor:
    """One number for each feature, and last that of the targets."""
    return torch.cat([part.reshape(-1) for part in moments])


def _other_units(names: Sequence[str], spread: Tensor, *, targets: bool) -> tuple[Excluded, Excluded]:
    """Clients whose features vary as much as overall while they hardly vary at as many others or more; and the reverse.

    No client may lie between: a feature with a few large values, such as a crime rate, has the same units everywhere.
    """
    narrow, broad = spread == 1, spread == 2
    apart = narrow.any(0) & broad.any(0) & ~(spread == 3).any(0)
    apart[-1] &= targets
    fewer = narrow.sum(0) < broad.sum(0)
    found = broad & apart & ~fewer, narrow & apart & fewer
    few, many = (
        {names[row]: by[row].nonzero()[:, 0].tolist() for row in by.any(1).nonzero()[:, 0].tolist()} for by in found
    )
    return few, many


def _everybody(fed: Federation, like: Moments) -> Moments:
    return Moments(*(torch.ones(len(fed.names), *part.shape[1:], dtype=torch.bool) for part in like))


def _without_few(fed: Federation, far: Tensor, kept: Moments, before: Moments) -> tuple[Moments, _Statistics] | None:
    """The included clients and their statistics without a few clients whose targets are far out.

    None if there are no such clients. A suspect that turns out not to be as far out is included again, which widens the
    overall spread. So this is repeated until the same clients are found twice.
    """
    for _ in range(REPEATS):
        if not far.any() or far.sum() > FEW * len(far):
            return None
        rest = Moments(kept.x, kept.y & ~far)
        statistics = _statistics(fed, rest, before)
        replies = fed.clients.map(report_outlying_targets, statistics.mean, statistics.unit, statistics.squares.y)
        fed.ledger.rounds += 1
        found = replies.clients.put(torch.zeros_like(far), replies.value.cpu()) & kept.y
        if (found == far).all():
            return rest, statistics
        far = found
    return None


def _statistics(fed: Federation, kept: Moments | None, before: Moments | None) -> _Statistics:
    """The statistics of the clients in `kept` (all, if it is None), in two rounds: means, then deviations.

    In repeated calls, `before` is the unit of the last one.
    """
    mine = _to_each(kept)
    first = fed.clients.sum(send_means, mine, before)
    sums, means = first.value, _means(first.value)
    x_unit, y_unit = before or (1, 1)
    mean = Moments(means["x"] * x_unit, means["y"] * y_unit)
    sizes = (means["size of x"] * x_unit, means["size of y"] * y_unit)
    unit = Moments(*(torch.where(size > 0, size, 1) for size in sizes))
    second = fed.clients.sum(send_deviations, mean, unit, mine)
    fed.ledger.rounds += 2
    squares = _means(second.value)
    weight = sums.weight.to(mean.x)[0]
    counts = Moments(*(weight * means.get(f"kept {name}", torch.ones_like(weight)) for name in Moments._fields))
    both = first.clients.mask & second.clients.mask
    return _Statistics(mean, unit, Moments(squares["x"], squares["y"]), counts, None if both.all() else each(both))


def _to_each(kept: Moments | None) -> Moments | None:
    return None if kept is None else each(kept)


def _means(sums: Sums[tuple[()]]) -> Params:
    """The means of the only group of sums; if some clients are excluded, over the others."""
    means = {
        name: (total / sums.weight.to(total).reshape(1, *[1] * (total.dim() - 1)))[0]
        for name, total in sums.total.items()
    }
    if "kept x" not in means:
        return means
    shares = {name: torch.where(means[f"kept {name}"] > 0, means[f"kept {name}"], 1) for name in Moments._fields}
    return {name: mean if name.startswith("kept") else mean / shares[name[-1]] for name, mean in means.items()}


def _excluded(fed: Federation, kept: Moments | None, *, targets: bool) -> Excluded:
    if kept is None:
        return {}
    out = ~torch.cat([kept.x, (kept.y if targets else torch.ones_like(kept.y))[:, None]], 1)
    return {fed.names[row]: out[row].nonzero()[:, 0].tolist() for row in out.any(1).nonzero()[:, 0].tolist()}


def _deviation(square: Tensor, unit: Tensor) -> Tensor:
    """The standard deviation; 1 for a constant feature, which standardisation then maps to 0."""
    rounding = (64 * torch.finfo(square.dtype).eps) ** 2
    return torch.where(square <= rounding, 1, square.sqrt() * unit)
