"""Distances of all clients to a sample of s clients, for when n² pairs are too many: time and memory for 2·n·s.

The sample is drawn once, by name. ONE_SHOT forms its clusters in the sample; every other client joins the cluster whose
sampled members are nearest on average. A cluster's loss F_c is its mean over the sampled members.

The risk: a cluster with a share p of the clients has fewer than two of s sampled clients with probability
(1 − p)^s + s p (1 − p)^(s − 1), which is below 1e-7 for s = 400 and p = 1/20; then its clients join others, and REFINE
cannot recover it. A mean over s·p sampled members has a standard error of σ / √(s·p), with σ the spread of losses in
the cluster, so a client can be misplaced only if two clusters are as near as that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.clustering.distances import CrossLosses, Measure, Norms, cross_losses
from corymb.core.federation import Cohort
from corymb.trees import Params, leaves, take

BLOCK = 2**22
"""Entries of all clients' models in a block of coordinates."""


class Sampled(NamedTuple):
    """Distances of n clients to a sample of s of them."""

    clients: Cohort
    few: Tensor
    """The places of the sample in `clients`: s."""
    apart: Tensor
    """The distances of all clients to the sample: n s."""
    known: Tensor
    """The losses of sampled clients (columns) for every client's own model; for norms, the distances: n s."""


def missed(share: float, sample: int) -> float:
    """The probability that fewer than two clients of a cluster with this share of all are in the sample.

    >>> missed(0.05, 400) < 1e-7
    True
    """
    none = (1 - share) ** sample
    return none + sample * share * (1 - share) ** (sample - 1)


def compare_sample(measure: Measure, clients: Cohort, own: Params, size: int) -> Sampled:
    """Compare all clients with `size` of them; clients that do not answer every call are left out."""
    few = clients.sample(size)
    if isinstance(measure, Norms):
        places = _places(clients, few)
        apart = _norms(own, take(own, places), measure.q)
        return Sampled(clients, places, apart, apart)
    assert isinstance(measure, CrossLosses)
    theirs = take(own, _places(clients, few))
    by = cross_losses(clients, theirs)  # all clients' losses of the sample's models
    of = cross_losses(few, own)  # the sample's losses of all clients' models
    here = _places(clients, by.clients)
    stay = torch.isin(few.ids, of.clients.ids) & torch.isin(few.ids, by.clients.ids)
    answered = _places(of.clients, few[stay])
    known = of.value[answered][:, here].T.double()
    places = _places(by.clients, few[stay])
    return Sampled(by.clients, places, (by.value[:, stay].double() + known) / 2, known)


def _places(clients: Cohort, subset: Cohort) -> Tensor:
    """The places of a subset of the clients among them."""
    order = clients.ids.argsort()
    return order[torch.searchsorted(clients.ids[order], subset.ids)]


def join_nearest(apart: Tensor, few: Tensor, labels: Tensor) -> Tensor:
    """The cluster of every client: that whose sampled members are nearest on average; the sample keeps its labels."""
    clusters = labels[labels >= 0].unique()
    mean = torch.stack([apart[:, labels == cluster].mean(1) for cluster in clusters], dim=1)
    nearest: Tensor = clusters[mean.argmin(1)]
    return nearest.index_copy(0, few, labels)


def apart_by_sample(known: Tensor, few: Tensor, here: Tensor, fit: Tensor, labels: Tensor) -> Tensor:
    """Distances to clusters, n k, for the clients that answered this time (`here`, a mask over those compared)."""
    sampled = here[few]
    places = (here.cumsum(0) - 1)[few[sampled]]
    return to_clusters(known[here][:, sampled], places, fit, labels)


def to_clusters(known: Tensor, few: Tensor, fit: Tensor, labels: Tensor) -> Tensor:
    """½ (F_i(ω_c) + F_c(w_i)), with F_c the mean over sampled members other than i; F_i(ω_c) alone if there is none."""
    member = (labels[few][:, None] == torch.arange(fit.shape[1])).to(known)  # s k
    own = torch.zeros_like(fit).index_copy(0, few, member)
    mine = torch.zeros(len(known), dtype=known.dtype)
    mine[few] = known[few, torch.arange(len(few))]
    others = member.sum(0) - own
    cluster_loss = (known @ member - mine[:, None] * own) / others.clamp_min(1)
    return (fit + torch.where(others > 0, cluster_loss, fit)) / 2


def _norms(models: Params, sample: Params, q: float) -> Tensor:
    """The ℓq distances of all models from those of the sample, block by block of coordinates: n s."""
    flat, few = ([leaf.reshape(len(leaf), -1) for leaf in leaves(tree)] for tree in (models, sample))
    total = torch.zeros(len(flat[0]), len(few[0]), dtype=torch.float64)
    for mine, theirs in zip(flat, few, strict=True):
        width = max(1, BLOCK // len(mine))
        for one, other in zip(mine.split(width, 1), theirs.split(width, 1), strict=True):
            part = torch.cdist(one.double().cpu(), other.double().cpu(), p=q)
            total = torch.maximum(total, part) if math.isinf(q) else total + part.pow(q)
    return total if math.isinf(q) else total.pow(1 / q)
