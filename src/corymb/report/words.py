"""A report in words and tables: the verdict in three sentences, warnings, runs and clusters side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from corymb.report.facts import (
    SURE,
    kept_rounds,
    losses_of,
    margins,
    notes_of,
    quiet_rounds,
    repairs,
    score_of,
    scores_of,
)
from corymb.runs.progress import readable_bytes
from corymb.runs.run import Run

ROLES = {"fedavg": "global", "fedprox": "global", "alone": "local", "oracle": "oracle"}
"""What an algorithm stands for when it stands beside another."""
WRITTEN = {
    "ifca": "IFCA",
    "sr-fca": "SR-FCA",
    "cfl": "CFL",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedsoft": "FedSoft",
    "alone": "Training alone",
    "oracle": "The oracle",
    "one-shot": "One-shot clustering",
}
"""Names of algorithms as they are written in a sentence."""


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
    if name not in ROLES:
        return own_name(run)
    return role if role == name or role == "local" else f"{role} ({own_name(run)})"


def own_name(run: Run) -> str:
    """The algorithm's name as it is written."""
    name = str(run.config["algorithm"])
    return WRITTEN.get(name, name)


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
