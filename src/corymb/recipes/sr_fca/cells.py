"""The experiments of SR-FCA (Vardhan, Ghosh, Mazumdar, TMLR 2024), which `recipe.py` tabulates.

A cell is `setting/method/seed` and returns plain numbers. All methods of a setting share its budget, and their models
start from the same w_0 (`IFCA`'s k models from w_0 and k - 1 others).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch

from corymb.algorithms import CFL, IFCA, SRFCA, Alone, FedAvg, FedSoft, LocalKMeans, OneShotIFCA, Oracle
from corymb.algorithms.parts.starts import publish_trained, rows_of
from corymb.algorithms.parts.then import Then
from corymb.algorithms.parts.work import Work
from corymb.algorithms.sr_fca import work_in_cluster
from corymb.clustering.grouping import k_means
from corymb.core.federation import Federation, each
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.data.dataset import FederatedDataset
from corymb.local import Descent, serve_assigned
from corymb.recipes.cells import device_name, whole
from corymb.recipes.sr_fca.settings import ORIGINAL, Setting, data_of, setting_named
from corymb.robust import group_mean, group_trimmed_mean
from corymb.runs.fit import fit
from corymb.runs.run import Run
from corymb.settings import did_you_mean, require
from corymb.trees import Params, concat, count, map_tensors, part_of, prefixed, take

# ---- two algorithms as in the authors' code, to measure the effect of the difference


@dataclass(frozen=True, kw_only=True)
class AliasedSRFCA(SRFCA):
    """SR-FCA whose clients share a round's weights in memory, as in the authors' code.

    Participants of a cluster train sequentially, each from the weights of the previous one; the trimmed mean is taken
    over the weights after each. A real federation could only do this with messages from client to client.
    """

    def _train(self, fed: Federation, at: Snapshot) -> Snapshot:
        models = part_of(at.carry, "omega") or _copies(part_of(at.carry, "w0"), at.k)
        cohort, work = self._participants(fed, at), Work(local=self.local.at(at.round))
        labels, rows = cohort.pick(at.labels), []
        turn = torch.stack([(labels[:place] == label).sum() for place, label in enumerate(labels)])
        order = turn.argsort(stable=True)
        for now in order.split(turn.bincount().tolist()):  # one client of each cluster at a time
            mine = labels[now]
            trained = cohort[now].map(work_in_cluster, each(models, of=mine), work=work).value.value
            models = {name: value.index_copy(0, mine.to(value.device), trained[name]) for name, value in models.items()}
            rows.append(trained)
        models = group_trimmed_mean(concat(rows), labels[order], models, trim=self.trim)
        return at.next(carry={**at.carry, **prefixed("omega", models)}, notes={"clusters": at.k})


@dataclass(frozen=True, kw_only=True)
class ScatteredKMeans:
    """Local-KMeans as in the authors' code: every client starts from its own random weights."""

    k: int
    alone: Descent
    rounds: int = 1

    serve = serve_assigned

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Train locally, cluster the models, and average them."""
        if start is not None and start.round:
            return
        at = Snapshot.fresh(fed, len(fed.clients))
        own = fed.clients.map(publish_trained, each(at.models), alone=self.alone)
        labels = k_means(rows_of(own.value), self.k, fed.key("k-means"))
        models = group_mean(own.value, labels, take(at.models, slice(0, int(labels.max()) + 1)))
        yield at.next(models=models, labels=(own.clients, labels))


def _copies(model: Params, k: int) -> Params:
    return map_tensors(lambda value: value.expand(k, *value.shape).clone(), model)


# ---- methods

GAMMA_MAX = 0.5
"""CFL's `gamma_max` in the authors' configuration for CIFAR-10."""


class Place(NamedTuple):
    """A setting with its data and seed, on which a method runs."""

    setting: Setting
    data: FederatedDataset
    seed: int

    def fit(self, algorithm: Algorithm, evaluate_every: int = 0) -> Run:
        """Run an algorithm with the setting's network."""
        precision = self.setting.precision if torch.cuda.is_available() else "float32"
        run = fit(
            algorithm,
            self.data,
            self.setting.model(),
            seed=self.seed,
            evaluate_every=evaluate_every,
            precision=precision,
        )
        return whole(run)


def sr_fca(at: Place, threshold: float | Literal["gap"] = "gap", **options: Any) -> SRFCA:
    """SR-FCA, by default with the threshold in the gap between distances."""
    s = at.setting
    given: dict[str, Any] = {
        "rounds": s.rounds,
        "local": s.local,
        "participants": s.each,
        "trim": s.trim,
        "costly": True,
    }
    return SRFCA(threshold=threshold, alone=s.alone, **{**given, **options})


