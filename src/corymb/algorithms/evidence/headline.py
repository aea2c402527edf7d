"""One model against the clusters, on held-out examples: whether they pay, and what to tell people."""

from __future__ import annotations

from typing import Any, NamedTuple

from corymb.clustering.paired import Difference

SURE = 0.01
PAYS, PAYS_SKEWED = 0.1, 0.25
"""Clusters must beat one model by this share of its loss; by more where labels are skewed, since models for those who
have the same labels beat one model without there being clusters."""
SEEN = 3.2
"""A difference of so many standard errors is found four times in five: 2.33 for p < .01, and .84 more."""
BLIND = 10.0
"""A difference of so many times the loss that only more would be seen: there are too few clients to tell."""


class Evidence(NamedTuple):
    """What held-out examples say of the clusters."""

    loss_of_one: float
    """Mean over clients, of the best single model."""
    loss_of_clusters: float
    """Mean over clients, each with its cluster's model."""
    overall: Difference
    """How much worse the one model is, over all clients."""
    clusters: list[Difference]
    """The same, in each cluster."""
    biased_share: float
    """The gain as a share of the one model's loss, when clients give either a class bias of their own."""
    skewed: bool
    """Whether such a bias helps: clients have different labels."""
    nearest: Difference | None
    """Of the pairs that were kept apart, the one least surely so: how much worse the merger was."""
    doubtful: Difference | None
    """Of the pairs that were merged, the one that came nearest to being kept apart."""
    widest: Difference | None = None
    """Of the pairs that were merged, the one of the most clients."""
    single: int = -1
    """Whose model is the best single one: that of a cluster, or -1 for the one that was trained for all."""

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
        """Whether clusters were found that do not pay."""
        return len(self.clusters) > 1 and not self.pays

    @property
    def visible(self) -> float:
        """The least difference between two groups, as a share of the loss, that these clients would have shown."""
        compared = self.overall if self.guarded else self.widest
        if compared is None or not compared.mean:
            return float("nan")
        return SEEN * compared.error * abs(compared.size / compared.mean)

    def headline(self) -> str:
        """In a sentence or two."""
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
        """For the run's history."""
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
