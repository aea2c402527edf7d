"""What comes out of a run: clusters, models, how it went, and predictions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from corymb.core.client import ClientFn, Examples, Objective
from corymb.core.federation import Federation, Ledger, each
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.data.features import Array, as_array, as_features, as_images
from corymb.data.schema import DataSchema
from corymb.evaluate import clusters_in_use
from corymb.local import serve_assigned
from corymb.runs.assign import Assignment, Calibration, assign
from corymb.runs.history import Round
from corymb.runs.history import plain as plain
from corymb.runs.learners import Model, learner_for
from corymb.runs.standardise import Standard, Standardised
from corymb.settings import InvalidInput, did_you_mean, require
from corymb.trees import Params, take

Serving = tuple[Federation, ClientFn[..., Any]]
"""Clients that keep their own models, and the function by which one says which model it is served."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Run:
    """A run, finished or stopped."""

    snapshot: Snapshot
    """Where the run stands, on the CPU; `fit(..., start=run.snapshot)` goes on from there."""
    names: tuple[str, ...]
    """The clients, in the order of the snapshot's labels."""
    history: list[Round]
    """A record for each round: see `corymb.runs.history`."""
    metrics: dict[str, float]
    """Of the last round; what they mean is in docs/metrics.md."""
    ledger: Ledger
    config: dict[str, Any]
    seconds: float
    kind: DataSchema
    objective: Objective | None = None
    """None after loading a run whose model was a Python object: give it to `Run.load`."""
    standard: Standard | None = None
    """How features were standardised."""
    stopped: str = ""
    """Why the run ended early: `interrupted`, `max_seconds`, or not at all."""
    serving: Serving | None = None
    losses: torch.Tensor | None = None
    """n k: every client's training loss of every final model; NaN where it gave none. None where models stay with
    clients, or where there are too many to ask."""
    scores: torch.Tensor | None = None
    """n: each client's test score of the model it is served; NaN where it has no test examples."""
    calibration: Calibration | None = None
    """What losses genuine clients have on a few test examples: `assign` needs it to say that no cluster fits."""
    folder: Path | None = None
    """Where the run is kept."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Versions, git commit, hardware, platform, seed and command line."""

    @property
    def labels(self) -> dict[str, int]:
        """Each client's cluster, by name; -1 for none."""
        return dict(zip(self.names, self.snapshot.labels.tolist(), strict=True))

    @property
    def models(self) -> Params:
        """The clusters' models, k rows."""
        return self.snapshot.models

    @property
    def clusters(self) -> int:
        """How many clusters have clients."""
        return clusters_in_use(self.snapshot.labels)

    @property
    def sizes(self) -> dict[int, int]:
        """How many clients each cluster has."""
        return dict(sorted(Counter(self.snapshot.labels.tolist()).items()))

    @property
    def rejected(self) -> list[dict[str, Any]]:
        """Replies that did not count: clock, client, reason."""
        return self.ledger.rejected

    @property
    def seed(self) -> int:
        """The seed that everything random in the run follows from."""
        return self.snapshot.seed

    def model(self, which: str | int) -> Params:
        """The parameters of a cluster's model (a number) or of the one a client is served (its name)."""
        if isinstance(which, str):
            return self._served(self._position(which))
        require(0 <= which < self.snapshot.k, f"There is no cluster {which}: the run has {self.snapshot.k}.")
        return take(self.models, which)

    def predict(self, x: ArrayLike, client: str | int) -> Array:
        """What the model of a client (its name or position) says of examples: classes or numbers, one for each.

        Features are in the units of the data that the run was given. Classes are numbers where they were numbers,
        else their names.
        """
        params = self._served(self._position(client))
        with torch.no_grad():
            out: torch.Tensor = self._predictor().predict(params, self._examples(x))
        if self.kind.task == "regression":
            return out.numpy()
        chosen = out.argmax(-1).numpy()
        numbered = self.kind.classes == tuple(str(number) for number in range(len(self.kind.classes)))
        return chosen if numbered else np.array(self.kind.classes)[chosen]

    def assign(self, x: ArrayLike, y: ArrayLike) -> Assignment:
        """Which cluster a new client with these labelled examples belongs to, how sure that is, or that none fits.

        Features and labels are in the form and the units of the data that the run was given.
        """
        require(
            self.config["record"]["served"] == serve_assigned.name,
            "Clients of this run have models of their own: there is no cluster to assign a new one to.",
        )
        features, labels = self._examples(x), self._targets(y)
        require(
            len(features) == len(labels) > 0, f"Give a label for each example: got {len(features)} and {len(labels)}."
        )
        used = torch.zeros(self.snapshot.k, dtype=torch.bool)
        used[self.snapshot.labels[self.snapshot.labels >= 0].unique()] = True
        require(bool(used.any()), "The run has no clusters: no client took part in a round.")
        examples = Examples(features, labels, torch.ones(len(labels)))
        return assign(self._predictor("losses"), self.models, used, examples, self.calibration)

    def _targets(self, y: ArrayLike) -> torch.Tensor:
        values = as_array(y).reshape(-1)
        if self.kind.task == "regression":
            return torch.as_tensor(values.astype(np.float64)).to(next(iter(self.models.values())).dtype)
        names = [str(int(value)) if isinstance(value, np.floating) else str(value) for value in values]
        places = {name: place for place, name in enumerate(self.kind.classes)}
        unknown = next((name for name in names if name not in places), None)
        if unknown is not None:
            raise InvalidInput(f"There is no class {unknown!r}. {did_you_mean(unknown, self.kind.classes)}")
        return torch.tensor([places[name] for name in names])

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that the command line prints."""
        ledger = {name: getattr(self.ledger, name) for name in ("bytes_down", "bytes_up", "rounds")}
        result = {
            "labels": self.labels,
            "metrics": self.metrics,
            "clusters": self.clusters,
            "ledger": ledger,
            "rejected": self.rejected,
            "seconds": round(self.seconds, 3),
            "config": self.config,
            "seed": self.seed,
            **({"stopped": self.stopped} if self.stopped else {}),
        }
        return {name: plain(value) for name, value in result.items()}

    def to_dataframe(self) -> Any:
        """The history as a pandas DataFrame, a row for each round; metrics are columns called `metrics.<name>`."""
        import pandas as pd

        return pd.json_normalize([{k: v for k, v in row.items() if k != "moves"} for row in self.history])

    def save(self, folder: str | Path) -> Path:
        """Write the run into a folder that is new or empty; `Run.load` reads it."""
        from corymb.runs.folder import reader as run_folder

        return run_folder.write(self, folder)

    @staticmethod
    def load(folder: str | Path, model: Model | None = None) -> Run:
        """The run that `save` wrote. To predict with a model of your own, give that model again."""
        from corymb.runs.folder import reader as run_folder

        run = run_folder.read(folder)
        return run if model is None else replace(run, objective=learner_for(model, run.kind).objective)

    def report(self, *others: Run, path: str | Path | None = None) -> Path:
        """Write a page about the run, with other runs beside it; the file is returned."""
        from corymb.report.html import write_report

        return write_report([self, *others], None if path is None else Path(path))

    def __repr__(self) -> str:
        sizes = ", ".join(str(size) for label, size in self.sizes.items() if label >= 0)
        shown = [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        lines = [
            f"Run of {self.config['algorithm']} on {self.config['data']} with {self.config['model']}, seed {self.seed}",
            f"  clients   {len(self.names)} in {self.clusters} clusters of {sizes or 'none'}",
            f"  metrics   {', '.join(shown)}",
            f"  ledger    {self.ledger.rounds} rounds, {self.ledger.bytes_down} bytes down, {self.ledger.bytes_up} up",
        ]
        return "\n".join([*lines, *([f"  stopped   {self.stopped}"] if self.stopped else [])])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from corymb.report.notebook import run_html

        return run_html(self)

    def _position(self, client: str | int) -> int:
        if isinstance(client, str):
            if client not in self.names:
                raise InvalidInput(f"There is no client {client!r}. {did_you_mean(client, self.names[:1000])}")
            return self.names.index(client)
        require(0 <= client < len(self.names), f"There is no client {client}: the run has {len(self.names)}.")
        return client

    def _served(self, position: int) -> Params:
        label = self.snapshot.labels[position]
        if self.serving is not None:
            fed, serve = self.serving
            replies = fed.clients[[position]].map(serve, self.models, each(label.reshape(1)), None)
            return {name: row.cpu() for name, row in take(replies.value, 0).items()}
        require(
            self.config["record"]["served"] == serve_assigned.name,
            "The models of this run stayed with its clients and were not saved: only the run itself can predict.",
        )
        require(int(label) >= 0, f"Client {self.names[position]!r} has no cluster: it never took part in a round.")
        return take(self.models, label)

    def _predictor(self, verb: str = "predict") -> Any:
        require(
            self.objective is not None,
            f"The run's model ({self.config['model']}) is not the library's: give it again, Run.load(..., model=...).",
        )
        if not hasattr(self.objective, verb):
            raise InvalidInput(f"{type(self.objective).__name__} has no predict(params, x): it cannot predict.")
        return self.objective if self.standard is None else Standardised(self.objective, self.standard)

    def _examples(self, x: ArrayLike) -> torch.Tensor:
        array = as_array(x)
        if array.shape == self.kind.features:
            array = array[None]
        if self.kind.picture and array.shape[1:] != self.kind.features:
            array = as_images(array)
        features = torch.as_tensor(array) if self.kind.codes else as_features(array)
        require(
            tuple(features.shape[1:]) == self.kind.features,
            f"Examples have the shape {list(features.shape[1:])}, the run was given {list(self.kind.features)}.",
        )
        return features.to(next(iter(self.models.values())).dtype) if features.is_floating_point() else features


def served_in_place(algorithm: Algorithm) -> ClientFn[..., Any] | None:
    """How clients are served that keep their own models; None where the snapshot holds everybody's."""
    return None if algorithm.serve is serve_assigned else algorithm.serve
