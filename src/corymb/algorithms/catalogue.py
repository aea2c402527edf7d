"""The catalogue of named algorithms, used by the command line, the report and the docs.

A new algorithm is a new file and an entry here. Entries also explain the algorithms' notes, so that other code
can read notes without special cases for algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from corymb.lazy import at
from corymb.settings import did_you_mean, require

if TYPE_CHECKING:
    from corymb.algorithms.fedx import FedX
    from corymb.algorithms.ifca import IFCA
    from corymb.algorithms.moment_descent import MomentDescent
    from corymb.core.snapshot import Algorithm

Role = Literal["method", "global", "local", "oracle"]
"""An algorithm's role in a comparison: a clustering method, or the global, local or oracle baseline."""


class Note(NamedTuple):
    """The meaning of a snapshot's note."""

    kind: Literal["number", "numbers", "text", "names", "event", "evidence"]
    """The form of its value; an event is present only in the rounds in which it happened."""
    meaning: str


TRAIN_LOSS = {"train_loss": Note("number", "mean training loss of the models before the round's first step")}
PRIVACY = {
    "epsilon": Note("number", "ε spent by the end of the round; none where there is no noise"),
    "delta": Note("number", "δ that ε is for"),
    "cluster_sizes": Note("numbers", "clients of each cluster that took part, with noise"),
    "privacy_budget": Note("event", "the privacy budget is spent: one more round would cost too much"),
}
RESTARTS = {
    "restart_losses": Note("numbers", "final training loss of each restart; none for one that diverged"),
    "best_restart": Note("number", "the restart that was kept, from 0"),
}
REPAIR = {
    "unused_models": Note("number", "models that no client has chosen"),
    "collapse": Note("event", "clients that shared a model were regrouped: how distinct the groups are, who moved"),
    "repairs": Note("number", "number of repairs so far, in the rounds of a repair"),
}
FOUND_K = {
    "k": Note("number", "number of clusters that was found"),
    "evidence": Note("text", "what held-out examples show about the clusters"),
    "candidates": Note("number", "clusters before they were compared with one model"),
    "guarded": Note("text", "whether clusters were given up because they do not beat one model"),
    "capped": Note("text", "whether the search ended at its limit"),
    "label_skew": Note("number", "share of one model's held-out loss that clients' own class biases save"),
    "pairs": Note("number", "pairs of clusters on trial"),
    "merged": Note("number", "pairs that were merged in the round"),
    "loss_of_one": Note("number", "held-out loss of one model for all"),
    "loss_of_clusters": Note("number", "held-out loss of the clusters' models"),
    "gain": Note("evidence", "held-out loss of one model less that of the clusters'"),
    "gain_error": Note("evidence", "standard error of the gain over clients"),
    "gain_p": Note("evidence", "how likely such a gain is without clusters: nominal"),
    "share_gaining": Note("number", "share of the clients that gain"),
    "gain_by_cluster": Note("evidence", "the gain of each cluster's clients"),
    "gain_error_by_cluster": Note("evidence", "its standard error"),
    "gain_p_by_cluster": Note("evidence", "how likely such a gain is without clusters: nominal"),
    "clients_by_cluster": Note("evidence", "number of clients that judged each"),
    "nearest_pair": Note("evidence", "least certain of the pairs kept apart: what merging it would cost"),
    "doubtful_pair": Note("evidence", "least certain of the merged pairs: what merging it costs"),
}
THRESHOLD = {
    "threshold": Note("number", "distance up to which clients, and clusters, belong together"),
    "distance_counts": Note("evidence", "histogram of the distances between clients: counts"),
    "distance_edges": Note("evidence", "histogram of the distances between clients: edges"),
    "merge_heights": Note("evidence", "distances at which groups join, ascending"),
    "gap": Note("number", "widest gap between merge heights, as a ratio"),
    "chance": Note("number", "gap that one cloud without groups shows once in twenty times"),
    "warning": Note("text", "warnings to read before trusting the clusters"),
    "without_cluster": Note("number", "clients that belong to no cluster yet"),
}
CLUSTERS = {"clusters": Note("number", "clusters there are")}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A named algorithm. Its settings are exactly the fields of its class."""

    place: str
    """Its class as `module:Class`, imported on first use, since a run needs one of many."""
    title: str
    """Its name as written in a sentence."""
    description: str
    """A description in one line."""
    role: Role = "method"
    notes: Mapping[str, Note]
    """The meaning of its snapshots' notes, by name."""
    chooses: bool = False
    """Whether clients choose among all models, which are sent to them in every round."""
    started: Callable[[Any], Algorithm | None] = lambda algorithm: algorithm
    """The algorithm, or the stage of it, that can start from given models; None if there is none.

    Used for runs from the true parameters."""

    @property
    def algorithm(self) -> type[Algorithm]:
        """The algorithm's class."""
        return cast("type[Algorithm]", at(self.place))


