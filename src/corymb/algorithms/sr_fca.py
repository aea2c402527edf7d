"""SR-FCA, the successive refinement federated clustering algorithm.

Vardhan, Ghosh, Mazumdar: An Improved Federated Clustering Algorithm with Model-based Clustering. Transactions on
Machine Learning Research 2024. λ: `threshold`, t: `least`, R: `refinements`, β: `trim`, T: `alone` in ONE_SHOT and
`rounds` in TrimmedMeanGD, η: `local.lr`, D: `diameter`, dist: `distance`, w_i: a client's own model, ω_c: a cluster's.

ONE_SHOT: every client trains alone from one start w_0; clients whose models are near form clusters, and nobody has
to say how many. REFINE, R times: TrimmedMeanGD trains a model in every cluster that a few wrong members cannot move;
RECLUSTER puts every client into the cluster it is nearest to; MERGE joins clusters whose models are near.

Served after ONE_SHOT: each client's own model, which it has kept; after each MERGE: the merged models.

Departures from the paper:

* `threshold="auto"`, the default, needs no λ: the clusters of ONE_SHOT are found by held-out examples
  (`corymb.algorithms.evidence`) and are not merged later. `threshold="gap"` finds λ in the distances
  (`corymb.clustering.thresholds`); where those show no clusters there is one.
* RECLUSTER leaves client i out of the loss F_c(w_i) of its own cluster: its overfitted loss would bias it to stay.
* MERGE dissolves merged clusters of fewer than `least` clients, which join the nearest other cluster; the paper keeps
  components of at least t *clusters*, which for t = 2 would delete every cluster that did not merge. The largest stays.
* A trimmed mean divides by the J − 2⌊βJ⌋ values kept; the paper divides by (1 − 2β) J.
* The set W is a ball of diameter D around w_0.
* `sample` compares every client with some of the others instead of all (`corymb.clustering.sampled` has the bound).
* `finish` continues training without trimming, as the paper proposes for later work; `components="pivot"` and
  `warm` are from the authors' code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.evidence.merging import MergeByEvidence
from corymb.algorithms.fedavg import FedAvg
from corymb.algorithms.fedprox import FedProx
from corymb.algorithms.parts.cost import pairwise_cost, warn_or_refuse
from corymb.algorithms.parts.merging import merge, recluster
from corymb.algorithms.parts.own_models import publish_own, serve_refined, train_alone
from corymb.algorithms.parts.then import stages
from corymb.algorithms.parts.within import within
from corymb.algorithms.parts.work import Averaging, Work, started_from
from corymb.algorithms.privately.rounds import check_budget, moved_privately, past_of, with_secret
from corymb.clustering.distances import measure_named
from corymb.clustering.sampled import apart_by_sample, compare_sample, join_nearest
from corymb.clustering.thresholds import pivot_groups, settle_threshold, threshold_groups
from corymb.core.averaging import Aggregate, Reduction, check_averaging
from corymb.core.client import Client, ClientFn, on_client
from corymb.core.federation import Cohort, Federation, Replies, TooFewReplies, each
from corymb.core.patience import ask_again, ask_again_near
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.keys import fold
from corymb.local import Descent, serve_assigned
from corymb.privacy import Privacy
from corymb.robust import group_mean, group_trimmed_mean, into_ball
from corymb.settings import InvalidInput, check_types, require
from corymb.trees import Params, add, count, map_tensors, part_of, prefixed, take

Step = Callable[[Federation, Snapshot], Snapshot]


class TrainedWithLoss(NamedTuple):
    """A client's result for its cluster's model: the trained model or the gradient, and the loss before."""

    value: Params
    loss: Tensor


@on_client
def work_in_cluster(client: Client, model: Params, *, work: Work) -> TrainedWithLoss:
    """Train the cluster's model, or take its gradient."""
    return TrainedWithLoss(*work.with_loss(client, model))


