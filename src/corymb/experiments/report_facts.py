"""What a report tells of a run: labels round by round, margins, savings, and the verdict in three sentences."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corymb.evaluate import LOWER_IS_BETTER, adjusted_rand_index
from corymb.experiments.history import Round
from corymb.experiments.progress import readable_bytes
from corymb.experiments.run import Run
from corymb.trees import nbytes

Numbers = NDArray[np.float64]
Labels = NDArray[np.int64]
ROLES = {"fedavg": "global", "fedprox": "global", "alone": "local", "oracle": "oracle"}
"""What an algorithm stands for when it stands beside another."""
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
    return Score(names[0], names[0] in LOWER_IS_BETTER) if names else None


def role_of(run: Run) -> str:
    """What the run stands for beside others: global, local, oracle, or the name of its algorithm."""
    name = str(run.config["algorithm"])
    return ROLES.get(name, name)


def titles_of(runs: Sequence[Run]) -> list[str]:
    """A short name for each run, no two alike."""
    names = [_title(run) for run in runs]
    twice = {name for name in names if names.count(name) > 1}
    return [f"{name}, run {place}" if name in twice else name for place, name in enumerate(names, 1)]


def _title(run: Run) -> str:
    role, name = role_of(run), str(run.config["algorithm"])
    return own_name(run) if name not in ROLES else role if role == name else f"{role} ({name})"


def own_name(run: Run) -> str:
    """The algorithm's name as it is written."""
    name = str(run.config["algorithm"])
    return name.upper() if len(name) <= 4 else name


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
    scores = getattr(run, "scores", None)
    return None if scores is None else np.asarray(scores.double().numpy())


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


# ---- in words


def verdict(runs: Sequence[Run]) -> list[str]:
    """Three sentences on the first run: what was found, how sure that is, and what it gained over the others."""
    run = runs[0]
    return [_found(run), _how_sure(run), _gained(run, runs[1:])]


def _found(run: Run) -> str:
    sizes = [str(size) for label, size in run.sizes.items() if label >= 0]
    name, n = own_name(run), len(run.names)
    if not sizes:
        return f"{name} trained {n} clients and put none of them into a cluster."
    if len(sizes) == 1:
        return f"{name} kept all {n} clients together, in one cluster."
    what = f"{name} found {len(sizes)} clusters among {n} clients"
    if len(sizes) > 12:
        return f"{what}."
    return f"{what}, {f'each of {sizes[0]}' if len(set(sizes)) == 1 else f'of {joined(sizes)}'}."


def _how_sure(run: Run) -> str:
    parts = []
    if (ari := run.metrics.get("ari")) is not None:
        exactly = "exactly the known ones" if ari > 0.9999 else f"close to the known ones (ARI {ari:.2f})"
        parts.append(f"the groups are {exactly if ari >= 0.8 else f'not the known ones (ARI {ari:.2f})'}")
    losses = losses_of(run)
    if losses is not None and run.clusters > 1:
        known = margins(losses)[np.isfinite(losses).all(1)]
        sure = float((known >= SURE).mean())
        parts.append(f"for {_share(sure)} clients the next best model is at least {SURE - 1:.0%} worse than their own")
    quiet, total = quiet_rounds(run), len(kept_rounds(run))
    if run.clusters > 1 and quiet:
        parts.append(f"nobody changed cluster in the last {quiet} of {total} rounds")
    elif run.clusters > 1:
        parts.append(f"in the last round {run.history[-1]['churn']:.0%} of clients still changed cluster")
    text = joined(parts) if parts else "there is nothing here to tell how sure that is"
    return text[0].upper() + text[1:] + "."


def _gained(run: Run, others: Sequence[Run]) -> str:
    score = score_of(run)
    if score is None:
        return "There were no test examples, so nothing is known of its quality on new data."
    ours, worst = run.metrics[f"test_{score.name}"], run.metrics[f"worst_decile_{score.name}"]
    text = f"Clients' test {score.words} is {score.text(ours)} on average and {score.text(worst)} in the worst tenth"
    against = {_beside(other): other.metrics.get(f"test_{score.name}") for other in others}
    known = [f"{score.gain(ours, theirs)} {who}" for who, theirs in against.items() if theirs is not None]
    if known:
        return f"{text}: {joined(known)}."
    return f"{text}; give a run of fedavg beside this one to see what clusters gained."


