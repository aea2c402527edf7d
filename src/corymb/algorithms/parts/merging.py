"""The server's part of SR-FCA's RECLUSTER and MERGE."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.clustering.distances import Measure
from corymb.robust import group_mean
from corymb.trees import Params, concat, count, take


class Merged(NamedTuple):
    """The clustering after MERGE."""

    labels: Tensor  # n
    models: Params  # a row for each cluster
    new_cluster: Tensor  # k: the new cluster that each old one is part of; -1 for one that was dissolved
    dissolved: int


def recluster(measure: Measure, known: Tensor, fit: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 2: the nearest cluster of every client (ties: the lowest number), and the distances to all: n k."""
    distances = measure.to_clusters(known, fit, labels)
    return distances.argmin(1), distances


def merge(
    measure: Measure,
    models: Params,
    fit: Tensor,
    labels: Tensor,
    distances: Tensor,
    group: Callable[[Tensor], Tensor],
    least: int,
    silent: Tensor,
) -> Merged:
    """Algorithm 4 on the clusters that have clients; `group` makes groups of a matrix of distances.

    The clients of a merged cluster with fewer than `least` of them go to the nearest cluster that stays. `silent` holds
    the labels of clients that did not answer: they still count as members, and a cluster with only such clients stays
    unchanged.
    """
    used = labels.unique()
    silent_clusters = silent[~torch.isin(silent, used)].unique()
    joined = group(measure.between_clusters(fit, labels, models)[used][:, used])
    groups = int(joined.max()) + 1
    mean = concat([group_mean(take(models, used), joined, take(models, used[:groups])), take(models, silent_clusters)])
    number = groups + len(silent_clusters)
    new_cluster = torch.full((count(models),), -1).index_copy(0, used, joined)
    new_cluster = new_cluster.index_copy(0, silent_clusters, torch.arange(groups, number))
    sizes = new_cluster[torch.cat([labels, silent])].bincount(minlength=number)
    stays = (sizes >= least) | (torch.arange(number) == sizes.argmax())  # one cluster must remain
    new_cluster = torch.where((new_cluster >= 0) & stays[new_cluster], (stays.cumsum(0) - 1)[new_cluster], -1)
    nearest = torch.where(new_cluster >= 0, distances, torch.inf).argmin(1)
    labels = torch.where(new_cluster[labels] >= 0, labels, nearest)
    return Merged(new_cluster[labels], take(mean, stays), new_cluster, int((~stays).sum()))