def _with_paper_threshold(at: Place) -> SRFCA:
    require(at.setting.threshold is not None, "This setting has no λ from the paper: its data differ.")
    return sr_fca(at, at.setting.threshold or 0.0)


def _with_quantile(at: Place, share: float = 0.25) -> SRFCA:
    """SR-FCA with λ as a quantile of the distances, and pivot clustering, as in the authors' code for Shakespeare."""
    first = at.fit(sr_fca(at, refinements=0))
    notes = _noted(first, "distance_counts")
    return sr_fca(at, quantile(notes["distance_counts"], notes["distance_edges"], share), components="pivot")


def quantile(counts: Sequence[int], edges: Sequence[float], share: float) -> float:
    """A quantile of binned values, assumed uniform within each bin.

    >>> quantile([1, 3], [0.0, 1.0, 4.0], 0.5)
    2.0
    """
    wanted, below = share * sum(counts), [0, *accumulate(counts)]
    place = next(i for i in range(len(counts)) if below[i + 1] >= wanted and counts[i])
    return edges[place] + (edges[place + 1] - edges[place]) * (wanted - below[place]) / counts[place]


def _cfl(at: Place, accept: Literal["gamma", "evidence"] = "gamma") -> CFL:
    """CFL with thresholds relative to the longest update of a first round, since they have no natural scale."""
    first = at.fit(CFL(rounds=1, local=at.setting.local))
    longest = _noted(first, "longest_update")["longest_update"][0]
    settled, apart = (part * longest for part in at.setting.quiet)
    how: dict[str, Any] = {"gamma_max": GAMMA_MAX, "accept": accept, "settled": settled, "apart": apart}
    return CFL(rounds=at.setting.rounds, local=at.setting.local, **how)


def _ifca(at: Place, *, rounds: int | None = None, k: int | None = None, repair: bool = False) -> IFCA:
    s = at.setting
    return IFCA(k=k, rounds=rounds or s.rounds, local=s.local, participants=s.participants, repair=repair)


def _oracle(at: Place, rounds: int | None = None) -> Oracle:
    s = at.setting
    require(at.data.truth is not None, "This setting has no true clusters.")
    assert at.data.truth is not None
    inner = FedAvg(rounds=rounds or s.rounds, local=s.local, participants=s.each)
    return Oracle(groups=tuple(at.data.truth.tolist()), inner=inner)


def _global(at: Place, rounds: int | None = None) -> FedAvg:
    s = at.setting
    return FedAvg(rounds=rounds or s.rounds, local=s.local, participants=s.participants)


LOOSE_PULL = 0.01
"""A tenth of FedSoft's default, which keeps a recurrent network near its start: see papers/sr-fca/README.md."""


def _fedsoft(at: Place) -> FedSoft:
    s = at.setting
    return FedSoft(k=s.k, rounds=s.rounds, local=s.local, draws=s.each)


def _whole(at: Place) -> int:
    """The rounds of both refinements of SR-FCA together."""
    return 2 * at.setting.rounds


METHODS: Mapping[str, Callable[[Place], Algorithm]] = MappingProxyType(
    {
        "sr-fca": sr_fca,
        "local": lambda at: Alone(rounds=at.setting.rounds, local=at.setting.local),
        "global": _global,
        "cfl": _cfl,
        "cfl-evidence": lambda at: _cfl(at, "evidence"),
        "local-kmeans": lambda at: LocalKMeans(k=at.setting.k, alone=at.setting.alone),
        "ifca": lambda at: _ifca(at, k=at.setting.k),
        "fedsoft": _fedsoft,
        "fedsoft-loose": lambda at: replace(_fedsoft(at), pull=LOOSE_PULL),
        "one-shot-ifca": lambda at: OneShotIFCA(
            alone=at.setting.alone,
            rounds=at.setting.rounds,
            local=at.setting.local,
            participants=at.setting.participants,
            repair=False,
        ),
        "oracle": _oracle,
        "ifca-repair": lambda at: _ifca(at, k=at.setting.k, repair=True),
        "ifca-true-start": lambda at: Then(
            first=_oracle(at, 1), second=_ifca(at, rounds=at.setting.rounds - 1), names=("start", "ifca")
        ),
        "global-twice": lambda at: _global(at, _whole(at)),
        "ifca-twice": lambda at: _ifca(at, k=at.setting.k, rounds=_whole(at)),
        "sr-fca-lambda": _with_paper_threshold,
        "sr-fca-quantile": _with_quantile,
        "as-published": lambda at: AliasedSRFCA(**vars(sr_fca(at, at.setting.threshold or "gap"))),
        "local-kmeans-scattered": lambda at: ScatteredKMeans(k=at.setting.k, alone=at.setting.alone),
    }
)

