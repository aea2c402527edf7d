"""The result of a run: clusters, models, metrics and history; a plain value.

Saving, loading and reporting are called from here: `runs.folder` and `report` do not import this module at run time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from corymb.algorithms.parts.repair import unwatched
from corymb.core.client import Served
from corymb.core.federation import Ledger
from corymb.core.objective import Examples, Objective, model_takes
from corymb.core.snapshot import Snapshot
from corymb.data.features import Array
from corymb.data.schema import DataSchema
from corymb.engines.isolation import torch_quiet
from corymb.evaluate import ByClient, clusters_in_use
from corymb.keys import fold, root
from corymb.objectives.linear_form import linear_form
from corymb.objectives.measures import METRICS
from corymb.objectives.module import Units, module_of
from corymb.objectives.points import PointModel, models_points
from corymb.runs.assign import Assignment, Calibration, assign, features_of, rows_of, targets_of
from corymb.runs.folder.contents import save_run
from corymb.runs.folder.own_model import answers_of, check_answers, check_parameters
from corymb.runs.folder.reader import read_own, read_run
from corymb.runs.history import Round, counted, plain, readable, unfinished
from corymb.runs.learners import MODELS, Model, learner_for
from corymb.runs.missed import not_scored, often_rejected
from corymb.runs.serving import (
    OwnModels,
    ServedBy,
    Serving,
    ask_own,
    ask_served,
    by_blocks,
    classes_at,
    predictions,
    served_at,
    served_in,
)
from corymb.runs.standardise.objective import Standard, Standardised
from corymb.settings import InvalidInput, did_you_mean, printable, require
from corymb.trees import Params, take

log = logging.getLogger(__name__)
OF_EXAMPLES = "This run clusters examples, not clients"
Labelled = tuple[ArrayLike, ArrayLike]
"""Examples of a client and their labels."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Run:
    """The result of `fit`: models, clusters, metrics and history of a run, finished or stopped early."""

    snapshot: Snapshot
    """The final state, on the CPU; `fit(..., start=run.snapshot)` continues from it."""
    names: Sequence[str]
    """The clients, in the order of the snapshot's labels."""
    history: list[Round]
    """One record per round: see `corymb.runs.history`."""
    metrics: dict[str, float]
    """Metrics of the last round: see docs/metrics.md."""
    ledger: Ledger
    config: dict[str, Any]
    seconds: float
    schema: DataSchema
    """The schema of the clients' data."""
    objective: Objective | None = None
    """None after loading a run with your own model: pass the model to `Run.load`."""
    standard: Standard | None = None
    """Means and scales of the features, if they were standardised."""
    stopped: str = ""
    """Why the run ended early: `interrupted`, `max_seconds`, `diverged`, `callback` or `killed`; else empty."""
    serving: Serving | None = None
    losses: torch.Tensor | None = None
    """n k: each client's training loss under each final model, NaN if it sent none; None if clients keep their own
    models or there are too many losses."""
    scores: torch.Tensor | None = None
    """n: the test score of each client's model; NaN for a client without test examples."""
    by_client: dict[str, ByClient] = field(default_factory=dict)
    """Every metric at every client, by the metric's name: see docs/metrics.md."""
    points: tuple[int, ...] = ()
    """How many training examples each cluster has, if examples are clustered."""
    not_scored: tuple[str, ...] = ()
    """Clients that could not be scored in the last round; if there are any, means over clients are infinite."""
    calibration: Calibration | None = None
    """How large the losses of the run's clients are: `assign` uses it to decide that no cluster fits."""
    folder: Path | None = None
    """The run's folder, if it has one."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Versions, git commit, hardware, platform, seed and command line."""

    @cached_property
    def labels(self) -> dict[str, int]:
        """Each client's cluster, by name; -1 for none. Empty if examples are clustered instead of clients."""
        return self._labels_by_name()

    def _labels_by_name(self) -> dict[str, int]:
        if self.served == "points":
            return {}
        return dict(zip(self.names, self.snapshot.labels.tolist(), strict=True))

    @property
    def models(self) -> Params:
        """The clusters' models, k rows."""
        return self.snapshot.models

    @property
    def clusters(self) -> int:
        """How many clusters have clients (or examples, if examples are clustered)."""
        if self.served == "points":
            return sum(size > 0 for size in self.points)
        return clusters_in_use(self.snapshot.labels)

    @property
    def sizes(self) -> dict[int, int]:
        """How many clients each cluster has (or training examples, if examples are clustered)."""
        if self.served == "points":
            return dict(enumerate(self.points))
        return dict(sorted(Counter(self.snapshot.labels.tolist()).items()))

    @property
    def rejected(self) -> list[dict[str, Any]]:
        """Replies that were rejected: clock, client, reason."""
        return self.ledger.rejected

    @property
    def served(self) -> ServedBy:
        """Which model clients use: that of their cluster, a mixture of all models, or their own."""
        return served_at(self.config["record"]["served"], self.snapshot)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.snapshot.seed

    @property
    def metric(self) -> str | None:
        """The leading metric: the chosen one, or the objective's own; None without test examples."""
        prefix = "worst_decile_"
        own = next((name.removeprefix(prefix) for name in self.metrics if name.startswith(prefix)), None)
        return self.config.get("metric") or own

    def higher_is_better(self, metric: str) -> bool:
        """Whether a metric of test examples is better when it is higher."""
        if self.objective is not None and metric == self.objective.score_name:
            return self.objective.higher_is_better
        if metric in METRICS:
            return METRICS[metric].higher_is_better
        # A loaded run may lack its objective; the worst tenth of clients is on the worse side of the mean.
        return self.metrics[f"worst_decile_{metric}"] <= self.metrics[f"test_{metric}"]

    def model(self, which: str | int) -> Params:
        """The parameters of a cluster's model (given its number) or of a client's (given its name)."""
        if isinstance(which, str):
            served = self._served(self._position(which))
            if isinstance(served, Served):
                raise InvalidInput(f"Client {which!r} uses a mixture of models: get them as model(0), model(1), ...")
            return served
        require(self.served != "own", "Each client of this run has its own model: give a client's name.")
        require(0 <= which < self.snapshot.k, f"There is no cluster {which}: the run has {self.snapshot.k}.")
        return take(self.models, which)

    @property
    def coefficients(self) -> torch.Tensor:
        """Coefficients of linear models, in the units of the data: k rows, one number per feature, then the intercept.

        If a feature has a limit (`standard.limit`), they hold within it; beyond it, values grow as a logarithm.
        """
        form = None if self.objective is None else linear_form(self.objective)
        plain = form is not None and getattr(self.objective, "features", None) is None
        require(plain, "These models are not linear in the features, so they have no coefficients.")
        assert form is not None
        theta, d = form.coefficients(self.models).double(), self.schema.size
        slopes, intercept = theta[:, :d], theta[:, d:].sum(1)
        if self.standard is not None:
            mean, scale, target_mean, target_scale = (value.double().flatten() for value in self.standard[:4])
            slopes = slopes * target_scale / scale
            intercept = target_mean + target_scale * intercept - slopes @ mean
        return torch.cat([slopes, intercept[:, None]], 1)

    def module(self, which: int | str) -> nn.Module:
        """The model of a cluster (a number) or of a client (a name) as a plain `torch.nn.Module`, without Corymb.

        It takes a batch of raw features (pictures: channels first, in [0, 1] or as bytes), standardises them, and
        returns a logit for each of `schema.classes`, or targets in the units of the data.
        """
        params = self.model(which)
        self._objective()  # raises if the model is missing
        assert self.objective is not None
        units = None if self.standard is None else Units(*self.standard[:5])
        return module_of(self.objective, params, units, targets=self.schema.task == "regression")

    def predict(
        self, x: ArrayLike, client: str | int | None = None, *, cluster: int | None = None, new: Labelled | None = None
    ) -> Array:
        """A class or a number for each example, from the model of a client, of a cluster, or for a new client.

        Pass one of `client` (a name or a position), `cluster` (a number) and `new` (a few labelled examples `(x, y)` of
        a client that took no part: the model is that of the cluster that `assign` finds for it). Features are in the
        units of the data that the run was given. Classes are numbers if they read as numbers in the data, booleans if
        they were true and false, else names.
        """
        served = self._chosen(client, cluster, new)
        return self._predictions(self._outputs(served, self._examples(x)))

    def predict_proba(
        self, x: ArrayLike, client: str | int | None = None, *, cluster: int | None = None, new: Labelled | None = None
    ) -> Array:
        """The probability of each class for each example: m rows, a column for each of `schema.classes`.

        Choose the model as for `predict`; a client that uses several models at once gets their mixture.
        """
        require(
            self.schema.task == "classification",
            "This run predicts numbers, which have no class probabilities: use predict.",
        )
        served = self._chosen(client, cluster, new)
        return self._outputs(served, self._examples(x)).softmax(-1).numpy()

    def answers(
        self, features: torch.Tensor, client: str | int | None = None, *, cluster: int | None = None
    ) -> tuple[Array, Array | None]:
        """What `predict` and, for classes, `predict_proba` return, of one pass over features that are prepared."""
        out = self._outputs(self._chosen(client, cluster, None), self._typed(features))
        return self._predictions(out), None if self.schema.task == "regression" else out.softmax(-1).numpy()

    def assign(self, x: ArrayLike, y: ArrayLike) -> Assignment:
        """The cluster of a new client with these labelled examples and its probability, or the answer that none fits.

        Features and labels are in the form and the units of the data that the run was given.
        """
        (answer,) = self._assigned(x, y).values()
        return answer

    def assign_each(self, x: ArrayLike, y: ArrayLike, client: ArrayLike) -> dict[str, Assignment]:
        """The clusters of several new clients, by name, each as `assign` finds it; `client` names that of each row."""
        return self._assigned(x, y, np.asarray(client).astype(np.str_))

    def _assigned(self, x: ArrayLike, y: ArrayLike, owners: Array | None = None) -> dict[str, Assignment]:
        require(
            self.served != "own",
            "Each client of this run has its own model: there are no clusters to assign a new client to. Algorithms "
            "with clusters, such as ifca, have them.",
        )
        require(
            self.served != "points",
            f"{OF_EXAMPLES}: use assign_points(x) (on the command line corymb predict RUN FILE).",
        )
        features, labels = self._examples(x), targets_of(y, self.schema)
        require(
            len(features) == len(labels) > 0,
            f"Give one label for each example: got {len(features)} examples and {len(labels)} labels.",
        )
        used = torch.zeros(self.snapshot.k, dtype=torch.bool)
        used[self.snapshot.labels[self.snapshot.labels >= 0].unique()] = True
        require(bool(used.any()), "The run has no clusters: no client took part in a round.")
        labels = labels.to(self._dtype) if labels.is_floating_point() else labels
        owners = np.full(len(labels), "") if owners is None else owners
        require(
            owners.shape == (len(labels),),
            f"Give one client for each example: got {len(labels)} examples and {owners.size} clients.",
        )
        named = rows_of(owners)
        order = torch.from_numpy(np.concatenate([rows for _, rows in named]))
        examples = Examples(features[order], labels[order], torch.ones(len(labels)))
        sizes = [len(rows) for _, rows in named]
        with torch_quiet(), model_takes(features):
            found = assign(self._objective(), self.models, used, examples, sizes, self.calibration)
        return {name: answer for (name, _), answer in zip(named, found, strict=True)}

    def refresh(self, data: Any, *, rounds: int | None = None, **options: Any) -> Run:
        """Continue this run with new examples for its clients, and with new clients; returns a new run.

        Arguments:
            data: The current data, of the same kind: all examples that each client has from now on.
            rounds: How many more rounds; if not given, as many as the algorithm has.
            options: `out`, a new folder; `model` and `algorithm`, if they are your own and the run was loaded;
                `progress`, `callbacks` and `metrics` as for `fit`.

        Models stay, and so do the clusters of known clients; new clients get a cluster in the first round. History and
        ledger continue. If models stay with clients, the run must be the one that `fit` returned, with the same
        clients, which then belong to the new run.
        """
        import corymb  # what starts runs stands above this module

        return corymb.refresh(self, data, rounds=rounds, **options)

    def assign_points(self, x: ArrayLike) -> Array:
        """The cluster of each example: that of its most likely density, or the one that ClusterGAN's encoder finds.

        For runs that cluster examples; their models need no labels. Features are in the units of the run's data.
        """
        model, objective = self._model_of_points("assign_points"), self._objective()
        features = self._examples(x)
        with torch.no_grad():
            seen = objective.seen(features) if isinstance(objective, Standardised) else features
            labels: Array = by_blocks(partial(model.label_points, self.models), seen).numpy()
        return labels

    def sample(self, cluster: int, n: int, seed: int = 0) -> Array:
        """n new examples from a cluster's model, in the units and the shape of the run's data."""
        require(n >= 1, f"n must be at least 1, got {n}.")
        require(0 <= cluster < len(self.points), f"There is no cluster {cluster}: the run has {len(self.points)}.")
        model = self._model_of_points("sample")
        with torch.no_grad():
            drawn = model.sample_cluster(self.models, cluster, fold(root(seed), "sample", cluster), n)
        drawn = drawn.reshape(n, *self.schema.features)
        sampled: Array = (drawn if self.standard is None else self.standard.restored(drawn)).numpy()
        return sampled

    def _model_of_points(self, method: str) -> PointModel:
        self._objective()  # raises if the model is missing
        model: object = self.objective
        if not models_points(model):
            wanted = f"{method} is for runs that cluster examples (uifca, kfed, clustergan)"
            raise InvalidInput(f"{wanted}, but the model of this run is {self.config['model']}.")
        return model

    @property
    def evidence(self) -> dict[str, Any]:
        """What held-out examples showed, if clusters were found by evidence: see docs/explanation/evidence.md."""
        found = [row["notes"] for row in self.history if "gain_by_cluster" in row["notes"]]
        return dict(found[-1]) if found else {}

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that the command line prints."""
        ledger = {name: getattr(self.ledger, name) for name in ("bytes_down", "bytes_up", "rounds")}
        result = {
            "labels": self._labels_by_name(),  # not kept: a run of a million clients is saved without a dict of them
            "metrics": self.metrics,
            "not_scored": list(self.not_scored),
            "clusters": self.clusters,
            **({"points": list(self.points)} if self.points else {}),
            "ledger": ledger,
            "rejected": self.rejected,
            "seconds": round(self.seconds, 3),
            "config": self.config,
            "seed": self.seed,
            **({"stopped": self.stopped} if self.stopped else {}),
            **({"evidence": self.evidence} if self.evidence else {}),
        }
        return {name: plain(value) for name, value in result.items()}

    def to_dataframe(self) -> Any:
        """The history as a pandas DataFrame, one row per round; metrics are in columns called `metrics.<name>`."""
        import pandas as pd

        return pd.json_normalize([{k: v for k, v in row.items() if k != "moves"} for row in self.history])

    def save(self, folder: str | Path) -> Path:
        """Write the run to a new or empty folder; `Run.load` reads it."""
        return save_run(self, folder)

    @staticmethod
    def load(folder: str | Path, model: Model | None = None) -> Run:
        """Load the run in a folder. If its model is your own, pass that model again to predict."""
        parts = read_run(folder)
        recorded, given = parts["config"]["model"], model
        if model is None and recorded in MODELS:  # a name in a file must not decide which code runs
            model = recorded
        schema, dropout = parts["schema"], parts["config"].get("dropout", "on")
        with torch_quiet():
            objective = None if model is None else learner_for(model, schema, dropout=dropout).objective
        run = Run(**parts, objective=objective)
        if given is None or objective is None:
            return run
        if run.served != "points":  # the parameters of point models depend on the number of clusters
            check_parameters(objective.init(root(0)), run.models, recorded)
        wanted = run.config["record"].get("answers")
        if recorded in MODELS:
            wanted = answers_of(learner_for(recorded, schema, dropout=dropout).objective, schema)
        check_answers(answers_of(objective, schema), wanted, recorded)
        return run

    def report(self, *others: Run, path: str | Path | None = None) -> Path:
        """Write a report on the run, compared with other runs if given; returns the file."""
        from corymb.report.html import write_report

        return write_report([self, *others], None if path is None else Path(path))

    def __repr__(self) -> str:
        sizes = ", ".join(str(size) for label, size in self.sizes.items() if label >= 0)
        others = ("test_", "worst_decile_", "trivial_", "undefined_")
        headline = [f"{what}{self.metric}" for what in others]
        shown = [
            f"{name} {readable(value)}"
            for name, value in self.metrics.items()
            if name in headline or not name.startswith(others)
        ]
        if self.served == "own":
            groups = f"{len(self.names)}, each with a model of its own"
        elif self.points:
            groups = f"{len(self.names)}, examples in {counted(self.clusters, 'cluster')} of {sizes}"
        else:
            groups = f"{len(self.names)} in {counted(self.clusters, 'cluster')} of {sizes or 'none'}"
        lines = [
            f"Run of {self.config['algorithm']} on {self.config['data']} with {self.config['model']}, seed {self.seed}",
            f"  clients   {groups}",
            f"  metrics   {', '.join(shown)}",
            f"  ledger    {counted(len(self.history), 'round')}, "
            f"{self.ledger.bytes_down} bytes down, {self.ledger.bytes_up} up",
        ]
        if self.stopped:
            lines.append(f"  stopped   {self.stopped}")
        elif falls := unfinished(self.history, self.config):
            lines.append(f"  note      {falls}")
        if few := unwatched(self.config, len(self.names)):
            lines.append(f"  note      {few}")
        lines += [f"  note      {line}" for line in often_rejected(self.rejected, len(self.history))]
        if self.not_scored:
            lines.append(f"  note      {not_scored(self.not_scored, len(self.names))}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The run as shown in notebooks."""
        from corymb.report.notebook import run_html

        return run_html(self)

    @cached_property
    def _positions(self) -> dict[str, int]:
        """The position of every client, by its name."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def _numbered(self) -> dict[int, str]:
        """The first client whose name is a number, by that number: a table of ids may write leading zeros."""
        return {int(name): name for name in reversed(self.names) if name.isdecimal()}

    def _position(self, client: str | int) -> int:
        if isinstance(client, str):
            named = client if client in self._positions else printable(client)  # as names of clients are kept
            if named not in self._positions:
                raise InvalidInput(f"There is no client {client!r}. {did_you_mean(client, self.names[:1000])}")
            return self._positions[named]
        place = _integer(client, "client", "the name of a client, or its position")
        other = self._numbered.get(place)
        known = 0 <= place < len(self.names)
        hint = "" if other is None else f" A number is a position; the name is text, client={other!r}."
        require(known, f"There is no client {place}: the run has {len(self.names)}.{hint}")
        named = self.names[place]
        require(
            other is None or (named.isdecimal() and int(named) == place),
            f"client={place} is ambiguous: it is the position of client {named!r}, and there is a client {other!r}. "
            f"Give the name as text, client={other!r} or client={named!r}.",
        )
        return place

    def _chosen(self, client: str | int | None, cluster: int | None, new: Labelled | None) -> Params | Served:
        """The model that predicts, or a mixture of several."""
        require(self.served != "points", f"{OF_EXAMPLES}, and has no predictions: use assign_points(x) for clusters.")
        choices = sum(choice is not None for choice in (client, cluster, new))
        require(choices == 1, "Choose the model that predicts: give one of client=, cluster= and new=(x, y).")
        if client is not None:
            return self._served(self._position(client))
        assert cluster is not None or new is not None
        which = self._cluster_of(*new) if new is not None else _integer(cluster, "cluster", "its number")
        served = self.model(which)
        self._warn_if_empty(which)
        return served

    def _outputs(self, served: Params | Served, features: torch.Tensor) -> torch.Tensor:
        """A model's output for each example: a target, or a logit for each class."""
        with torch.no_grad(), torch_quiet(), model_takes(features):
            return predictions(self._objective(), served, features)

    def _predictions(self, out: torch.Tensor) -> Array:
        """A model's outputs as targets or classes."""
        targets: Array = out.numpy()
        return targets if self.schema.task == "regression" else classes_at(out.argmax(-1), self.schema)

    @cached_property
    def _warned_empty(self) -> set[int]:
        """Empty clusters that the user was warned about."""
        return set()

    def _warn_if_empty(self, cluster: int) -> None:
        """Warn once that no client is in a cluster while others have clients: its model may still be untrained."""
        empty = self.served == "assigned" and cluster not in self.sizes and self.clusters > 0
        if empty and cluster not in self._warned_empty:
            self._warned_empty.add(cluster)
            log.warning("no client is in cluster %d: its model may not be trained (run.sizes has the others)", cluster)

    def _cluster_of(self, x: ArrayLike, y: ArrayLike) -> int:
        answer = self.assign(x, y)
        if answer.cluster is None:
            raise InvalidInput(f"For the new client {answer}. To use it nevertheless, give cluster={answer.nearest}.")
        return answer.cluster

    def _served(self, position: int) -> Params | Served:
        if self.serving is not None and self.served in ("own", "points"):
            return ask_served(*self.serving, self.snapshot, position)
        if self.served == "own":
            kept = None if self._own is None else self._own.at(position)
            if kept is None and self.config["engine"] == "flower":
                raise InvalidInput(
                    f"The model of client {self.names[position]!r} stayed at its node and is not in the run's folder. "
                    "Only the run that fit returned in Python has it: run.predict and run.module ask the node. Or run "
                    "an algorithm whose server has the models, such as ifca."
                )
            if kept is None:
                raise InvalidInput(
                    "The model of this client stayed with it and is not in the run's folder (models are saved when a "
                    "run in one process ends): predict with the run that fit returned, resume a run that was killed, "
                    "or run an algorithm whose server has the models, such as ifca."
                )
            return kept
        losses = None if self.losses is None else self.losses[position]
        return served_in(self.snapshot, self.served, position, self.names[position], losses)

    @cached_property
    def _own(self) -> OwnModels | None:
        """The clients' own models, if they are in the run's folder."""
        return None if self.folder is None else read_own(self.folder, self.models, len(self.names))

    def own_models(self) -> OwnModels | None:
        """The clients' own models, asked from clients in this process or read from the run's folder; None elsewhere."""
        if self.served != "own":
            return None
        return self._own if self.serving is None else ask_own(*self.serving, self.snapshot)

    def _objective(self) -> Objective:
        if self.objective is None:
            name = self.config["model"]
            raise InvalidInput(
                f"The run's model ({name}) is user-defined: give it again, as Run.load(..., model=...) or --model."
            )
        return self.objective if self.standard is None else Standardised(self.objective, self.standard)

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(self.models.values())).dtype

    def _examples(self, x: ArrayLike) -> torch.Tensor:
        return self._typed(features_of(x, self.schema))

    def _typed(self, features: torch.Tensor) -> torch.Tensor:
        return features.to(self._dtype) if features.is_floating_point() else features


def _integer(value: object, what: str, wanted: str) -> int:
    """Convert a Python or numpy integer; reject anything else."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    require(whole, f"{what}={value!r}: wanted {wanted}.")
    return int(cast(int, value))
