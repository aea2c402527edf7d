"""What a report tells of a run: labels round by round, margins, savings, and the verdict in three sentences."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corymb.evaluate import adjusted_rand_index
from corymb.runs.history import Round
from corymb.runs.run import Run
from corymb.trees import nbytes

Numbers = NDArray[np.float64]
Labels = NDArray[np.int64]
SURE = 1.1
"""A client is sure of its cluster when the next best model costs it at least so many times its own model's loss."""


class Moment(NamedTuple):
    """Who was in which cluster after a round; rounds are counted from 1 in what was kept."""

    round: int
    labels: Labels


class Score(NamedTuple):
    """The run's measure of quality: its name, and which way is up."""

    name: str
    lower_is_better: bool

    @property
    def words(self) -> str:
        """As people say it."""
        return self.name.replace("_", " ")

    def text(self, value: float | None) -> str:
        """A value of it."""
        if value is None or not np.isfinite(value):
            return "–"
        return f"{value:.1%}" if self.name == "accuracy" else f"{value:.4g}"

    def gain(self, ours: float, theirs: float) -> str:
        """How much better or worse ours is, in words."""
        better = ours < theirs if self.lower_is_better else ours > theirs
        if self.name == "accuracy":
            points = abs(ours - theirs) * 100
            same, size = points < 0.05, f"{points:.1f} points"
        else:
            same, size = abs(ours - theirs) < 1e-3 * abs(theirs), f"{abs(ours / theirs - 1) if theirs else 0:.1%}"
        return "the same as" if same else f"{size} {'better' if better else 'worse'} than"


def score_of(run: Run) -> Score | None:
    """Which measure the run's test examples were scored by, if there were any."""
    names = [name.removeprefix("worst_decile_") for name in run.metrics if name.startswith("worst_decile_")]
    return Score(names[0], names[0] == "squared_error") if names else None


# ---- round by round


def kept_rounds(run: Run) -> list[Round]:
    """The rounds that led to the result: of several restarts those of the best."""
    best = run.snapshot.notes.get("best_restart")
    if best is None:
        return run.history
    return [row for row in run.history if str(row["stage"]).partition("/")[0] == f"restart-{best}"]


def moments(run: Run) -> list[Moment]:
    """Labels after each kept round; empty where the run did not keep who moved."""
    if not run.history or any("moves" not in row for row in run.history):
        return []
    kept = {row["clock"] for row in kept_rounds(run)}
    labels, found = np.full(len(run.names), -1, dtype=np.int64), list[Moment]()
    for row in run.history:
        for position, label in row["moves"].items():
            labels[int(position)] = label
        if row["clock"] in kept:
            found.append(Moment(len(found) + 1, labels.copy()))
    return found


def agreement(path: Sequence[Moment]) -> list[tuple[int, float]]:
    """The ARI of each round's labels to those of the round before."""
    import torch

    pairs = itertools.pairwise(path)
    return [(b.round, adjusted_rand_index(torch.from_numpy(a.labels), torch.from_numpy(b.labels))) for a, b in pairs]


def quiet_rounds(run: Run) -> int:
    """For how many rounds at the end no client changed its cluster."""
    quiet = 0
    for row in reversed(kept_rounds(run)):
        if row["churn"] > 0:
            return quiet
        quiet += 1
    return quiet


def notes_of(run: Run) -> dict[str, Any]:
    """What the algorithm left to be known, later rounds over earlier ones."""
    found: dict[str, Any] = {}
    for row in kept_rounds(run):
        found |= row.get("notes") or {}
    return found | dict(run.snapshot.notes)


def repairs(run: Run) -> list[int]:
    """The rounds in which clusters had collapsed and were regrouped."""
    return [t for t, row in enumerate(kept_rounds(run), 1) if "collapse" in (row.get("notes") or {})]


# ---- clients


def losses_of(run: Run) -> Numbers | None:
    """Every final model's training loss at every client, n k, NaN where a client gave none; None with one model."""
    if run.losses is None or run.losses.shape[1] < 2 or run.losses.isnan().all():
        return None
    return np.asarray(run.losses.double().numpy())


def scores_of(run: Run) -> Numbers | None:
    """Each client's test score of the model it is served, NaN where it has no test examples; None where not kept."""
    return None if run.scores is None else np.asarray(run.scores.double().numpy())


def margins(losses: Numbers) -> Numbers:
    """For each client how many times its least loss the second least is; NaN where it gave none."""
    least = np.sort(np.maximum(losses, 1e-12), axis=1)
    return np.asarray(least[:, 1] / least[:, 0])


def positions(losses: Numbers) -> Numbers:
    """Clients in the plane, n 2: principal axes of their centred log losses; no losses, no place (NaN).

    Two models leave one axis only; the other is then how large the client's own loss is.
    """
    logs = np.log(np.maximum(losses, 1e-12))
    centred = logs - logs.mean(1, keepdims=True)
    if losses.shape[1] == 2:
        return np.stack([centred[:, 0] * np.sqrt(2), logs.min(1)], axis=1)
    around = centred - np.nanmean(centred, axis=0)
    _, _, axes = np.linalg.svd(around[np.isfinite(around).all(1)], full_matrices=False)
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])  # the same picture on every machine
    return np.asarray(around @ (axes * signs[:, None])[:2].T)


# ---- communication


class Savings(NamedTuple):
    """What was sent to clients, and what all models in every round would have come to."""

    sent: int
    everything: int

    @property
    def share(self) -> float:
        """The part that was saved."""
        return 1 - self.sent / self.everything


def savings(run: Run) -> Savings | None:
    """What was saved against sending all models to all clients asked, where the algorithm chooses among models."""
    k = run.snapshot.k
    if run.config["algorithm"] != "ifca" or k < 2:
        return None
    model = nbytes(run.models) // k
    everything = sum(row["asked"] for row in run.history) * k * model
    sent = sum(row["bytes_down"] for row in run.history)
    return Savings(sent, everything) if everything else None
