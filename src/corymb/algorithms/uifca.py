"""UIFCA: a cluster for every example, by k generative models with exact likelihood.

Chung, Ghosh, Yin, Lee, Ramchandran: Efficient Clustering Frameworks for Federated Learning Systems. UC Berkeley,
Technical Report EECS-2023-212, chapter 4 (Algorithms 3 to 5). K: `k`, T: `rounds`, τ: `exchanges`, M: `local.steps`,
N: `local.batch`, η: `local.lr`.

Each of T cluster rounds has τ exchanges. In the first of them every client relabels its examples by the model under
which each is most likely; in all of them it trains each of the k models on its own examples of that cluster, and the
server averages each model, weighted by the numbers of examples. Models and counts are sent; labels are not.

Departures from the report:

* `density="gaussian"`, not in the report, fits the affine flow at its optimum: clients send the sums of x and of x xᵀ
  over each cluster instead of training, in a space of principal components found federatedly where examples are long.
* Models continue from one cluster round to the next, as in the report's text; `reinitialise` is its Algorithm 4.
* Clients use Adam and clip gradients; the affine flow's parameters are those of the inverse map (`models/flows`).
* `init="kfed"` starts with k-FED's labels, `restarts` keeps the run with the highest likelihood, `prior` lets a
  client's own shares of clusters weigh in, `settled` ends a run in which hardly a label changes.
* A cluster without examples keeps its model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap

from corymb.algorithms.parts.points.centres import start_from_centres
from corymb.algorithms.parts.points.gaussians import fit_gaussians, relabel_and_sum
from corymb.algorithms.parts.points.labels import LOSS, MOVED, choose, label_points, members, serve_points
from corymb.algorithms.parts.points.space import find_space
from corymb.algorithms.parts.restarts import Restarts
from corymb.algorithms.parts.then import stages
from corymb.core.averaging import Aggregate, check_averaging, reduction_of
from corymb.core.client import Client, Share, Shares, on_client
from corymb.core.federation import Federation, Sums
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.keys import fold, normal
from corymb.local import Descent, descend
from corymb.models.flows.projected import BASIS, ORIGIN
from corymb.settings import check_types, require
from corymb.trees import Params, stack

SUMS_OF_NOTES = {"train_loss": LOSS, "moved": MOVED}
"""Notes, and the names of the sums that they are computed from."""
FlowName = Literal["gaussian", "affine", "diagonal", "shift", "planar", "realnvp"]


@on_client
def relabel_and_train(
    client: Client, models: Params, fresh: Params | None, *, local: Descent, relabel: bool, prior: bool
) -> Shares[tuple[()]]:
    """Relabel if it is time (Algorithm 3, line 7), then train every cluster's model (Algorithm 5).

    Each model counts by the number of examples it was trained on; `fresh` models are trained instead, if given.
    """
    own = members(client, models, relabel=relabel, prior=prior)

    def train(model: Params, weight: Tensor) -> Params:
        return descend(client, model, local, on=client.train._replace(weight=weight))

    trained = vmap(train)(models if fresh is None else fresh, own.weight)
    return Shares({**trained, **own.extra}, weight=own.number)


@on_client
def sum_of_losses(client: Client, models: Params, *, prior: bool) -> Share[tuple[()]]:
    """The sum over the client's examples of the loss under the model of their cluster."""
    labels, each = choose(client, models, client.train, prior=prior)
    own = each.gather(0, labels[None])[0]
    total = torch.where(client.train.weight > 0, own * client.train.weight, 0).sum()
    return Share({"loss": total}, weight=client.train.weight.new_ones(1))


