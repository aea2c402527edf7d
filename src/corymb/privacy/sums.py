"""Adds noise to sums of clients' updates, and computes the clusters' means from them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.keys import Key, fold, normal
from corymb.privacy.settings import Privacy
from corymb.trees import Params, align_leading, map_tensors


class Released(NamedTuple):
    """Sums with noise, covered by the privacy guarantee: these may be used and published."""

    total: Params
    """k rows: the sum of the updates of each cluster's clients."""
    clients: Tensor
    """The noisy number of clients in each cluster, k: not an integer, and sometimes negative."""

    def mean(self, least: float) -> Params:
        """Each cluster's mean update; 0 for clusters of fewer than `least` clients."""
        enough = self.clients >= least
        share = torch.where(enough, 1 / self.clients.clamp_min(1), 0)
        return map_tensors(lambda leaf: leaf * align_leading(share.to(leaf), leaf), self.total)


def multipliers(noise: float, numbers: int) -> tuple[float, float]:
    """The noise multipliers of updates and of counts, which together cost as much as `noise` alone.

    One client changes sum and count at once: 1/z² = 1/z_sum² + 1/z_count². Of all such pairs, the one with
    z_count = d^¼ z_sum, for d numbers in a model, makes means most exact.
    """
    of_sum = noise * math.sqrt(1 + numbers**-0.5)
    return of_sum, numbers**0.25 * of_sum


def released(
    total: Params, count: Tensor, privacy: Privacy, *, blur: float, known: Tensor | None, key: Key
) -> Released:
    """Sums and counts with noise, corrected for the bias of randomised labels.

    A label is kept with probability 1 − blur, or else drawn uniformly from all k: a reported sum is 1 − blur of the
    cluster's own plus blur / k of everybody's. `known` are counts that cost nothing, such as that of a single cluster.
    """
    numbers = sum(leaf[0].numel() for leaf in total.values())
    of_sum, of_count = multipliers(privacy.noise, numbers) if known is None else (privacy.noise, 0.0)
    spread = of_sum * (privacy.clip or 0.0)
    if spread:
        total = {name: leaf + spread * _drawn(fold(key, "sum", name), leaf) for name, leaf in total.items()}
    count = count + of_count * _drawn(fold(key, "count"), count) if known is None else known
    if blur:
        total = map_tensors(lambda leaf: _unblurred(leaf, blur), total)
        count = _unblurred(count, blur)
    return Released(total, count)


def _drawn(key: Key, like: Tensor) -> Tensor:
    return normal(key, tuple(like.shape), torch.float64).to(like)


def _unblurred(sums: Tensor, blur: float) -> Tensor:
    return (sums - blur * sums.mean(0, keepdim=True)) / (1 - blur)
