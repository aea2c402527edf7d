"""Tests of k final linear models: whether each group really has one model, and whether two groups really differ.

In whitened coordinates, with ε = (y − φ·θ) φ of each point, T = (‖Σ ε‖² − Σ ‖ε‖²) / m(m − 1) over a client's m points
is an unbiased estimate of the squared distance of the client's own model from θ, whatever the noise: the two points of
a pair are independent. Its mean over the clients that chose a model is the spread within their group; over the clients
of two groups, under the mean of their two models, it tells whether the two are one. Neither needs held-out examples,
because no point is ever paired with itself. Only sums over groups leave the clients.

A model of a small group moves slowly, by p_j of a step each round, and may not have converged: its last step divided by
p_j estimates the remaining distance. That matters if it is not small compared with σ √(d / n_j), the error due to the
noise of the group's n_j points.
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
"""Standard errors above which a spread counts as significant."""
MUCH = 0.02
"""A spread within a group is reported above this fraction of the squared distance to the nearest other model."""
UNSURE = 0.15
"""Share of examples at clients whose two halves choose different models, above which groups are not told apart."""
NOTHING = 1e-4
"""A remaining distance is never reported below this fraction of the distance to the nearest other model."""
LEFT = 0.1
"""A remaining distance is reported above this fraction of the error due to the noise of the group's examples."""


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
    squares = errors.square().sum(0) / m.clamp_min(1)  # the share's weight multiplies by m again
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
    """The outcome of the tests."""

    within: Spread
    """k: the spread of a group's clients around its model."""
    pairs: list[tuple[int, int]]
    between: Spread
    """For each pair, the spread of both groups' clients around the mean of their models."""
    nearest: Tensor
    """k: the squared distance of each model from the nearest other one."""
    unsure: float
    """The share of examples at clients whose two halves choose different models."""
    uneven: float
    """√(d k ln k (χ² + 1) / n), the second part of the theory's ν, with its constant 1."""
    left: Tensor
    """k: the remaining distance of each model, estimated from its last step."""
    open: Tensor
    """k: the error of each model due to the noise of its group's examples."""

    @property
    def mixed(self) -> list[int]:
        """Groups whose clients do not have one model."""
        seen = (self.within.z > SURE) & (self.within.square > MUCH * self.nearest)
        return [int(group) for group in seen.nonzero().flatten()]

    @property
    def same(self) -> list[tuple[int, int]]:
        """Pairs of groups that cannot be told apart."""
        return [pair for pair, z in zip(self.pairs, self.between.z.tolist(), strict=True) if not z > SURE]

    @property
    def moving(self) -> list[int]:
        """Groups whose models have not converged."""
        far = self.left > torch.maximum(LEFT * self.open, NOTHING * self.nearest.sqrt())
        return [int(group) for group in far.nonzero().flatten()]

    def notes(self) -> dict[str, object]:
        """Plain values for a snapshot, to five digits: the last bits of a solution depend on memory alignment."""
        return {
            "spread": [float(f"{value:.5g}") for value in self.within.square.clamp_min(0).sqrt()],
            "nearest": [float(f"{value:.5g}") for value in self.nearest.sqrt()],
            "unsure": float(f"{self.unsure:.5g}"),
            "nu": float(f"{self.unsure + self.uneven:.5g}"),
            "mixed_groups": self.mixed,
            "same_groups": [list(pair) for pair in self.same],
            "moving_groups": self.moving,
        }

    def warn(self) -> None:
        """Log a warning for each problem: what was seen, and what to change."""
        for group in self.mixed:
            log.warning(
                "the clients of group %d do not share one model: their own models are %.2g from its model (the nearest "
                "other is at %.2g). Raise k, or anchors or iterations if k is right",
                group,
                float(self.within.square[group].sqrt()),
                float(self.nearest[group].sqrt()),
            )
        if self.same:
            log.warning(
                "groups %s cannot be told apart by their clients' data: lower k, or bring more examples or clients",
                ", ".join(f"{one} and {other}" for one, other in self.same),
            )
        for group in self.moving:
            log.warning(
                "the model of group %d has not converged: about %.2g remains (its examples determine it to %.2g). "
                "Give phase 2 more rounds (then.rounds)",
                group,
                float(self.left[group]),
                float(self.open[group]),
            )
        if self.unsure > UNSURE:
            log.warning(
                "%.0f %% of the examples are at clients whose two halves choose different models: the models are too "
                "near for clients of this size and noise. Bring more examples per client, or lower k",
                100 * self.unsure,
            )


def verdict(fed: Federation, at: Snapshot, root: Tensor, before: Params, *, by_share: bool) -> Verdict:
    """Test the models with one call to every client; `root` whitens the features of all clients.

    `before` holds the models one round earlier; `by_share` says whether a group's step is scaled by its share p_j.
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
    between = between._replace(error=_of_both(chance, weight, pairs))  # under the hypothesis of one common model
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
    """The standard error of the mean over two groups' clients, from the two groups' standard errors."""
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
