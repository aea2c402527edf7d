"""IFCA's known failure, found and repaired: two groups of clients share one model for ever, others go to waste.

Clients that need different models have different vectors of losses over the k models, even while they choose the same
one. So the clients' centred log-loss vectors are grouped by k-means; where labels have settled and yet those groups
are far tighter than the labels, the labels have collapsed. The repair gives every group the model it likes best,
trains one round within the groups, and lets IFCA go on (CLoVE, 2026, starts from such groups; here they mend a run).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.clustering.grouping import group_means, k_means
from corymb.core.federation import Replies, Sums
from corymb.core.snapshot import Snapshot
from corymb.keys import Key, permutation
from corymb.trees import take

log = logging.getLogger(__name__)
SETTLED = 0.05  # at most this share of clients changed their label: before, labels may still find their way
TIGHTER = 0.8  # groups within which loss vectors spread less than this much of what they do within labels: measured
# 0.11 to 0.73 after a collapse (rotated MNIST and digits), 0.84 and more where k is one too many
DISTINCT = 0.5  # silhouette; loss vectors of clients without groups stay below it when models are young
FIRST, PAUSE, HEALTHY, RARELY = 2, 3, 3, 10  # rounds; the pause doubles with every repair that did not last
SAMPLE = 1000  # clients that k-means looks at


class Groups(NamedTuple):
    """A better grouping than the labels: who belongs together, and which model each group likes best."""

    labels: Tensor  # n
    favourites: Tensor  # k
    tighter: float
    silhouette: float


def vectors(fit: Tensor) -> Tensor:
    """Clients by what they make of the models: log losses, less each client's own mean: n k."""
    logs = fit.detach().cpu().double().clamp_min(1e-12).log()
    return logs - logs.mean(1, keepdim=True)


def regroup(fit: Tensor, k: int, key: Key) -> tuple[Tensor, Tensor]:
    """Groups of clients by k-means on their loss vectors, and each group's favourite model."""
    points = vectors(fit)
    few = permutation(key, len(points))[:SAMPLE]
    found = k_means(points[few], min(k, len(few)), key, starts=3)
    centres = group_means(points[few], found, int(found.max()) + 1)
    labels = torch.cdist(points, centres).argmin(1)
    favourites = group_means(points, labels, k).argmin(1)
    favourites = torch.where(torch.arange(k) < len(centres), favourites, torch.arange(k))
    return labels, favourites


def spread(points: Tensor, labels: Tensor) -> float:
    """The sum of squared distances from the mean of each label's points."""
    means = group_means(points, labels, int(labels.max()) + 1)
    return float((points - means[labels]).square().sum())


def find(fit: Tensor, labels: Tensor, key: Key) -> Groups | None:
    """A grouping that shows the labels to have collapsed, or None."""
    points, k = vectors(fit), fit.shape[1]
    groups, favourites = regroup(fit, k, key)
    tighter = spread(points, groups) / max(spread(points, labels), 1e-12)
    if tighter >= TIGHTER or len(groups.unique()) < 2:
        return None
    silhouette = silhouette_of(points, groups, key)
    return Groups(groups, favourites, tighter, silhouette) if silhouette >= DISTINCT else None


def silhouette_of(points: Tensor, labels: Tensor, key: Key) -> float:
    """The mean silhouette of (at most 1000 of) the points; 0 where there is one group only."""
    from sklearn.metrics import silhouette_score

    few = permutation(key, len(points))[:SAMPLE]
    found = labels[few].unique()
    if not 2 <= len(found) < len(few):
        return 0.0
    return float(silhouette_score(points[few].numpy(), labels[few].numpy()))


def repaired(before: Snapshot, at: Snapshot, replies: Replies[Sums[Tensor]], key: Key) -> Snapshot:
    """The snapshot after a round, regrouped if it has collapsed: the next round then trains within the groups."""
    fit, ids = replies.value.note, replies.clients.ids
    carry = {name: value for name, value in before.carry.items() if name in ("repaired_at", "repairs", "healthy")}
    labels = at.labels[ids]
    unused = at.k - len(labels.unique())
    notes = {**at.notes, "unused_models": unused}
    if fit.shape[1] < at.k or not _due(before, at, labels, carry):
        return replace(at, carry={**at.carry, **carry}, notes=notes)
    try:
        found = find(fit, labels, key)
    except ImportError:  # a machine with bare torch runs IFCA as the paper has it
        log.warning("scikit-learn is not installed: collapsed clusters are not repaired")
        return replace(at, carry={**at.carry, **carry, "healthy": torch.tensor(HEALTHY)}, notes=notes)
    if found is None:
        carry["healthy"] = carry.get("healthy", torch.tensor(0)) + 1
        return replace(at, carry={**at.carry, **carry}, notes=notes)
    log.warning(
        "round %d: clusters have collapsed (%d models unused; groups by loss are %.0f %% as wide as the clusters): "
        "clients are regrouped",
        at.round, unused, 100 * found.tighter,
    )  # fmt: skip
    asked = torch.zeros_like(at.labels, dtype=torch.bool)
    asked[ids] = True
    repairs = carry.get("repairs", torch.tensor(0)) + 1
    carry = {"repaired_at": torch.tensor(at.round), "repairs": repairs, "regrouped": asked}
    notes["collapse"] = {"tighter": found.tighter, "silhouette": found.silhouette}
    new = at.labels.clone()
    new[ids] = found.labels
    return replace(at, models=take(at.models, found.favourites), labels=new, carry={**at.carry, **carry}, notes=notes)


def _due(before: Snapshot, at: Snapshot, labels: Tensor, carry: dict[str, Tensor]) -> bool:
    """Whether to look closer: labels have settled, the last repair had time to work, and all was not well lately."""
    pause = PAUSE * 2 ** max(0, int(carry.get("repairs", 0)) - 1)
    if at.round <= FIRST or ("repaired_at" in carry and at.round - int(carry["repaired_at"]) <= pause):
        return False
    if int(carry.get("healthy", 0)) >= HEALTHY and at.round % RARELY:
        return False
    churn = float((before.labels != at.labels)[before.labels >= 0].double().mean())
    return churn <= SETTLED
