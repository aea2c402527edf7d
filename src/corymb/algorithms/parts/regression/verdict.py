"""What the data say of k linear models when training is over: is a group really one, and are two of them really two?

In whitened coordinates, with ε = (y − φ·θ) φ of each point, T = (‖Σ ε‖² − Σ ‖ε‖²) / m(m − 1) over a client's m points
is an unbiased estimate of the squared distance of the client's own model from θ, whatever the noise: the two points of
a pair are independent. Its mean over the clients that chose a model is the spread within their group; over the clients
of two groups, under the mean of their two models, it tells whether the two are one. Neither needs held-out examples,
because no point is ever paired with itself. Only sums over groups leave the clients.

A model of a small group moves slowly, by p_j of a step each round, and may not have arrived: its last step, divided by
p_j, is what is left of its way. That matters where it is no longer small beside σ √(d / n_j), what n_j noisy points of
its group leave open.
"""

from __future__ import annotations

import logging
import math
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.parts.linear import design, linear_or_refuse
from corymb.algorithms.parts.moments import residuals
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.local import losses, one_hot
from corymb.local.held_out import hold_out
from corymb.orthogonal import points_and_pairs
from corymb.trees import Params, count

log = logging.getLogger(__name__)
SURE = 4.0
"""Standard errors from which a spread counts as seen."""
MUCH = 0.02
"""Of the squared distance to the nearest other model: a spread within a group that is worth saying."""
UNSURE = 0.15
"""Share of examples at clients whose two halves choose different models: above it, groups are not told apart."""
NOTHING = 1e-4
"""Of the distance to the nearest other model: less is never worth saying."""
LEFT = 0.1
"""Of what a group's examples leave open: the rest of its model's way that is worth saying."""


@on_client
def judge(client: Client, models: Params, others: Tensor, root: Tensor) -> Share[tuple[()]]:
    """The statistic T of this client under each of `others`, summed over clients that choose the same model."""
    seen = design(client)
    points, pairs = points_and_pairs(seen.real)
    errors, x = residuals(seen, others), seen.x @ root  # m c, m d
    alone = errors.square().mT @ x.square().sum(1)
    t = ((errors.mT @ x).square().sum(1) - alone) / pairs.clamp_min(1)
    m, parts = points.to(t.dtype), hold_out(client.train, share=0.5)
    choices = [losses(client, models, on=part).argmin() for part in parts]
    unsure = (choices[0] != choices[1]).to(t.dtype)
    squares = errors.square().sum(0) / m.clamp_min(1)  # the share counts by m
    value = {"t": t, "mt": m * t, "mtt": m * t.square(), "m": m, "unsure": unsure, "squares": squares}
    return Share(value, weight=one_hot(losses(client, models).argmin(), count(models)) * m)


class Spread(NamedTuple):
    """A mean squared distance, and its standard error."""

    square: Tensor
    error: Tensor

    @property
    def z(self) -> Tensor:
        """How many standard errors it is from 0."""
        return self.square / self.error.clamp_min(torch.finfo(self.error.dtype).tiny)


class Verdict(NamedTuple):
    """What the data say of the models."""

    within: Spread
    """k: the clients of a group around its model."""
    pairs: list[tuple[int, int]]
    between: Spread
    """The clients of two groups around the mean of their models, for each pair."""
    nearest: Tensor
    """k: the squared distance of each model from the nearest other one."""
    unsure: float
    """The share of examples at clients whose two halves choose different models."""
    uneven: float
    """√(d k ln k (χ² + 1) / n), the second part of the theory's ν, with its constant 1."""
    left: Tensor
    """k: how far each model still has to go, by its last step."""
    open: Tensor
    """k: the error that a group's noisy examples leave open."""

    @property
    def mixed(self) -> list[int]:
        """Groups whose clients do not have one model."""
        seen = (self.within.z > SURE) & (self.within.square > MUCH * self.nearest)
        return [int(group) for group in seen.nonzero().flatten()]

    @property
    def same(self) -> list[tuple[int, int]]:
        """Pairs of groups that cannot be told from one."""
        return [pair for pair, z in zip(self.pairs, self.between.z.tolist(), strict=True) if not z > SURE]

    @property
    def moving(self) -> list[int]:
        """Groups whose models have not arrived."""
        far = self.left > torch.maximum(LEFT * self.open, NOTHING * self.nearest.sqrt())
        return [int(group) for group in far.nonzero().flatten()]

    def notes(self) -> dict[str, object]:
        """Plain values for a snapshot, to five digits: the last bits of a solution depend on its place in memory."""
        return {
            "spread": [float(f"{value:.5g}") for value in self.within.square.clamp_min(0).sqrt()],
            "nearest": [float(f"{value:.5g}") for value in self.nearest.sqrt()],
            "unsure": float(f"{self.unsure:.5g}"),
            "nu": float(f"{self.unsure + self.uneven:.5g}"),
            "mixed_groups": self.mixed,
            "same_groups": [list(pair) for pair in self.same],
            "moving_groups": self.moving,
        }

    def say(self) -> None:
        """A warning for each thing that is wrong: what was seen, the likely cause and the cure."""
        for group in self.mixed:
            log.warning(
                "group %d is not one: its clients' own models are %.2g from its model (the nearest other is at %.2g). "
                "Ask for more groups (k), or for more anchors or iterations if k is right",
                group,
                float(self.within.square[group].sqrt()),
                float(self.nearest[group].sqrt()),
            )
        if self.same:
            log.warning(
                "groups %s cannot be told apart by their clients' data: ask for fewer groups (k), or bring more "
                "examples or clients",
                ", ".join(f"{one} and {other}" for one, other in self.same),
            )
        for group in self.moving:
            log.warning(
                "the model of group %d still moves: about %.2g is left of its way (its examples determine it to %.2g). "
                "Give phase 2 more rounds (then.rounds)",
                group,
                float(self.left[group]),
                float(self.open[group]),
            )
        if self.unsure > UNSURE:
            log.warning(
                "%.0f %% of the examples are at clients whose two halves choose different models: the models are too "
                "near for clients of this size and noise. Bring more examples a client, or ask for fewer groups (k)",
                100 * self.unsure,
            )


