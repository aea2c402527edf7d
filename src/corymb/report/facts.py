"""The numbers behind a report: labels by round, margins, memberships and communication savings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corymb.evaluate import adjusted_rand_index
from corymb.report.scores import scores_in, scores_of, trivial_scores_of
from corymb.trees import nbytes

if TYPE_CHECKING:
    from corymb.runs.history import Round
    from corymb.runs.run import Run

Numbers = NDArray[np.float64]
LabelArray = NDArray[np.int64]
CLEAR_MARGIN = 1.1
"""A client's cluster is clear if the loss of its second-best model is at least this many times that of its best."""
ALL_MODELS_AT_MOST = 1.05
"""Messages that carry all models are at most this many times the models' size; the rest is settings."""
WHOLE = 0.95
"""A client with at least this share in one cluster counts as belonging to that cluster alone."""


class Moment(NamedTuple):
    """The labels (n) after a round. Only kept rounds are numbered, from 1."""

    round: int
    labels: LabelArray


def of_examples(run: Run) -> bool:
    """Whether the run clusters examples instead of clients."""
    return run.served == "points"


def restart_of(row: Round) -> str:
    """The restart a round belongs to (`restart-2`) or scored (`scored-2`); empty for any other round."""
    stages = str(row["stage"]).split("/")
    return next((stage for stage in stages if stage.startswith(("restart-", "scored-"))), "")


def kept_rounds(run: Run) -> list[Round]:
    """The rounds that led to the result. With several restarts, only those of the best one."""
    best = run.snapshot.notes.get("best_restart")
    return run.history if best is None else [row for row in run.history if restart_of(row) in ("", f"restart-{best}")]


def moments(run: Run) -> list[Moment]:
    """The labels after each kept round; empty if the run did not record moves."""
    if of_examples(run) or not run.history or any("moves" not in row for row in run.history):
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
    """The ARI between the labels of each round and those of the previous round, as (round, ARI) pairs."""
    import torch

    pairs = itertools.pairwise(path)
    return [(b.round, adjusted_rand_index(torch.from_numpy(a.labels), torch.from_numpy(b.labels))) for a, b in pairs]


def quiet_rounds(run: Run) -> int:
    """The number of rounds at the end of the run in which no client changed cluster."""
    quiet = 0
    for row in reversed(kept_rounds(run)):
        if row["churn"] > 0:
            return quiet
        quiet += 1
    return quiet


def moved_examples(run: Run) -> list[tuple[int, float]]:
    """The share of examples that changed cluster in each round for which the algorithm noted it."""
    notes = [row.get("notes") or {} for row in kept_rounds(run)]
    return [(t, float(note["moved"])) for t, note in enumerate(notes, 1) if "moved" in note]


def notes_of(run: Run) -> dict[str, Any]:
    """The algorithm's notes merged over all kept rounds; later rounds override earlier ones."""
    found: dict[str, Any] = {}
    for row in kept_rounds(run):
        found |= row.get("notes") or {}
    return found | dict(run.snapshot.notes)


class Repair(NamedTuple):
    """A round in which clients that shared a model but needed different ones were regrouped."""

    round: int
    moved: int | None
    """The number of clients moved; None if the algorithm did not note it."""


def repairs(run: Run) -> list[Repair]:
    """The repairs noted by the algorithm, in order of round."""
    notes = [row.get("notes") or {} for row in kept_rounds(run)]
    return [Repair(t, note["collapse"].get("moved")) for t, note in enumerate(notes, 1) if "collapse" in note]


def final_losses(run: Run) -> Numbers | None:
    """The training loss of every final model at every client (n k), NaN where it is unknown.

    None if there is only one model or no client has all its losses.
    """
    if run.losses is None or run.losses.shape[1] < 2 or not bool(run.losses.isfinite().all(1).any()):
        return None
    return np.asarray(run.losses.double().numpy())


def shares_of(run: Run) -> Numbers | None:
    """Each client's share in each cluster (n k), rows summing to 1; None unless memberships are soft.

    The row of a client without shares is NaN.
    """
    shares = run.snapshot.shares
    if shares is None or shares.shape[1] < 2 or not bool((shares > 0).any()):
        return None
    rows = np.asarray(shares.double().cpu().numpy())
    total = rows.sum(1, keepdims=True)
    return np.asarray(np.divide(rows, total, out=np.full_like(rows, np.nan), where=total > 0))


