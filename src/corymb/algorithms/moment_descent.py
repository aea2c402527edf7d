"""Moment descent: mixed regression from any start, with the help of a few anchor clients.

Su, Xu, Yang: Global Convergence of Federated Learning for Mixed Regression. NeurIPS 2022 (Phase 1, "FedMD", and
Algorithm 3; Phase 2 is `FedX`). H: `anchors`, T: `iterations`, T_1: `subspace_steps`, m: `panel`, 2ℓ: `points`,
Δ: `separation`, ε: `epsilon`, (α, β): `spectrum`, θ_0: the first model of the start.

With ε(x, y, θ) = (y − φ(x)·θ) φ(x), an iteration is, for every anchor i with estimate θ_i: the top-k subspace U_i of
Y_i, the mean of ε ε'ᵀ over pairs of points of the same client, over a panel of clients, found by orthogonal iteration
(clients return d k products; the server gets only their sum); then, at the anchor, the leading direction b and value σ²
of the same moment of its own points inside U_i; then θ_i ← θ_i + (α σ / 2β²) U_i b where σ > ε Δ. At the end anchors
closer than Δ/2 are joined, and each group's mean is a model.

Departures from the paper:

* All of it is done in coordinates in which all clients' features have second moment I (`whiten`), so that α = β = 1 for
  features in any units. Distances, and with them Δ, are then root mean square differences of predictions. Without a
  start, θ_0 is the single model that fits all clients best, which the same sums give.
* All ordered pairs of a panel client's points count, with weight m_c, not one pair per client: `pairs=1` is the
  theory's form, which needs far more clients than the paper's experiments have. `pairs` affects only the panel: an
  anchor always uses all pairs of its points. Either is symmetric here, so that a step of orthogonal iteration takes one
  product, not two.
* `subspace_steps` is a fixed number; the theory asks for an order of k log(N·d). What the k leading directions contain
  beyond the differences θ*_j − θ_i (there are fewer if clusters agree with θ_i) is noise, and does no harm: an anchor
  looks for its own direction inside them.
* A singular vector has no sign: b is oriented so that b · mean(U_iᵀε) ≥ 0. Without that, anchors move at random.
* b is the eigenvector of the largest eigenvalue, found exactly at the anchor (the matrix is k k), not by T_2 steps of
  power iteration, which finds the largest magnitude; a largest eigenvalue below 0 counts as σ = 0.
* Iterations continue until every anchor estimates that it is near its model or σ no longer falls, not for a fixed T,
  unless `iterations` is given.
* Anchors are ⌈6k ln k⌉ by default (the paper's experiments: ⌈3k ln k⌉) and are drawn from clients with enough data.
* Anchors are joined by complete linkage; without Δ, into k groups if those are farther apart than noise explains, else
  at the widest gap; without Δ, only σ = 0 stops an anchor. If that leaves more or fewer than k groups, k-means turns
  them into k, and a message says so.
* After phase 2, a last call checks whether every group is really one and all of them are different (`verdict`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.fedx import FedX
from corymb.algorithms.parts.linear import linear_or_refuse
from corymb.algorithms.parts.moments import move, multiply
from corymb.algorithms.parts.regression.verdict import verdict
from corymb.algorithms.parts.regression.whitening import whitening_of
from corymb.algorithms.parts.then import stages
from corymb.clustering.grouping import complete_linkage, group_means, k_means, widest_gap
from corymb.core.federation import Cohort, Federation, TooFewReplies, each
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.keys import fold, normal
from corymb.local import serve_assigned
from corymb.orthogonal import leading_subspace, orthonormal, random_bases
from corymb.settings import check_types, require

log = logging.getLogger(__name__)
NUMBERS = 2**15
"""The most entries in one reply of a panel client; a larger request is split by anchors within the round."""


@dataclass(frozen=True, kw_only=True)
class MomentDescent:
    """Coarse models from any start by moment descent on a few anchors; then `FedX` refines them with all clients."""

    k: int = 3
    """Number of clusters."""
    anchors: int | None = None
    """Number of anchor clients; by default ⌈6k ln k⌉, or all that have enough data if these are fewer."""
    iterations: int | None = None
    """Steps of the anchors; by default until they no longer get closer, at most 40 (5 if `fresh`)."""
    subspace: Literal["iteration", "svd"] = "iteration"
    """Federated orthogonal iteration, or the SVD of the pooled d d matrix, as in the paper's experiments."""
    subspace_steps: int = 10
    """Steps of orthogonal iteration, each a communication round."""
    whiten: bool = True
    """Work in coordinates in which features have second moment I, found from sums over all clients."""
    pairs: int | None = None
    """Disjoint pairs of points of each panel client; by default all pairs."""
    panel: int | None = None
    """Clients asked in each iteration; by default all with two points or more (an even part of them if `fresh`)."""
    min_panel: int = 10
    """The smallest panel allowed: a sum over few clients reveals much about each of them."""
    fresh: bool = False
    """New panel clients and new points of the anchors in every iteration, as in the theory."""
    points: int | None = None
    """Points that an anchor must have (in every iteration, if `fresh`); by default 8k."""
    separation: float | None = None
    """The smallest distance between two clusters' models; by default found from the anchors' distances."""
    epsilon: float = 0.1
    """With a given separation, an anchor stops when its estimated distance is below this fraction of it."""
    spectrum: tuple[float, float] = (1.0, 1.0)
    """Bounds of the eigenvalues of the features' second moment (after whitening: within each cluster)."""
    noise: float = 0.0
    """Standard deviation of noise on the estimates that panel clients see (Remark 2): two draws per client."""
    then: FedX | None = FedX(refinement="whitened", rounds=400)
    """The second phase; None: moment descent alone."""

    serve = serve_assigned

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("k", "iterations", "subspace_steps", "anchors", "pairs"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, got {value}.")
        few = f"{self.anchors} anchors cannot find k = {self.k} clusters: take at least k, better 6k ln k."
        require(self.anchors is None or self.anchors >= self.k, few)
        alone = "a panel of one would show the server that client's own product, and so its direction"
        require(self.min_panel >= 2, f"min_panel must be at least 2, got {self.min_panel}: {alone}.")
        small = f"panel={self.panel} is smaller than min_panel={self.min_panel}."
        require(self.panel is None or self.panel >= self.min_panel, small)
        require(self.points is None or self.points >= 2, f"points must be at least 2, got {self.points}.")
        require(self.separation is None or self.separation > 0, f"separation must be positive, got {self.separation}.")
        require(min(self.epsilon, self.noise) >= 0, "epsilon and noise must not be negative.")
        low, high = self.spectrum
        require(0 < low <= high, f"spectrum must be two positive numbers, the smaller first, got {self.spectrum}.")

    @property
    def planned_rounds(self) -> int:
        """An upper bound: every step of orthogonal iteration is a round, and so is every step of the anchors."""
        return self._most * (self._subspace_rounds + 1) + (planned_rounds(self.then) if self.then else 0)

    @property
    def _subspace_rounds(self) -> int:
        return self.subspace_steps if self.subspace == "iteration" else 1

    @property
    def _most(self) -> int:
        """The most iterations. With `fresh` the number is fixed, since panels divide all clients evenly."""
        return self.iterations or (5 if self.fresh else 40)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Both phases, or the first alone."""
        return stages(fed, start, descent=self._descend, **({"fedx": self._refine} if self.then else {}))

    def _refine(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        """Phase 2; its last round ends with the verdict on the models."""
        assert self.then is not None
        before = start
        for at in self.then.run(fed, start):
            yield self._judged(fed, at, before) if at.round == self.then.rounds else at
            before = at

    def _judged(self, fed: Federation, at: Snapshot, before: Snapshot | None) -> Snapshot:
        theta = linear_or_refuse(fed, NAME).coefficients(at.models)
        root, by_share = whitening_of(fed, theta[0]).root, self.then is not None and self.then.averaging == "all"
        outcome = verdict(fed, at, root, (before or at).models, by_share=by_share)
        outcome.warn()
        return replace(at, notes={**at.notes, **outcome.notes()})

    def _descend(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        at = start or Snapshot.fresh(fed, self.k)
        if "anchors" not in at.carry:
            at = self._choose_anchors(fed, at, given=start is not None)
        for r in count(at.round):
            if len(at.carry["sigmas"]) >= 1 and self._ended(at.carry["sigmas"]):
                return
            t, step = divmod(r, self._subspace_rounds + 1)
            if step == 0:
                at = self._choose_panel(fed, at, t)
            at = self._subspace_round(fed, at) if step < self._subspace_rounds else self._move(fed, at, t)
            yield at

    def _ended(self, sigmas: Tensor) -> bool:
        """Whether the anchors are done, judged by the history of (largest σ, distance between groups) per iteration."""
        if self.iterations is not None or self.fresh or len(sigmas) == self._most:
            return len(sigmas) >= self._most
        largest, merge_heights = sigmas.unbind(1)
        stuck = len(largest) > STILL and bool(largest[-STILL:].min() > 0.9 * largest[:-STILL].min())
        return stuck or bool(largest[-1] <= NEAR * merge_heights[-1])

    def _choose_anchors(self, fed: Federation, at: Snapshot, *, given: bool) -> Snapshot:
        """Line 3: choose the anchors, all with the same initial estimate."""
        start = linear_or_refuse(fed, NAME).coefficients(at.models)[:1]
        d, points = start.shape[-1], (self.points or 8 * self.k) * (self._most if self.fresh else 1)
        require(self.k <= d, f"k = {self.k} is more than the {d} features: k must be at most {d}.")
        able, least = fed.clients.where(fed.sizes >= points), self.anchors or self.k
        lack = f"{len(able)} clients have the {points} points that an anchor needs, wanted at least {least}"
        require(len(able) >= least, f"{lack}: lower points, anchors or k, or bring larger clients.")
        anchors = able.sample(self.anchors or max(self.k, math.ceil(6 * self.k * math.log(self.k))))
        # In the order of name hashes, so that the numbers of groups do not depend on the other clients.
        anchors = anchors[anchors.pick(fed.name_hashes).argsort()]
        root = back = torch.eye(d).to(start)
        self._check_panel(fed.clients.where(fed.sizes >= 2), features=d, first=False)
        if self.whiten:
            found = whitening_of(fed, start[0])
            root, back = found.root, found.back
            start = start @ found.kept if given else found.pooled[None]
        carry = {
            "anchors": anchors.ids,
            "estimates": start.repeat(len(anchors), 1),
            "used": anchors.mask,
            "root": root,
            "back": back,
            "sigmas": start.new_zeros(0, 2),
        }
        return replace(at, carry=carry)

    def _choose_panel(self, fed: Federation, at: Snapshot, t: int) -> Snapshot:
        """Line 7: choose this iteration's panel, and a random basis for every anchor."""
        estimates, used = at.carry["estimates"], at.carry["used"]
        able = fed.clients.where((fed.sizes >= 2) & ~(used & self.fresh))  # a pair needs two points
        part = max(1, len(able) // (self._most - t)) if self.fresh else None
        panel = able.sample(self.panel or part)
        d = estimates.shape[1]
        self._check_panel(panel, features=d, first=t == 0)
        keys = fold(fed.key("bases"), Cohort(fed, at.carry["anchors"]).pick(fed.name_hashes))
        new = {
            "panel": panel.ids,
            "used": used | panel.mask,
            "bases": random_bases(keys, d, self.k).to(estimates),
            "noise": fed.key("noise"),
        }
        return replace(at, carry={**at.carry, **new})

    def _check_panel(self, panel: Cohort, features: int, *, first: bool) -> None:
        wanted = max(self.min_panel, self.panel or 0)
        few = f"{len(panel)} clients with two points or more are left for the panel, wanted {wanted}"
        require(len(panel) >= wanted, f"{few}: bring more clients, or lower panel, min_panel or iterations.")
        points = int(panel.sizes.sum())
        lack = f"The panel has {points} points in all for {features} features"
        require(points >= features, f"{lack}: bring more data, or fewer features.")
        m = panel.sizes
        pairs = int((m * (m - 1) // 2 if self.pairs is None else (m // 2).clamp_max(self.pairs)).sum())
        if first and pairs < 10 * features * self.k**2:
            text = "the panel has %d pairs of points; about 10 d k² = %d are wanted for %d features and k = %d"
            log.warning(text, pairs, 10 * features * self.k**2, features, self.k)

    def _subspace_round(self, fed: Federation, at: Snapshot) -> Snapshot:
        """Line 9: a step of orthogonal iteration for every anchor, or its whole Y_i (as a product with I)."""
        bases, root = at.carry["bases"], at.carry["root"]
        a, d, direct = *bases.shape[:2], self.subspace == "svd"
        factors = root @ (torch.eye(d).to(bases).expand(a, d, d) if direct else bases)
        at_once = max(1, NUMBERS // factors[0].numel())
        parts = [slice(i, i + at_once) for i in range(0, a, at_once)]
        products = root @ torch.cat([self._product(fed, at, factors[part], part) for part in parts])
        bases = leading_subspace(products, self.k) if direct else orthonormal(products)
        return at.next(carry={**at.carry, "bases": bases}, notes={})

    def _product(self, fed: Federation, at: Snapshot, bases: Tensor, which: slice) -> Tensor:
        """Y_i times a basis for the anchors `which`, the mean over the panel: a d k."""
        panel, sent = Cohort(fed, at.carry["panel"]), at.carry["estimates"][None]
        if self.noise:  # a client gets the same two draws in every step of an iteration
            keys = fold(at.carry["noise"], panel.pick(fed.name_hashes))
            draws = normal(keys, (2, *sent.shape[1:])).to(sent) @ at.carry["root"]
            sent = sent + self.noise * draws  # n 2 a d
        sent = each(sent[:, :, which]) if self.noise else sent[:, which]
        own = (panel.ids[:, None] == at.carry["anchors"][which]).long()  # n a
        own = torch.where(own.any(1), own.argmax(1), -1).to(bases.device)
        replies = panel.sum(multiply, sent, bases, each(own), pairs=self.pairs)
        if len(replies.clients) < self.min_panel:
            raise TooFewReplies(f"{len(replies.clients)} panel clients replied, wanted {self.min_panel} (min_panel)")
        return (replies.value.total["product"][0] / replies.value.weight).movedim(1, 0)

    def _move(self, fed: Federation, at: Snapshot, t: int) -> Snapshot:
        """Lines 10 to 16: every anchor takes a step; the means of the groups that anchors form are the models."""
        anchors, estimates = Cohort(fed, at.carry["anchors"]), at.carry["estimates"].clone()
        low, high = self.spectrum
        # An anchor far beyond the others would dominate every later product, so such replies are refused.
        guarded = anchors.near({"estimate": estimates}, by=torch.eye(len(estimates)).to(estimates), loose=True)
        replies = guarded.map(
            move,
            each(estimates),
            each(at.carry["root"] @ at.carry["bases"]),
            part=t if self.fresh else 0,
            parts=self._most if self.fresh else 1,
            step=low / (2 * high**2),
            stop=self.epsilon * (self.separation or 0),
        )
        replied = anchors.pick(replies.clients.mask).to(estimates.device)
        estimates[replied] = replies.value.estimate
        points = estimates @ at.carry["back"]
        groups = joined(points, self.k, self.separation, float(replies.value.noise.median()))
        latest = torch.tensor([[float(replies.value.sigma.max()), groups.merge_height]])
        sigmas = torch.cat([at.carry["sigmas"], latest.to(at.carry["sigmas"])])
        labels = groups.labels if groups.number == self.k else k_means(points, self.k, fed.key("k-means"))
        if groups.number != self.k and self._ended(sigmas):
            level = logging.WARNING if self.then is None else logging.INFO  # phase 2 ends with a verdict that warns
            log.log(level, "the anchors form %d groups, not k = %d: k-means regroups them", groups.number, self.k)
        everybody = anchors.put(torch.full_like(at.labels, -1), labels)
        notes = {
            "iteration": t + 1,
            "groups": groups.number,
            "joined_below": groups.threshold,
            "merge_heights": groups.heights,
            "sigma": float(replies.value.sigma.mean()),
            "noise": float(replies.value.noise.median()),
        }
        models = linear_or_refuse(fed, NAME).parameters(group_means(estimates, labels, self.k))
        carry = {**at.carry, "estimates": estimates, "sigmas": sigmas}
        return at.next(models=models, labels=everybody, carry=carry, notes=notes)


NAME = "Moment descent"
NEAR = 0.05
"""Anchors have converged when the largest σ is at most this fraction of the distance at which k groups become k − 1."""
STILL = 3
"""Iterations without progress of the farthest anchor after which the descent ends."""
NOISE = 6.0
"""Anchors of one cluster may finally be this many times as far apart as noise alone explains."""


class Joined(NamedTuple):
    """The groups that anchors form."""

    labels: Tensor
    number: int
    threshold: float
    heights: list[float]
    merge_height: float
    """The distance at which k groups become k − 1, but at least the distance that noise explains."""


def joined(points: Tensor, k: int, separation: float | None, noise: float) -> Joined:
    """Group anchors that are closer than half the separation.

    Without a separation: k groups if they are farther apart than noise explains, else fewer; more if the widest gap
    above the noise says so.
    """
    heights = complete_linkage(points, 0.0).heights
    floor = NOISE * noise
    real = [height for height in heights if height > floor]
    merge_height = max(heights[-(k - 1)] if 1 < k <= len(points) else 0.0, floor, 1e-300)
    if separation is not None:
        cut = separation / 2
    elif not real:
        cut = max([floor, *heights])
    else:
        gap = widest_gap([floor, *real], most=len(points))
        more = sum(height > gap.threshold for height in heights) + 1 >= k
        below = ([floor, *real])[-k] if len(real) >= k else floor
        cut = gap.threshold if more or len(real) < k - 1 else math.sqrt(below * real[-(k - 1)])
    groups = complete_linkage(points, cut)
    return Joined(groups.labels, groups.number, cut, heights, merge_height)