@dataclass(frozen=True, kw_only=True)
class SRFCA:
    """Clusters by distances between clients' own models, refined by training inside them; finds their number."""

    threshold: float | Literal["auto", "gap"] = "auto"
    """λ: clients, and clusters, at most this far apart belong together; `auto` finds the clusters with held-out
    examples instead, `gap` finds λ from the distances."""
    least: int = 2
    """t: clusters have at least this many clients."""
    refinements: int = 2
    """R; 0 is ONE_SHOT alone."""
    trim: float = 0.1
    """β: the share of a cluster's replies that is dropped at each end, in every coordinate."""
    alone: Descent = Descent(lr=0.1, steps=100)
    """How clients train alone."""
    rounds: int = 30
    """Rounds of training inside clusters (TrimmedMeanGD) in each of the `refinements`; finding the clusters, and
    `finish`, take additional rounds."""
    local: Descent = Descent(lr=0.1, steps=10)
    """Local training of members in a round; the gradient form uses only its step size."""
    averaging: Averaging = "models"
    """What the trimmed mean is taken of: the members' `models` after local training (FedAvg's form; needs fewer
    rounds), or their `gradients`, for one step per round at the server (the paper's Algorithm 3)."""
    distance: str = "losses"
    """Cross-losses (`losses`), or ℓq of the parameters: `l2`, `l1`, `linf`, ..."""
    components: Literal["graph", "pivot"] = "graph"
    """Clusters: connected components of the graph of near clients, or random pivots with all clients near them."""
    participants: int | float | None = None
    """Clients of each cluster that work in a round: a number, a fraction, or all of them."""
    warm: bool = False
    """Start TrimmedMeanGD at the clusters' last models instead of w_0."""
    aggregate: Aggregate = "trimmed"
    """How members' models are averaged: the paper's trimmed mean, or another robust aggregate; each tolerates β."""
    clip: float | None = None
    """Updates longer than this are clipped to this length."""
    privacy: Privacy | None = None
    """Differential privacy of clients in refinement, by means with noise; finding the clusters is not private."""
    diameter: float | None = None
    """Keep clusters' models in a ball of this diameter around w_0."""
    finish: FedAvg | FedProx | None = None
    """The algorithm that continues to train the last clusters."""
    sample: int | None = None
    """Compare every client with this many others, drawn once, instead of with all: for thousands of clients."""
    costly: bool = False
    """Compare all clients with each other even if that is estimated to take more than an hour, or too much memory."""

    keeps_memory = True
    rounds_come_last = False

    def __post_init__(self) -> None:
        check_types(self)
        given = self.threshold in ("auto", "gap") or (not isinstance(self.threshold, str) and self.threshold > 0)
        require(given, f"threshold must be positive, 'auto' or 'gap', got {self.threshold}.")
        require(self.least >= 1, f"least must be at least 1, got {self.least}.")
        require(self.refinements >= 0, f"refinements must not be negative, got {self.refinements}.")
        require(0 <= self.trim < 0.5, f"trim must be at least 0 and below 1/2, got {self.trim}.")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}.")
        require(self.diameter is None or self.diameter > 0, f"diameter must be positive, got {self.diameter}.")
        require(self.sample is None or self.sample >= 2, f"sample must be at least 2, got {self.sample}.")
        measure_named(self.distance)
        check_averaging(self)
        if self.privacy is not None:
            plain = self.aggregate == "trimmed" and self.clip is None
            require(plain, "privacy takes means: leave aggregate and clip out (privacy.clip is the one that counts).")
            require(self.finish is None, "finish is not covered by SR-FCA's privacy: leave it out.")
            require(self.privacy.labels is None, "SR-FCA's clusters are found by models: leave privacy.labels out.")
            require(self.refinements > 0, "privacy is for refinement: refinements must be at least 1.")

    @property
    def planned_rounds(self) -> int:
        """Two for ONE_SHOT, `rounds` and one more for each REFINE, and those of `finish`."""
        first = planned_rounds(self._finder) if self.threshold == "auto" else 0
        return first + sum(rounds for _, rounds, _ in self._plan) + (planned_rounds(self.finish) if self.finish else 0)

    @property
    def ends_early(self) -> bool:
        """Whether the number of rounds is not known in advance, as in the search for clusters."""
        return self.threshold == "auto"

    @property
    def _finder(self) -> MergeByEvidence:
        return MergeByEvidence(alone=self.alone, work=Work(local=self.local), participants=self.participants)

    @property
    def _plan(self) -> list[tuple[str, int, Step]]:
        """Algorithm 1: stages, with their numbers of rounds."""
        plan: list[tuple[str, int, Step]] = [("alone", 1, self._train_alone), ("one-shot", 1, self._one_shot)]
        for r in range(1, self.refinements + 1):
            plan += [(f"train-{r}", self.rounds, self._train), (f"refine-{r}", 1, self._refine)]
        return plan

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """ONE_SHOT, REFINE R times, then `finish`; with `threshold="auto"` after a search for the clusters."""
        if self.privacy is not None:
            past = past_of(start, self._private_rounds(start)) if start else ()
            check_budget(self.privacy, fed, rounds=self.refinements * self.rounds, past=past)
        if start is None:
            cost = pairwise_cost(fed, losses=self.distance == "losses", sample=self.sample)
            warn_or_refuse(cost, f"SR-FCA with {len(fed.clients):,} clients", asked=self.costly)
        if self.threshold == "auto":
            return stages(fed, start, find=self._finder.run, refine=self._from_found)
        return self._successive(fed, start or Snapshot.fresh(fed, 1))

    def _from_found(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        assert start is not None  # the clusters come from the stage before
        if not start.stage:
            found = {"found": start.labels, **prefixed("omega", start.models), **start.account}
            start = replace(start, models=Snapshot.fresh(fed, 1).models, carry=found)
        return self._successive(fed, start)

    def _successive(self, fed: Federation, at: Snapshot) -> Iterator[Snapshot]:
        stages = [name for name, _, _ in self._plan]
        done = stages.index(at.stage) if at.stage in stages else len(stages) if at.stage == "finish" else 0
        for stage, rounds, step in self._plan[done:]:
            at = at if at.stage == stage else replace(at, stage=stage, round=0)
            for _ in range(at.round, rounds):
                yield (at := step(fed, at))
        if self.finish is not None:
            groups = at.carry.get("groups", at.labels)
            for inner in within(fed, groups, self.finish, at if at.stage == "finish" else at.handover()):
                yield replace(inner, stage="finish", carry={**inner.carry, "groups": groups})

    def _train_alone(self, fed: Federation, at: Snapshot) -> Snapshot:
        """ONE_SHOT at the clients: T steps from w_0."""
        start = take(at.models, slice(0, 1))

        def ask(clients: Cohort) -> Replies[Tensor]:
            return clients.map(train_alone, take(start, 0), alone=self.alone)

        replies = ask_again(fed.clients, ask(fed.clients), ask)
        notes = {"train_loss": float(replies.value.mean())}
        trained = {} if len(replies.clients) == len(fed.clients) else {"trained": replies.clients.ids}
        carry = {**at.carry, **trained}
        return at.next(models=start, labels=torch.full_like(at.labels, -1), carry=carry, notes=notes)

    def _one_shot(self, fed: Federation, at: Snapshot) -> Snapshot:
        """ONE_SHOT at the server: clusters of clients with near models, each with the mean of its members' models."""
        start, measure = take(at.models, 0), measure_named(self.distance)
        trained = Cohort(fed, at.carry["trained"]) if "trained" in at.carry else fed.clients
        # Clients that do not reply get no cluster.
        own = ask_again_near(trained, _copies(start, 1), lambda clients: clients.map(publish_own))
        if self.sample is not None and self.sample < len(own.clients):
            return self._one_shot_by_sample(fed, at, own)
        known = measure.known(own.clients, own.value)
        members = known.clients
        if self.threshold == "auto":
            threshold, notes = 0.0, dict[str, Any]()
            labels, k = members.pick(at.carry["found"]), count(part_of(at.carry, "omega"))
            if bool((labels < 0).any()):
                labels = _completed(labels, measure.between_clients(known.value))
        else:
            distances = measure.between_clients(known.value)
            threshold, notes = settle_threshold(
                self.threshold, distances, fed.key("threshold"), least=self.least, squared=measure.squared
            )
            order, least = members.pick(fed.name_hashes), min(self.least, len(members))
            labels = self._groups(distances, threshold, fed, order, least)
            k = int(labels.max()) + 1
            if k == 0:
                nearest = float(distances.clone().fill_diagonal_(torch.inf).min())
                raise _no_neighbours_error(fed, members, threshold, f"the nearest are {nearest:.3g} apart")
        return self._clustered(at, own, members, labels, k, threshold, notes, {"known": known.value})

    def _clustered(
        self,
        at: Snapshot,
        own: Replies[Params],
        members: Cohort,
        labels: Tensor,
        k: int,
        threshold: float,
        notes: Mapping[str, Any],
        carry: Mapping[str, Tensor],
    ) -> Snapshot:
        """The snapshot after ONE_SHOT: every cluster has the mean of its members' own models."""
        start = take(at.models, 0)
        models = group_mean(take(own.value, own.clients.pick(members.mask)), labels, _copies(start, k))
        fixed = {} if self.threshold == "auto" else {"threshold": torch.tensor(threshold, dtype=torch.float64)}
        omega = prefixed("omega", part_of(at.carry, "omega"))
        carry = {"members": members.ids, **carry, **fixed, **omega, **at.account, **prefixed("w0", start)}
        notes = {**notes, "clusters": k, "without_cluster": int((labels < 0).sum())}
        return at.next(models=models, labels=self._labelled(at, members, labels), carry=carry, notes=notes)

    def _labelled(self, at: Snapshot, members: Cohort, labels: Tensor) -> Tensor:
        """The labels of all clients; one that was not compared keeps the cluster found by evidence, or has none."""
        return members.put(at.carry["found"] if self.threshold == "auto" else at.labels, labels)

    def _one_shot_by_sample(self, fed: Federation, at: Snapshot, own: Replies[Params]) -> Snapshot:
        """ONE_SHOT by a sample of clients: clusters are formed inside the sample, and all others join the nearest."""
        assert self.sample is not None
        measure = measure_named(self.distance)
        seen = compare_sample(measure, own.clients, own.value, self.sample)
        members, notes, threshold = seen.clients, dict[str, Any](), 0.0
        if self.threshold == "auto":
            found = members.pick(at.carry["found"])
            labels = torch.where(found >= 0, found, join_nearest(seen.apart, seen.few, found[seen.few]))
            k = count(part_of(at.carry, "omega"))
        else:
            between = seen.apart[seen.few]
            between = (between + between.T) / 2
            threshold, notes = settle_threshold(
                self.threshold, between, fed.key("threshold"), least=self.least, squared=measure.squared
            )
            order = members.pick(fed.name_hashes)[seen.few]
            few = self._groups(between, threshold, fed, order, min(self.least, len(seen.few)))
            k = int(few.max()) + 1
            if k == 0:
                raise _no_neighbours_error(fed, members, threshold, f"{len(seen.few)} were drawn as the sample")
            labels = join_nearest(seen.apart, seen.few, few)
        carry = {"known": seen.known, "few": seen.few}
        return self._clustered(at, own, members, labels, k, threshold, notes, carry)

    def _train(self, fed: Federation, at: Snapshot) -> Snapshot:
        """A round of Algorithm 3, TrimmedMeanGD, in all clusters at once; the models in training are carried."""
        start, local = part_of(at.carry, "w0"), self.local.at(at.round)
        models = part_of(at.carry, "omega") or (at.models if self._warm else _copies(start, at.k))
        if self.privacy is not None and at.stage == "train-1" and not at.round:
            models = _copies(start, at.k)  # means of local models are not private
        cohort = self._participants(fed, at)
        work = Work(local=local, averaging=self.averaging)
        assigned = cohort.pick(at.labels)
        if self.privacy is not None:
            done = self._private_rounds(at)
            at = with_secret(at, self.privacy)
            models, notes, account = moved_privately(self.privacy, fed, cohort, at, models, work, done=done)
            carry = {**at.carry, **account, **prefixed("omega", models)}
            return at.next(carry=carry, notes={**notes, "clusters": at.k})
        guarded = cohort.near(started_from(models, work), by=torch.nn.functional.one_hot(assigned, count(models)))
        replies = guarded.map(work_in_cluster, each(models, of=assigned), work=work)
        labels, rows = replies.clients.pick(at.labels), replies.value.value
        if self.averaging == "gradients":
            still = map_tensors(torch.zeros_like, models)
            models = add(models, self._averaged(rows, labels, still), alpha=-local.lr)
        else:
            models = self._averaged(rows, labels, models)
        if self.diameter is not None:
            models = into_ball(models, start, self.diameter / 2)
        notes = {"train_loss": float(replies.value.loss.mean()), "clusters": at.k}
        return at.next(carry={**at.carry, **prefixed("omega", models)}, notes=notes)

    def _private_rounds(self, at: Snapshot) -> int:
        """How many private rounds this run has done."""
        kind, _, refinement = at.stage.rpartition("/")[2].partition("-")
        if kind not in ("train", "refine"):
            return 0
        return (int(refinement) - 1) * self.rounds + (at.round if kind == "train" else self.rounds)

    def _averaged(self, rows: Params, labels: Tensor, starts: Params) -> Params:
        if self.aggregate == "trimmed" and self.clip is None:
            return group_trimmed_mean(rows, labels, starts, trim=self.trim)
        return Reduction(self.aggregate, self.clip, self.trim).within(rows, labels, starts)

    def _refine(self, fed: Federation, at: Snapshot) -> Snapshot:
        """RECLUSTER and MERGE, after one call to all clients."""
        measure, models = measure_named(self.distance), part_of(at.carry, "omega")
        members, threshold = Cohort(fed, at.carry["members"]), float(at.carry.get("threshold", 0.0))
        fit = ask_again(members, measure.fit(members, models), lambda late: measure.fit(late, models))
        here = members.pick(fit.clients.mask)
        silent = at.labels[~fit.clients.mask]
        before = fit.clients.pick(at.labels)
        if "few" in at.carry:
            distances = apart_by_sample(at.carry["known"].cpu(), at.carry["few"], here, fit.value, before)
            labels = distances.argmin(1)
        else:
            known = at.carry["known"].cpu()
            known = known if bool(here.all()) else known[here][:, here]
            labels, distances = recluster(measure, known, fit.value, before)
        group = partial(self._groups, threshold=threshold, fed=fed)
        merged = merge(measure, models, fit.value, labels, distances, group, self.least, silent[silent >= 0])
        # Clients that did not answer keep their cluster.
        everybody = torch.where(at.labels < 0, -1, merged.new_cluster[at.labels])
        carry = {name: value for name, value in at.carry.items() if not name.startswith("omega/")}
        notes = {
            "clusters": count(merged.models),
            "moved": int((labels != before).sum()),
            "merged": len(labels.unique()) - count(merged.models) - merged.dissolved,
            "dissolved": merged.dissolved,
        }
        labels = fit.clients.put(everybody, merged.labels)
        return at.next(models=merged.models, labels=labels, carry=carry, notes=notes)

    @property
    def serve(self) -> ClientFn[..., Params]:
        """Clients keep their own models until they are compared with the clusters'; without that, `finish` trains."""
        return serve_assigned if self.finish is not None and not self.refinements else serve_refined

    @property
    def _warm(self) -> bool:
        """Clusters found by evidence come with trained models."""
        return self.warm or self.threshold == "auto"

    def _groups(
        self, distances: Tensor, threshold: float, fed: Federation, order: Tensor | None = None, least: int = 1
    ) -> Tensor:
        order = torch.arange(len(distances)) if order is None else order
        if self.threshold == "auto":  # clusters found to be apart are not merged by distance
            return torch.arange(len(distances))
        if self.components == "graph":
            return threshold_groups(distances, threshold, order=order, least=least)
        return pivot_groups(distances, threshold, order=order, draws=fold(fed.key("pivots"), order), least=least)

    def _participants(self, fed: Federation, at: Snapshot) -> Cohort:
        chosen = [fed.clients.where(at.labels == c).sample(self.participants).mask for c in range(at.k)]
        return fed.clients.where(torch.stack(chosen).any(0))


def _completed(labels: Tensor, distances: Tensor) -> Tensor:
    """Labels with missing ones (-1) filled in by the cluster that is nearest on average."""
    known = labels >= 0
    clusters = labels[known].unique()
    mean_distances = torch.stack([distances[:, labels == cluster].mean(1) for cluster in clusters], dim=1)
    return torch.where(known, labels, clusters[mean_distances.argmin(1)])


def _no_neighbours_error(fed: Federation, members: Cohort, threshold: float, why: str) -> Exception:
    """The error for a threshold that forms no cluster; if some clients did not answer, the round may be retried."""
    problem = f"threshold={threshold:.3g} puts no clients together: {why}"
    if len(members) < len(fed.clients):
        return TooFewReplies(f"{problem}, and {len(members)} of {len(fed.clients)} answered.")
    return InvalidInput(f"{problem}; give a larger threshold, or leave it out.")


def _copies(model: Params, k: int) -> Params:
    return map_tensors(lambda value: value.expand(k, *value.shape).clone(), model)