def verdict(fed: Federation, at: Snapshot, root: Tensor, before: Params, *, by_share: bool) -> Verdict:
    """Ask every client once; `root` makes the second moment of everybody's features I.

    `before` are the models a round before, and `by_share` says whether a group's step is its share of a whole one.
    """
    form = linear_or_refuse(fed, "The verdict")
    theta = form.coefficients(at.models)
    k = at.k
    members = torch.bincount(at.labels[at.labels >= 0].cpu(), minlength=k).to(theta)
    pairs = list(combinations(range(k), 2))
    merged = [
        (members[a] * theta[a] + members[b] * theta[b]) / (members[a] + members[b]).clamp_min(1) for a, b in pairs
    ]
    replies = fed.clients.sum(judge, at.models, torch.stack([*theta, *merged]), root).value
    sums = {name: value.double().cpu() for name, value in replies.total.items()}
    weight = replies.weight.double().cpu()
    within = _spread(sums, weight, [([j], j) for j in range(k)])
    between = _spread(sums, weight, [(list(pair), k + place) for place, pair in enumerate(pairs)])
    chance = _spread(sums, weight, [([a], a) for a, _ in pairs]), _spread(sums, weight, [([b], b) for _, b in pairs])
    between = between._replace(error=_of_both(chance, weight, pairs))  # if the two were one, as they are around it
    both = torch.cat([theta, form.coefficients(before)])
    whitened, earlier = torch.linalg.lstsq(root.double().cpu(), both.double().cpu().mT).solution.mT.split(k)
    pace = weight.clamp_min(1) / weight.sum().clamp_min(1) if by_share else torch.ones_like(weight)
    left = (whitened - earlier).norm(dim=1) / pace
    noise = sums["squares"].diagonal() / weight.clamp_min(1)
    unknown = (noise * theta.shape[1] / weight.clamp_min(1)).sqrt()
    distances = torch.cdist(whitened, whitened).square().fill_diagonal_(torch.inf)
    nearest = distances.amin(1) if k > 1 else whitened.square().sum(1)
    unsure = float(sums["unsure"].sum() / weight.sum().clamp_min(1))
    shares = fed.sizes.double() / fed.sizes.sum()
    uneven = math.sqrt(theta.shape[1] * k * math.log(max(k, 2)) * float(shares.square().sum()))  # (χ² + 1) / n
    return Verdict(within, pairs, between, nearest, unsure, uneven, left, unknown)


def _of_both(spreads: tuple[Spread, Spread], weight: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    """The standard error of the mean over two groups' clients, from those of each."""
    parts = [weight[[pair[side] for pair in pairs]] * spreads[side].error for side in range(2)]
    whole = weight[[a for a, _ in pairs]] + weight[[b for _, b in pairs]]
    return (parts[0].square() + parts[1].square()).sqrt() / whole.clamp_min(1)


def _spread(sums: dict[str, Tensor], weight: Tensor, wanted: list[tuple[list[int], int]]) -> Spread:
    """For some groups and one of the models each: the mean of T weighted by points, and its standard error."""
    rows = []
    for groups, column in wanted:
        whole = weight[groups].sum().clamp_min(1)
        first, second, third = (sums[name][groups, column].sum() for name in ("t", "mt", "mtt"))
        mean = first / whole
        variance = third - 2 * mean * second + mean**2 * sums["m"][groups].sum()
        rows.append(torch.stack([mean, variance.clamp_min(0).sqrt() / whole]))
    found = torch.stack(rows) if rows else weight.new_zeros(0, 2)
    return Spread(found[:, 0], found[:, 1])
