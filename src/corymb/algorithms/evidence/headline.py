"""Compares one model with the clusters on held-out examples: whether clusters pay, and the summary for users."""

from __future__ import annotations

from typing import Any, NamedTuple

from corymb.clustering.paired import Difference

SURE = 0.01
PAYS, PAYS_SKEWED = 0.1, 0.25
"""Clusters must beat one model by this share of its loss; by more under label skew, where models for clients with
similar labels beat one model even without clusters."""
SEEN = 3.2
"""Standard errors of a difference that is detected four times in five: 2.33 for p < .01, plus .84."""
BLIND = 10.0
"""If only differences larger than this many times the loss would be detected, there are too few clients to tell."""


class Evidence(NamedTuple):
    """The clusters' performance on held-out examples, compared with one model's."""

    loss_of_one: float
    """Mean loss over clients, with the best single model."""
    loss_of_clusters: float
    """Mean loss over clients, each with its cluster's model."""
    overall: Difference
    """How much worse the one model is, over all clients."""
    clusters: list[Difference]
    """How much worse the one model is, in each cluster."""
    biased_share: float
    """The gain as a share of the one model's loss, if clients add their own class bias to both."""
    skewed: bool
    """Whether such a bias helps: clients have different labels."""
    nearest: Difference | None
    """The least certain pair of those kept apart: how much worse the merger was."""
    doubtful: Difference | None
    """The pair closest to being kept apart, of those merged."""
    widest: Difference | None = None
    """The pair with the most clients, of those merged."""
    single: int = -1
    """The cluster whose model is the best single one, or -1 for the model that was trained for all clients."""

    @property
    def share(self) -> float:
        """The gain as a share of the one model's loss."""
        return 1 - self.loss_of_clusters / max(self.loss_of_one, 1e-12)

    @property
    def pays(self) -> bool:
        """Whether the clusters beat one model beyond doubt, and by enough."""
        k = len(self.clusters)
        sure = self.overall.p < SURE or any(gain.p * k < SURE for gain in self.clusters)
        enough = self.share > PAYS and (not self.skewed or self.biased_share > PAYS_SKEWED)
        return k > 1 and sure and enough

    @property
    def guarded(self) -> bool:
        """Whether clusters were found, but do not pay."""
        return len(self.clusters) > 1 and not self.pays

    @property
    def visible(self) -> float:
        """The least difference between two groups, as a share of the loss, that would have been detected."""
        compared = self.overall if self.guarded else self.widest
        if compared is None or not compared.mean:
            return float("nan")
        return SEEN * compared.error * abs(compared.size / compared.mean)

    def headline(self) -> str:
        """A summary in one or two sentences."""
        k, over = len(self.clusters), self.overall
        gain = f"held-out loss {self.loss_of_clusters:.3f}, with one model {self.loss_of_one:.3f}"
        sure = (
            f"gain {self.loss_of_one - self.loss_of_clusters:.3f} ± {over.error:.3f}, {over.worse:.0%} of clients gain"
        )
        if self.pays:
            return f"{k} clusters: {gain} ({sure})."
        seen = "" if self.visible != self.visible else f" A difference of {self.visible:.0%} would have been seen."
        seen = " So few clients or examples would not have shown one." if self.visible > BLIND else seen
        if self.guarded:
            return f"One model: {k} clusters were tried, but do not pay: {gain} ({sure}).{seen}"
        return f"One model: no two groups of clients were found that need different ones.{seen}"

    def notes(self) -> dict[str, Any]:
        """Notes for the run's history."""
        return {
            "k": len(self.clusters) if self.pays else 1,
            "evidence": self.headline(),
            "loss_of_one": self.loss_of_one,
            "loss_of_clusters": self.loss_of_clusters,
            "gain": self.loss_of_one - self.loss_of_clusters,
            "gain_error": self.overall.error,
            "gain_p": self.overall.p,
            "share_gaining": self.overall.worse,
            "gain_by_cluster": [gain.mean for gain in self.clusters],
            "gain_error_by_cluster": [gain.error for gain in self.clusters],
            "gain_p_by_cluster": [gain.p for gain in self.clusters],
            "clients_by_cluster": [gain.clients for gain in self.clusters],
            "nearest_pair": _plain(self.nearest),
            "doubtful_pair": _plain(self.doubtful),
            "candidates": len(self.clusters),
            "guarded": self.guarded,
        }


def _plain(difference: Difference | None) -> dict[str, float] | None:
    return None if difference is None else difference._asdict()