def _beside(other: Run) -> str:
    words = {"global": "one model for all", "local": "every client alone", "oracle": "training in the known groups"}
    return words.get(role_of(other), own_name(other))


def warnings_of(run: Run) -> list[str]:
    """What a reader should know before trusting the run."""
    notes, found = notes_of(run), []
    if run.stopped:
        found.append(f"The run was stopped early ({run.stopped}) after {len(run.history)} rounds.")
    if mended := repairs(run):
        found.append(f"Clusters had collapsed and were regrouped in round {joined([str(t) for t in mended])}.")
    elif "repairs" in run.snapshot.carry:
        found.append("Clusters had collapsed on the way and were regrouped.")
    if unused := run.snapshot.k - run.clusters if run.clusters > 1 else 0:
        what = "model ended without clients: k may be" if unused == 1 else "models ended without clients: k may be"
        found.append(f"{unused} {what} larger than the number of groups.")
    if alone := sum(label < 0 for label in run.labels.values()) if run.clusters else 0:
        found.append(f"{alone} clients have no cluster.")
    if run.rejected:
        who = len({entry["client"] for entry in run.rejected})
        found.append(f"{len(run.rejected)} replies of {who} clients were rejected.")
    if text := notes.get("warning"):
        found.append(f"The algorithm says: {text}.")
    return found


def joined(parts: Sequence[str]) -> str:
    """As in a sentence.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + f" and {parts[-1]}"


def _share(part: float) -> str:
    return "all" if part == 1 else f"{part:.0%} of" if part < 0.99 else f"{min(part, 0.999):.1%} of"


# ---- tables


def beside(runs: Sequence[Run]) -> list[dict[str, str]]:
    """A row for each run: quality, clusters, cost."""
    score, rows = score_of(runs[0]), []
    for title, run in zip(titles_of(runs), runs, strict=True):
        row = {"run": title}
        if score is not None:
            row[f"test {score.words}"] = score.text(run.metrics.get(f"test_{score.name}"))
            row["worst decile"] = score.text(run.metrics.get(f"worst_decile_{score.name}"))
        if "ari" in runs[0].metrics:
            row["ARI"] = f"{run.metrics['ari']:.2f}" if "ari" in run.metrics else "–"
        row["clusters"] = str(run.clusters)
        row["sent"] = readable_bytes(run.ledger.bytes_down + run.ledger.bytes_up)
        row["seconds"] = f"{run.seconds:.1f}"
        rows.append(row)
    return rows


def by_cluster(run: Run) -> list[dict[str, str]]:
    """A row for each cluster: how many clients, how well they are served, how sure they are."""
    losses, scores, score = losses_of(run), scores_of(run), score_of(run)
    labels, rows = run.snapshot.labels.numpy(), []
    for label, size in run.sizes.items():
        mine = labels == label
        row = {"cluster": "none" if label < 0 else str(label), "clients": str(size)}
        if scores is not None and score is not None:
            known = np.sort(scores[mine & np.isfinite(scores)])[:: -1 if score.lower_is_better else 1]
            row[f"test {score.words}"] = score.text(float(known.mean()) if len(known) else None)
            row["worst tenth"] = score.text(float(known[: -(-len(known) // 10)].mean()) if len(known) else None)
        if losses is not None:
            known = losses[mine & np.isfinite(losses).all(1)]
            row["own loss"] = f"{known.min(1).mean():.3g}" if len(known) else "–"
            row["margin"] = f"{np.median(margins(known)):.3g}×" if len(known) else "–"
        rows.append(row)
    return rows


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as one table, `outer.inner`; what is long is cut."""
    rows: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            text = str(value)
            rows[f"{prefix}{name}"] = text if len(text) <= 120 else f"{text[:117]}..."
    return rows