def clients(run: Run, most: int | None = None) -> list[dict[str, Any]]:
    """A row for each client, or for the first: its cluster, test scores, margin, losses and shares, where known."""
    losses, shares, scores = final_losses(run), shares_of(run), _test_scores(run)
    margin = None if losses is None else margins(losses)
    labels, rows = run.labels, list[dict[str, Any]]()
    for place, name in enumerate(run.names[:most]):
        row: dict[str, Any] = {"client": name, **({"cluster": labels[name]} if labels else {})}
        row |= {name: float(values[place]) for name, values in scores.items()}
        if margin is not None and losses is not None:
            row["margin"] = float(margin[place])
            row |= {f"loss_{j}": float(loss) for j, loss in enumerate(losses[place])}
        if shares is not None:
            row |= {f"share_{j}": float(share) for j, share in enumerate(shares[place])}
        rows.append(row)
    return rows


def _test_scores(run: Run) -> dict[str, Numbers]:
    """Every client's test scores, the main metric first and followed by the trivial prediction's score."""
    found: dict[str, Numbers | None] = {}
    for place, score in enumerate(scores_in(run)):
        found[f"test_{score.name}"] = scores_of(run, score)
        found |= {f"trivial_{score.name}": trivial_scores_of(run, score)} if place == 0 else {}
    return {name: values for name, values in found.items() if values is not None}


def margins(losses: Numbers) -> Numbers:
    """Each client's second-lowest loss divided by its lowest (n); NaN where losses are unknown."""
    least = np.sort(np.maximum(losses, 1e-12), axis=1)
    return np.asarray(least[:, 1] / least[:, 0])


def fit_elsewhere(run: Run) -> int:
    """The number of clients whose loss on another cluster's model is clearly lower than on that of their own.

    Only where clients use the model of their cluster: shares and own models are no choice of one by its loss.
    """
    losses, labels = final_losses(run), run.snapshot.labels.numpy()
    if losses is None or run.served != "assigned":
        return 0
    known = np.flatnonzero((labels >= 0) & np.isfinite(losses).all(1))
    own = losses[known, labels[known]]
    return int((own >= CLEAR_MARGIN * np.maximum(losses[known].min(1), 1e-12)).sum())


def positions(losses: Numbers) -> Numbers:
    """Clients in the plane (n 2): the principal components of their centred log losses; NaN where losses are unknown.

    Two models leave a single component. The second coordinate is then the log of the client's lowest loss.
    """
    logs = np.log(np.maximum(losses, 1e-12))
    centred = logs - logs.mean(1, keepdims=True)
    if losses.shape[1] == 2:
        return np.stack([centred[:, 0] * np.sqrt(2), logs.min(1)], axis=1)
    around = centred - np.nanmean(centred, axis=0)
    _, _, axes = np.linalg.svd(around[np.isfinite(around).all(1)], full_matrices=False)
    # An SVD's signs are arbitrary: fixing them gives the same map on every machine.
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])
    return np.asarray(around @ (axes * signs[:, None])[:2].T)


class Savings(NamedTuple):
    """Bytes sent to clients, and the bytes that sending every model in every round would have taken."""

    sent: int
    everything: int
    possible: bool
    """Whether the algorithm has a `saving` setting, and the run may use it: private runs may not."""

    @property
    def share(self) -> float:
        """The fraction saved."""
        return 1 - self.sent / self.everything


def savings(run: Run) -> Savings | None:
    """The saving against sending all models to every selected client; None if they are never sent together.

    This is read off the ledger: in some round the selected clients received as many bytes as all models take, and in
    no round much more.
    """
    k = run.snapshot.k
    asked = [row for row in run.history if row["asked"]]
    if k < 2 or not asked:
        return None
    models = nbytes(run.models)
    by_round = [row["bytes_down"] / (row["asked"] * models) for row in asked]
    if not 0.999 <= max(by_round) <= ALL_MODELS_AT_MOST:
        return None
    sent = sum(row["bytes_down"] for row in run.history)
    possible = "saving" in run.config and not run.config.get("privacy")
    return Savings(sent, sum(row["asked"] for row in asked) * models, possible)
