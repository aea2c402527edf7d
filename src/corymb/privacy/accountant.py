"""The privacy cost ε of rounds, by Google's dp-accounting with Rényi divergences; no accounting is implemented here.

Neighbours are federations one of whose clients contributes nothing (dp-accounting's REPLACE_SPECIAL).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

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


def release_of(privacy: Privacy, *, rate: float, k: int) -> Release:
    """The release of one round of an algorithm; with one cluster, labels reveal nothing."""
    return Release(privacy.noise, rate, privacy.labels if k > 1 else None, k)


@cache
def spent(release: Release, rounds: int, delta: float) -> float:
    """ε after this many rounds."""
    if not rounds:
        return 0.0
    if release.noise == 0:
        return math.inf
    accounting = _accounting()
    # Labels reveal which clients were drawn, so that there is no amplification by sampling.
    drawn = release.rate < 1 and release.labels is None
    event = accounting.GaussianDpEvent(release.noise)
    if drawn:
        event = accounting.PoissonSampledDpEvent(release.rate, event)
    if release.labels is not None:
        event = accounting.ComposedDpEvent([event, accounting.RandomizedResponseDpEvent(release.blur, release.k)])
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(WHOLE if drawn else FINE, accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


def affords(privacy: Privacy, release: Release, rounds: int) -> bool:
    """Whether the budget allows this many rounds."""
    return privacy.epsilon is None or spent(release, rounds, privacy.delta) <= privacy.epsilon


def _accounting() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise InvalidInput("privacy needs the package dp-accounting: pip install 'corymb[privacy]'.") from None
    return dp_accounting