def _one_run(algorithm: IFCA) -> IFCA:
    """IFCA without restarts and `init`, since the start is given."""
    k = None if algorithm.k == "auto" else algorithm.k
    return replace(algorithm, k=k, restarts=1, init="random")


KAPPA = {"kappa": Note("event", "κ of the theory, in the first round of linear models: 1 where local steps are stable")}
VERDICT = {
    "spread": Note("numbers", "distance of clients' own models from their group's, by group"),
    "nearest": Note("numbers", "distance of each group's model from the nearest other one"),
    "unsure": Note("number", "share of examples at clients whose two halves choose different models, for p_e(n_i)"),
    "nu": Note("number", "ν of the theory with its constant 1: unsure + √(d k ln k (χ² + 1) / n)"),
    "mixed_groups": Note("numbers", "groups whose clients do not have one model"),
    "same_groups": Note("evidence", "pairs of groups that cannot be told apart"),
    "moving_groups": Note("numbers", "groups whose models have not arrived"),
}
"""Notes of moment descent's last round about the final models."""


def _second_phase(algorithm: MomentDescent) -> FedX | None:
    """Only the second phase: the first one finds the start, which is given here."""
    return algorithm.then


def _nothing(algorithm: Algorithm) -> None:
    return None


CATALOGUE: Mapping[str, Entry] = MappingProxyType(
    {
        "ifca": Entry(
            place="corymb.algorithms.ifca:IFCA",
            title="IFCA",
            description="each client picks the model that fits it best and trains it, in every round",
            notes={**TRAIN_LOSS, **RESTARTS, **REPAIR, **FOUND_K, **CLUSTERS, **PRIVACY},
            chooses=True,
            started=_one_run,
        ),
        "sr-fca": Entry(
            place="corymb.algorithms.sr_fca:SRFCA",
            title="SR-FCA",
            description="clusters clients by distances of local models, then refines; finds their number",
            notes={
                **TRAIN_LOSS,
                **THRESHOLD,
                **FOUND_K,
                **CLUSTERS,
                **PRIVACY,
                "moved": Note("number", "clients that changed their cluster"),
                "merged": Note("number", "clusters that were joined to others"),
                "dissolved": Note("number", "clusters that were too small and were dissolved"),
            },
            started=_nothing,
        ),
        "moment-descent": Entry(
            place="corymb.algorithms.moment_descent:MomentDescent",
            title="Moment descent",
            description="mixed regression from any start: moments of residuals, then fedx",
            notes={
                **TRAIN_LOSS,
                "iteration": Note("number", "iterations of the first phase so far"),
                "groups": Note("number", "groups that the anchors form"),
                "joined_below": Note("number", "distance below which anchors were joined"),
                "merge_heights": THRESHOLD["merge_heights"],
                "sigma": Note("number", "mean estimated distance of the anchors from their own models"),
                "noise": Note("number", "an anchor's distance from its own model due to noise alone (median)"),
                **KAPPA,
                **VERDICT,
            },
            started=_second_phase,
        ),
        "fedx": Entry(
            place="corymb.algorithms.fedx:FedX",
            title="FedX",
            description="moment descent's second phase alone: FedAvg or FedProx with clustering",
            notes={**TRAIN_LOSS, **KAPPA},
            chooses=True,
        ),
        "one-shot-ifca": Entry(
            place="corymb.algorithms.one_shot_ifca:OneShotIFCA",
            title="One-shot IFCA",
            description="starts ifca from sr-fca's first clusters",
            notes={**TRAIN_LOSS, **THRESHOLD, **CLUSTERS, **REPAIR},
            started=_nothing,
        ),
        "cfl": Entry(
            place="corymb.algorithms.cfl:CFL",
            title="CFL",
            description="one model, split in two when client updates disagree",
            notes={
                **TRAIN_LOSS,
                **CLUSTERS,
                "mean_update": Note("numbers", "length of each cluster's mean update"),
                "longest_update": Note("numbers", "length of the longest update in each cluster"),
                "split": Note("numbers", "clusters that were split in the round"),
                "pairs": FOUND_K["pairs"],
                "accepted": Note("number", "splits that held-out examples confirmed, of those tried"),
            },
            started=_nothing,
        ),
        "fedsoft": Entry(
            place="corymb.algorithms.fedsoft:FedSoft",
            title="FedSoft",
            description="each client is a mixture of clusters, by shares of its examples",
            notes=TRAIN_LOSS,
            started=_nothing,
        ),
        "local-kmeans": Entry(
            place="corymb.algorithms.local_kmeans:LocalKMeans",
            title="Local k-means",
            description="k-means on local models; serves the cluster means",
            notes={**TRAIN_LOSS, **FOUND_K, **CLUSTERS},
            started=_nothing,
        ),
        "uifca": Entry(
            place="corymb.algorithms.uifca:UIFCA",
            title="UIFCA",
            description="clusters examples with density models; needs no labels",
            notes={
                "train_loss": Note("number", "mean loss of all examples, each under the model of its cluster"),
                **RESTARTS,
                "moved": Note("number", "share of all examples that changed their cluster"),
                "points": Note("numbers", "examples in each cluster"),
            },
            started=_nothing,
        ),
        "kfed": Entry(
            place="corymb.algorithms.kfed:KFed",
            title="k-FED",
            description="clusters examples: k-means at each client, then on the clients' centres",
            notes={},
            started=_nothing,
        ),
        "clustergan": Entry(
            place="corymb.algorithms.clustergan:ClusterGAN",
            title="ClusterGAN",
            description="clusters examples with an adversarial network trained with FedAvg",
            notes={
                "train_loss": Note(
                    "number", "mean squared reconstruction error of clients' examples, before the round"
                ),
                "points": Note("numbers", "examples in each cluster"),
            },
            started=_nothing,
        ),
        "fedavg": Entry(
            place="corymb.algorithms.fedavg:FedAvg",
            title="FedAvg",
            description="one model for all clients, the global baseline",
            role="global",
            notes={**TRAIN_LOSS, **PRIVACY},
        ),
        "fedprox": Entry(
            place="corymb.algorithms.fedprox:FedProx",
            title="FedProx",
            description="fedavg with a term that keeps clients near the model they were sent",
            role="global",
            notes={**TRAIN_LOSS, **PRIVACY},
        ),
        "alone": Entry(
            place="corymb.algorithms.alone:Alone",
            title="Training alone",
            description="each client trains alone, the local baseline",
            role="local",
            notes=TRAIN_LOSS,
            started=_nothing,
        ),
        "one-shot": Entry(
            place="corymb.algorithms.one_shot:OneShot",
            title="One-shot clustering",
            description="clusters local models once, then trains inside the clusters",
            notes={**TRAIN_LOSS, **FOUND_K, **CLUSTERS},
            started=_nothing,
        ),
        "oracle": Entry(
            place="corymb.algorithms.oracle:Oracle",
            title="The oracle",
            description="trains inside the true clusters, if they are known",
            role="oracle",
            notes=TRAIN_LOSS,
        ),
    }
)


def entry_of(name: str) -> Entry:
    """The entry for a name."""
    known = name in CATALOGUE
    require(known, f"There is no algorithm {name!r}. {did_you_mean(name, CATALOGUE)} Your own is package.module:Class.")
    return CATALOGUE[name]


def is_composed(name: str) -> bool:
    """Whether a run's algorithm was put together from the library's parts, as with `Restarts`: only Python can do that.

    >>> is_composed("corymb.algorithms.parts.restarts:Restarts"), is_composed("ifca"), is_composed("mine:Method")
    (True, False, False)
    """
    return name.startswith("corymb.")