# ---- a cell


def work(job: str) -> dict[str, Any]:
    """Run one cell; returns plain numbers. Accuracies are in per cent, means over clients as in the paper."""
    name, method, seed = job.split("/")
    require(method in METHODS, f"There is no method {method!r}. {did_you_mean(method, METHODS)}")
    at = Place(setting_named(name), data_of(name, int(seed)), int(seed))
    algorithm = METHODS[method](at)
    # Within the training of a refinement, clients are still served the models of the previous stage.
    staged = isinstance(algorithm, SRFCA)
    run = at.fit(algorithm, evaluate_every=at.setting.rounds + 1 if staged else 0)
    return {
        **numbers(run, at),
        **(stages(run) | costs_of_sr_fca(run, at) if staged else costs_of_ifca(run, at, method)),
    }


def numbers(run: Run, at: Place) -> dict[str, Any]:
    """The numbers that every cell records."""
    s, measured = at.setting, run.metrics
    about = {"clusters": run.clusters, "rounds": len(run.history), "seconds": round(run.seconds, 1)}
    names = ("misclustering", "ari", "purity") if run.clusters else ()
    agreement = {name: measured[name] for name in names if name in measured}
    return {
        "accuracy": 100 * measured["test_accuracy"],
        "accuracy_examples": 100 * measured["test_accuracy_examples"],
        "worst_decile": 100 * measured["worst_decile_accuracy"],
        **agreement,
        **about,
        **({"stopped": run.stopped} if run.stopped else {}),
        "budget": {"rounds": s.rounds, "steps": s.local.steps, "lr": s.local.lr, "batch": s.local.batch},
        "clients": len(at.data),
        "examples": int(at.data.sizes.sum()),
        "data": at.data.name if s.source == ORIGINAL else s.source,
        "source": s.source,
        "device": device_name(),
    }


def stages(run: Run) -> dict[str, Any]:
    """The data of Table 5 and Fig. 3: accuracy after each stage, and the distances between the clients' own models.

    A round of training inside `refine-1` is scored with the models served then, which are those of ONE_SHOT.
    """
    scored = {row["stage"]: row for row in run.history if "metrics" in row}
    after = [scored[stage] for stage in ("train-1", "train-2") if stage in scored] + [run.history[-1]]
    found = [100 * row["metrics"]["test_accuracy"] for row in after[:-1]] + [100 * run.metrics["test_accuracy"]]
    notes = _noted(run, "distance_counts")
    kept = ("distance_counts", "distance_edges", "threshold", "gap", "chance", "warning")
    return {
        "stages": found,
        "stage_clusters": [row["clusters"] for row in after],
        "stage_misclustering": [row["metrics"]["misclustering"] for row in after if "misclustering" in row["metrics"]],
        "distances": {name: notes[name] for name in kept if name in notes},
    }


# ---- Table 1: counted costs


def costs_of_sr_fca(run: Run, at: Place) -> dict[str, Any]:
    """Models sent, local steps, and evaluations of a model's loss at a client, summed over all clients."""
    s, n = at.setting, len(at.data)
    steps = losses = 0
    k = 0
    for row in run.history:
        if row["stage"] == "alone":
            steps += n * (s.alone.steps or 1)
        elif row["stage"] == "one-shot":
            losses += n * n
        elif row["stage"].startswith("train"):
            steps += row["asked"] * (s.local.steps or 1)
            k = row["notes"]["clusters"]
        else:
            losses += n * k
    return {"costs": {**_travelled(run), "steps": steps, "losses": losses, "losses_one_shot": n * n}}


def costs_of_ifca(run: Run, at: Place, method: str) -> dict[str, Any]:
    """The same costs for IFCA; empty for methods that are not in Table 1."""
    if method != "ifca":
        return {}
    asked = sum(row["asked"] for row in run.history)
    return {
        "costs": {**_travelled(run), "steps": asked * (at.setting.local.steps or 1), "losses": asked * at.setting.k}
    }


def _travelled(run: Run) -> dict[str, float]:
    size = sum(leaf.nbytes for leaf in run.models.values()) / count(run.models)
    total = sum(row["bytes_down"] + row["bytes_up"] for row in run.history)
    return {"models": round(total / size, 1), "megabytes": round(total / 1e6, 1)}


def _noted(run: Run, name: str) -> dict[str, Any]:
    notes: dict[str, Any] = next(row["notes"] for row in run.history if name in row["notes"])
    return notes