@dataclass(frozen=True, kw_only=True)
class UIFCA:
    """A cluster for every example of every client, by a density model for each cluster; needs no labels."""

    k: int
    """Number of clusters."""
    density: FlowName = "affine"
    """The generative model of a cluster; on your own data, try `gaussian` first."""
    rounds: int = 20
    """Cluster rounds T: how often examples are relabelled."""
    exchanges: int = 2
    """Communication rounds τ in each cluster round; `gaussian` needs and uses one."""
    local: Descent = Descent(lr=0.05, steps=20, optimiser="adam", clip_gradient=100.0)
    """Local training of each model, on the client's own examples of that cluster."""
    init: Literal["random", "kfed"] = "random"
    """The initial labels: random, or k-FED's."""
    noise: float = 0.01
    """Standard deviation of the noise that is added to one random model to make k models."""
    reinitialise: bool = False
    """Train new models in every cluster round, as in Algorithm 4, or continue from the last ones."""
    prior: bool = False
    """Whether a client's larger clusters are more likely there; the shares stay at the client."""
    settled: float | None = None
    """End when at most this share of all examples changes its cluster."""
    restarts: int = 1
    """Number of independent runs; the one with the highest likelihood is kept."""
    shrinkage: float = 0.1
    """`gaussian`: how far a covariance is shrunk towards a spherical one of mean size, from 0 to 1."""
    least: int = 2
    """`gaussian` and k-FED: examples of a cluster that a client must have for their sum, or centre, to be sent."""
    aggregate: Aggregate = "mean"
    """How a cluster's models are averaged: the mean, or a robust aggregate that a few bad clients cannot move."""
    clip: float | None = None
    """Updates longer than this are clipped to this length."""
    space_steps: int = 10
    """Steps of orthogonal iteration towards the principal components, for models of a projection."""

    serve = serve_points
    label_points = label_points
    keeps_memory = True
    last_stage = "rounds"

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("k", "rounds", "exchanges", "restarts", "least", "space_steps"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}.")
        require(self.noise >= 0, f"noise must not be negative, got {self.noise}.")
        check_averaging(self)
        trained = self.density != "gaussian" or not reduction_of(self).by_rows
        require(trained, "density='gaussian' adds up moments, not models: leave aggregate and clip out.")
        require(0 <= self.shrinkage <= 1, f"shrinkage must be in [0, 1], got {self.shrinkage}.")
        require(self.settled is None or 0 <= self.settled < 1, f"settled must be in [0, 1), got {self.settled}.")

    @property
    def model(self) -> str:
        """The model that it learns if none is given."""
        return self.density

    @property
    def planned_rounds(self) -> int:
        """T τ, plus the rounds that find a space and a start, times the restarts."""
        if self.restarts > 1:
            return planned_rounds(self._restarts())
        space = self.space_steps + 1 if self.density == "gaussian" else 0
        return self.rounds * self._exchanges + (self.init == "kfed") + space

    @property
    def ends_early(self) -> bool:
        """Whether the run may settle early, or skip the search for a space (`gaussian` needs it for long examples)."""
        return self.settled is not None or self.density == "gaussian"

    @property
    def _exchanges(self) -> int:
        return 1 if self.density == "gaussian" else self.exchanges

    def _restarts(self) -> Restarts:
        return Restarts(inner=replace(self, restarts=1), times=self.restarts)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Algorithm 3, after finding a space and a start."""
        if self.restarts > 1:
            return self._restarts().run(fed, start)
        fed = fed.averaged_by(reduction_of(self))
        runs = {"space": self._find_space, "start": self._start, "rounds": self._alternate}
        return stages(fed, start, **runs)

    def _find_space(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        at = start or self._fresh(fed)
        if BASIS in at.models:
            yield from find_space(fed, at, self.space_steps)

    def _start(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        at = start or self._fresh(fed)
        if self.init == "kfed" and at.round == 0:
            start_from_centres(fed, at.models, self.k, self.k, self.least)
            yield at.next()

    def _fresh(self, fed: Federation) -> Snapshot:
        """One random model plus a little noise for each cluster, so that no cluster starts much better than others."""
        return Snapshot(
            models=self._models(fed), labels=torch.full((len(fed.names),), -1), seed=fed.seed, clock=fed.clock
        )

    def _models(self, fed: Federation) -> Params:
        one, key = fed.objective.init(fed.key("models")), fed.key("noise")

        def near(j: int) -> Params:
            common = (ORIGIN, BASIS)  # the same for all clusters
            noise = {name: normal(fold(key, j, name), tuple(value.shape)).to(value) for name, value in one.items()}
            return {name: value if name in common else value + self.noise * noise[name] for name, value in one.items()}

        return stack([near(j) for j in range(self.k)])

    def _alternate(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        at = start or self._fresh(fed)
        for r in range(at.round, self.rounds * self._exchanges):
            if "settled" in at.carry:
                return
            t, exchange = divmod(r, self._exchanges)
            relabel = exchange == 0 and t > 0
            models, sums = self._learn(fed, at, new=exchange == 0, relabel=relabel)
            notes: dict[str, Any] = {}
            carry: dict[str, Tensor] = {}
            if relabel:
                total = sums.weight.sum()
                notes = {name: float(sums.total[entry].sum() / total) for name, entry in SUMS_OF_NOTES.items()}
                notes["points"] = sums.weight.long().tolist()
                if self.settled is not None and notes["moved"] <= self.settled:
                    carry["settled"] = torch.ones(())
            yield (at := at.next(models=models, notes=notes, carry=carry))

    def _learn(self, fed: Federation, at: Snapshot, *, new: bool, relabel: bool) -> tuple[Params, Sums[tuple[()]]]:
        """One exchange of Algorithm 4: the clusters' models, and the clients' sums."""
        if self.density == "gaussian":
            sums = fed.clients.sum(
                relabel_and_sum, at.models, relabel=relabel, prior=self.prior, least=self.least
            ).value
            return fit_gaussians(at.models, sums, self.shrinkage), sums
        fresh = self._models(fed) if new and self.reinitialise else None
        guarded = fed.clients.near(at.models if fresh is None else fresh, loose=True, apart=True)
        sums = guarded.sum(
            relabel_and_train, at.models, fresh, local=self.local.at(at.round), relabel=relabel, prior=self.prior
        ).value
        trained = sums._replace(total={name: sums.total[name] for name in at.models})
        return trained.mean(empty=at.models), sums

    def score(self, fed: Federation, at: Snapshot) -> float:
        """The mean loss of all clients' examples, each under the model of its cluster."""
        replies = fed.clients.sum(sum_of_losses, at.models, prior=self.prior)
        return float(replies.value.total["loss"].sum() / replies.clients.sizes.sum())
