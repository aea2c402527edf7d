"""The privacy cost ε of rounds, by Google's dp-accounting with Rényi divergences; no accounting is implemented here.

Neighbours are federations one of whose clients contributes nothing (dp-accounting's REPLACE_SPECIAL).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from corymb.privacy.settings import Privacy
from corymb.settings import InvalidInput

WHOLE = (*range(2, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128, 256)
"""Orders of Rényi divergence: integer ones are exact, and fast, for subsampled Gaussians."""
FINE = tuple(1 + x / 10 for x in range(1, 100)) + WHOLE[9:]


@dataclass(frozen=True)
class Release:
    """What one round releases: a noisy sum over the clients drawn, and optionally each one's randomised label."""

    noise: float
    rate: float
    """The probability with which each client is drawn."""
    labels: float | None = None
    k: int = 1

    @property
    def blur(self) -> float:
        """The probability that a label is replaced by one drawn uniformly from all k."""
        return 0.0 if self.labels is None else self.k / (math.exp(self.labels) + self.k - 1)


Account = tuple[tuple[Release, int], ...]
"""Releases about the same clients, each with its number of rounds."""


def release_of(privacy: Privacy, *, rate: float, k: int) -> Release:
    """The release of one round of an algorithm; with one cluster, labels reveal nothing."""
    return Release(privacy.noise, rate, privacy.labels if k > 1 else None, k)


@cache
def spent(release: Release, rounds: int, delta: float, past: Account = ()) -> float:
    """ε after this many rounds, and those of the `past`."""
    account = [(one, times) for one, times in (*past, (release, rounds)) if times]
    if not account:
        return 0.0
    if any(one.noise == 0 for one, _ in account):
        return math.inf
    accounting = _accounting()
    from dp_accounting import rdp

    orders = WHOLE if any(_sampled(one) for one, _ in account) else FINE
    accountant = rdp.RdpAccountant(orders, accounting.NeighboringRelation.REPLACE_SPECIAL)
    for one, times in account:
        accountant.compose(_event(one, accounting), times)
    return float(accountant.get_epsilon(delta))


def _sampled(release: Release) -> bool:
    """Whether sampling hides who took part: labels reveal which clients were drawn."""
    return release.rate < 1 and release.labels is None


def _event(release: Release, accounting: Any) -> Any:
    event = accounting.GaussianDpEvent(release.noise)
    if _sampled(release):
        return accounting.PoissonSampledDpEvent(release.rate, event)
    if release.labels is None:
        return event
    return accounting.ComposedDpEvent([event, accounting.RandomizedResponseDpEvent(release.blur, release.k)])


def affords(privacy: Privacy, release: Release, rounds: int, past: Account = ()) -> bool:
    """Whether the budget allows this many rounds after those of the `past`."""
    return privacy.epsilon is None or spent(release, rounds, privacy.delta, past) <= privacy.epsilon


def account_to_tensor(account: Account) -> Tensor:
    """An account as a row of numbers for each release, for snapshots."""
    rows = [(one.noise, one.rate, one.labels or 0.0, one.k, times) for one, times in account]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 5)


def account_from_tensor(rows: Tensor) -> Account:
    """The account that `account_to_tensor` wrote.

    >>> account = ((Release(2.0, 0.5), 3), (Release(1.0, 1.0, 0.5, 4), 2))
    >>> account_from_tensor(account_to_tensor(account)) == account
    True
    """
    read = rows.tolist()
    return tuple((Release(noise, rate, labels or None, int(k)), int(times)) for noise, rate, labels, k, times in read)


def _accounting() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise InvalidInput("privacy needs the package dp-accounting: pip install 'corymb[privacy]'.") from None
    return dp_accounting
