"""Loss vectors (a client's losses under k models), groups of similar ones, and how distinct the groups are."""

from __future__ import annotations

import torch
from torch import Tensor

from corymb.clustering.grouping import group_means, k_means
from corymb.keys import Key, fold

SAMPLE = 1000
"""The most clients used for k-means and the silhouette; the sample depends only on their names."""
DISTINCT = 0.5
"""The least silhouette of distinct groups. If the data have no groups, loss vectors stay below it early in training."""


def vectors(fit: Tensor) -> Tensor:
    """Log losses, centred per client: n k."""
    logs = fit.detach().cpu().double().clamp_min(1e-12).log()
    return logs - logs.mean(1, keepdim=True)


def regroup(fit: Tensor, k: int, key: Key, names: Tensor) -> tuple[Tensor, Tensor]:
    """Groups of clients by k-means on their loss vectors (n), and the model that fits each group best (k).

    `names` are the hashes of the clients' names.
    """
    points, few = vectors(fit), _sample(key, names)
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


def silhouette_of(points: Tensor, labels: Tensor, key: Key, names: Tensor) -> float:
    """The mean silhouette of (at most `SAMPLE` of) the points; 0 if there is only one group."""
    from sklearn.metrics import silhouette_score

    few = _sample(key, names)
    found = labels[few].unique()
    if not 2 <= len(found) < len(few):
        return 0.0
    return float(silhouette_score(points[few].numpy(), labels[few].numpy()))


def _sample(key: Key, names: Tensor) -> Tensor:
    """Positions of at most `SAMPLE` clients; the choice does not depend on their order."""
    return fold(key, names).argsort()[:SAMPLE]
