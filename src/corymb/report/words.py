"""The text of a report: algorithm names, the three-sentence verdict, warnings and text tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from corymb.algorithms.catalogue import CATALOGUE, Entry
from corymb.algorithms.parts.repair import unwatched
from corymb.lazy import short_name
from corymb.report.content import Dot
from corymb.report.facts import (
    CLEAR_MARGIN,
    final_losses,
    fit_elsewhere,
    kept_rounds,
    margins,
    moved_examples,
    notes_of,
    of_examples,
    quiet_rounds,
    repairs,
)
from corymb.report.scores import WHY_UNDEFINED, cautions, score_of, scores_of, trivial_of, trivial_scores_of
from corymb.runs.history import BUDGET, CONVERGED, counted, divergence, readable, unfinished
from corymb.runs.missed import not_scored, often_rejected

if TYPE_CHECKING:
    from corymb.runs.run import Run


ROLES = {"global": "one global model", "local": "local training", "oracle": "training within the true groups"}
"""How the verdict refers to each baseline."""
ADVICE = {
    "method": "add a fedavg run to the report to see what clustering gains.",
    "global": "add an ifca run to the report to see whether clustering helps.",
    "local": "add a fedavg run to the report to compare with one global model.",
}
"""The comparison to suggest when the report has a single run, by the role of its algorithm."""
MOST_COMPARED = 5
"""The verdict compares with at most this many runs one by one."""
OF_EXAMPLES = ("kfed", "uifca")
"""Algorithms that cluster examples; each is suggested as a comparison for the other."""
UNCERTAIN = "this run provides no measure of how certain that is"


def entry_of(run: Run) -> Entry | None:
    """The catalogue entry of the run's algorithm; None for a user-defined algorithm."""
    return CATALOGUE.get(str(run.config["algorithm"]))


def title_of(run: Run) -> str:
    """The algorithm's display name."""
    entry = entry_of(run)
    return short_name(str(run.config["algorithm"])) if entry is None else entry.title


def role_of(run: Run) -> str:
    """The algorithm's role in a comparison: `global`, `local` or `oracle` for a baseline, `method` otherwise."""
    entry = entry_of(run)
    return "method" if entry is None else entry.role


def seeks_clusters(run: Run) -> bool:
    """Whether the algorithm divides clients or examples into clusters: one model for all, or one for each, does not."""
    return role_of(run) not in ("global", "local")


def ari_of(run: Run) -> float | None:
    """The ARI between the clusters and the true groups; None if unknown, or if the algorithm makes no clusters."""
    return run.metrics.get("ari") if seeks_clusters(run) else None


def titles_of(runs: Sequence[Run]) -> list[str]:
    """A short, unique name for each run. Runs of one name are told apart by seed or k, or else numbered."""
    names = [_label(run) for run in runs]
    return [f"{name}, {apart}" if apart else name for name, apart in zip(names, _apart(runs, names), strict=True)]


def _label(run: Run) -> str:
    title, role = title_of(run), role_of(run)
    if role == "method":
        return title
    return f"{role} ({title})" if role == "global" else role


def _apart(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """What tells runs of one name apart: their seed, k or number; empty for a run with a name of its own."""
    found = [""] * len(names)
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        seeds, ks = ([runs[place].config.get(what) for place in places] for what in ("seed", "k"))
        for order, place in enumerate(places):
            if len(set(seeds)) == len(places):
                found[place] = f"seed {seeds[order]}"
            elif None not in ks and len(set(map(str, ks))) == len(places):
                found[place] = f"k = {ks[order]}"
            else:
                found[place] = f"run {place + 1}"
    return found


def verdict(runs: Sequence[Run]) -> list[str]:
    """Three sentences on the first run: what it found, how certain that is, and how it compares with the others."""
    run = runs[0]
    return [_found(run), _certainty(run), _comparison(run, runs[1:])]


def _found(run: Run) -> str:
    sizes = [f"{size:,}" for label, size in run.sizes.items() if label >= 0]
    name, role, clients = title_of(run), role_of(run), counted(len(run.names), "client")
    if of_examples(run):
        return _found_examples(run)
    if role == "global":
        return f"{name} trained one model for {clients}."
    if role == "local":
        return f"{clients} trained alone: each has a model of its own."
    if not sizes:
        return f"{name} trained {counted(run.snapshot.k, 'model')} for {clients}; which client uses which is not known."
    if len(sizes) == 1 and role == "method":
        everyone = f"all {clients}" if run.sizes.get(-1, 0) == 0 else f"{sizes[0]} of {clients}"
        return f"{name} placed {everyone} in one cluster."
    what = f"{name} {_VERBS.get(role, 'found')} {counted(len(sizes), 'cluster')} among {clients}"
    if len(sizes) > 12:
        return f"{what}."
    return f"{what}, {f'{sizes[0]} in each' if len(set(sizes)) == 1 else f'of sizes {joined(sizes)}'}."


_VERBS = {"oracle": "was given the true groups:"}


def _found_examples(run: Run) -> str:
    if not run.points:
        return f"{title_of(run)} assigned every example of {counted(len(run.names), 'client')} to a cluster."
    sizes = [f"{size:,}" for size in run.points if size]
    among = f"{sum(run.points):,} examples of {counted(len(run.names), 'client')}"
    what = f"{title_of(run)} found {counted(len(sizes), 'cluster')} among {among}"
    if not 1 < len(sizes) <= 12:
        return f"{what}."
    return f"{what}, {f'{sizes[0]} in each' if len(set(sizes)) == 1 else f'of sizes {joined(sizes)}'}."


def _certainty_of_examples(run: Run) -> str:
    parts = []
    if (pure := run.metrics.get("purity")) is not None:
        parts.append(f"{_share(pure)} examples belong to the most frequent class of their cluster")
    if (moved := moved_examples(run)) and len(moved) > 1:
        last = moved[-1][1]
        parts.append(f"{_part(last) if last else 'none'} changed cluster in the last round")
    text = joined(parts) if parts else UNCERTAIN
    return text[0].upper() + text[1:] + "."


def _part(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"


def _certainty(run: Run) -> str:
    if of_examples(run):
        return _certainty_of_examples(run)
    if not seeks_clusters(run):
        return "There are no clusters, so there is no assignment to be uncertain about."
    if role_of(run) == "oracle":
        return "Clients were assigned by these groups, not by the data."
    if run.clusters < 1:
        return "There are no assignments to be certain about."
    parts = []
    if (ari := ari_of(run)) is not None:
        if ari > 0.9999:
            parts.append("the clusters match the true groups exactly")
        elif run.clusters == 1:
            parts.append(f"the true groups were not found (ARI {ari:.2f})")
        else:
            close = "are close to" if ari >= 0.8 else "partly match" if ari >= 0.3 else "do not match"
            parts.append(f"the clusters {close} the true groups (ARI {ari:.2f})")
    losses = final_losses(run)
    if losses is not None and run.clusters > 1:
        known = margins(losses)[np.isfinite(losses).all(1)]
        clear = float((known >= CLEAR_MARGIN).mean())
        higher = f"{CLEAR_MARGIN - 1:.0%} higher than that of the best"
        parts.append(f"for {_share(clear)} clients the loss of the second-best model is at least {higher}")
    quiet, total = quiet_rounds(run), len(kept_rounds(run))
    if run.clusters > 1 and quiet:
        last = "last round" if quiet == 1 else f"last {quiet} of {total} rounds"
        parts.append(f"no client changed cluster in the {last}")
    elif run.clusters > 1 and total > 1:  # in the first round every client is new
        parts.append(f"{run.history[-1]['churn']:.0%} of clients still changed cluster in the last round")
    unknown = "there is one cluster, so no assignment to be uncertain about" if run.clusters == 1 else UNCERTAIN
    text = joined(parts) if parts else unknown
    return text[0].upper() + text[1:] + "."


def _comparison(run: Run, others: Sequence[Run]) -> str:
    score = score_of(run)
    if score is None and f"undefined_{run.metric}" in run.metrics:
        why = f" (each {WHY_UNDEFINED[run.metric]})" if run.metric in WHY_UNDEFINED else ""
        return f"Test {run.metric} is undefined for every client{why}, so quality on new data is unknown."
    if score is None:
        return "There were no test examples, so quality on new data is unknown."
    ours, worst = run.metrics[f"test_{score.name}"], run.metrics[f"worst_decile_{score.name}"]
    trivial = trivial_of(run, score)
    beside = "" if trivial is None else f" ({score.trivial}: {score.text(trivial)})"
    mean = f"Mean test {score.words} over clients is {score.text(ours)}{beside}"
    text = f"{mean}, and {score.text(worst)} over the worst tenth"
    values = [other.metrics.get(f"test_{score.name}", np.nan) for other in others]
    against = [
        (who, theirs)
        for who, theirs in zip(_named_in_text([run, *others])[1:], values, strict=True)
        if np.isfinite(theirs)
    ]
    if not against or not np.isfinite(ours):
        return f"{text}; {suggested_comparison(run)}"
    if len(against) > MOST_COMPARED:
        worse = sum(score.better(ours, theirs) for _, theirs in against)
        return f"{text}: better than {worse} of the {len(against)} other runs."
    return f"{text}: {joined([f'{score.gain(ours, theirs)} {who}' for who, theirs in against])}."


def _named_in_text(runs: Sequence[Run]) -> list[str]:
    """What a sentence calls each run: what a baseline stands for, or the algorithm's name."""
    names = [ROLES.get(role_of(run), title_of(run)) for run in runs]
    kinds = {name: {title_of(run) for run, other in zip(runs, names, strict=True) if other == name} for name in names}
    whole = [
        f"{name} ({title_of(run)})" if len(kinds[name]) > 1 else name for run, name in zip(runs, names, strict=True)
    ]
    return [f"{name} ({apart})" if apart else name for name, apart in zip(whole, _apart(runs, whole), strict=True)]


def evidence_of(run: Run) -> str:
    """The evidence for the clusters on held-out examples, as a sentence; empty if the algorithm did not test it.

    The test is made when the clusters are formed. If later rounds dissolved some of them, the text says so.
    """
    notes = notes_of(run)
    if "evidence" not in notes:
        return ""
    evidence, tested_k = str(notes["evidence"]), notes.get("k")
    if tested_k == run.clusters or not isinstance(tested_k, int):
        return evidence
    return f"{counted(run.clusters, 'cluster')} at the end; when tested on held-out examples: {evidence}"


def suggested_comparison(run: Run) -> str:
    """The comparison to suggest for a report with a single run."""
    if of_examples(run):
        other = next(name for name in OF_EXAMPLES if name != run.config["algorithm"])
        return f"add a {other} run to the report to see whether it finds the same clusters."
    return ADVICE.get(role_of(run), ADVICE["method"])


def warnings_of(run: Run) -> list[str]:
    """Warnings to read before trusting the run's results."""
    notes, found, in_all = notes_of(run), [], counted(len(run.history), "round")
    if run.stopped == CONVERGED:
        found.append(f"The run ended after {in_all}, when its training loss stopped falling.")
    elif run.stopped == BUDGET:
        found.append(f"The run ended after {in_all} because its privacy budget was exhausted.")
    elif run.stopped:
        found.append(f"The run was stopped early ({run.stopped}) after {in_all}.")
    elif falls := unfinished(run.history, run.config):
        found.append(f"The run may have ended too early: {falls}.")
    if grew := divergence(run.history, run.config):
        found.append(f"The run diverged: {grew}.")
    if repaired := repairs(run):
        when = joined([f"{one.round}" + (f" ({one.moved} moved)" if one.moved else "") for one in repaired])
        rounds = "round" if len(repaired) == 1 else "rounds"
        found.append(f"Clients that shared a model but needed different ones were regrouped in {rounds} {when}.")
    if empty := sum(size == 0 for size in run.points):
        found.append(f"{counted(empty, 'cluster')} ended without examples: k may be larger than the number of groups.")
    elif unused := unused_models(run):
        found.append(unused)
    if few := unwatched(run.config, len(run.names)):
        found.append(sentence(few))
    if alone := sum(label < 0 for label in run.labels.values()) if run.clusters else 0:
        asked = run.config.get("participants")
        why = "" if asked is None else f": with participants = {asked}, not every client is asked"
        lacks = "took part in no round" if role_of(run) == "global" else f"{'has' if alone == 1 else 'have'} no cluster"
        found.append(f"{counted(alone, 'client')} {lacks}{why}.")
    if elsewhere := fit_elsewhere(run):
        fit, their = ("fits", "its") if elsewhere == 1 else ("fit", "their")
        found.append(
            f"{counted(elsewhere, 'client')} {fit} another cluster better than {their} own, "
            f"whose model has a loss at least {CLEAR_MARGIN - 1:.0%} higher."
        )
    if run.rejected:
        replies, who = len(run.rejected), len({entry["client"] for entry in run.rejected})
        what = "1 reply was" if replies == 1 else f"{replies} replies from {who} client{'s' * (who > 1)} were"
        found.append(f"{what} rejected.")
        found.extend(often_rejected(run.rejected, len(run.history)))
    if run.not_scored:
        found.append(not_scored(run.not_scored, len(run.names)))
    found.extend(cautions(run))
    if text := notes.get("warning"):
        found.append(f"The algorithm reports: {text}.")
    return found


def unused_models(run: Run) -> str:
    """A warning about models that no client uses; empty if there are none."""
    unused = run.snapshot.k - run.clusters if run.clusters and not of_examples(run) else 0
    if not unused:
        return ""
    text = f"{unused} of {run.snapshot.k} models ended without clients: k may be larger than the number of groups"
    again = ", or two groups may share a model (--restarts 5 keeps the best of five starts)"
    return f"{text}{again if run.config.get('restarts') == 1 else ''}."


def sentence(text: str) -> str:
    """A message as a sentence.

    >>> sentence("k is large")
    'K is large.'
    """
    return f"{text[:1].upper()}{text[1:]}."


def joined(parts: Sequence[str]) -> str:
    """Join parts into an English list.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + f" and {parts[-1]}"


def _share(part: float) -> str:
    return "all" if part == 1 else f"{part:.0%} of" if part < 0.99 else f"{min(part, 0.999):.1%} of"


def cluster_rows(run: Run) -> list[dict[str, str | Dot]]:
    """A row for each cluster: its number of clients, their test score, their own loss and their median margin.

    If examples are clustered instead of clients, the number of examples in each cluster and their share.
    """
    if of_examples(run):
        total = max(sum(run.points), 1)
        return [
            {"cluster": Dot(label), "examples": f"{size:,}", "share": f"{size / total:.1%}"}
            for label, size in run.sizes.items()
        ]
    losses, scores, score = final_losses(run), scores_of(run), score_of(run)
    labels, rows = run.snapshot.labels.numpy(), []
    for label, size in run.sizes.items():
        mine = labels == label
        row: dict[str, str | Dot] = {"cluster": Dot(label), "clients": f"{size:,}"}
        if scores is not None and score is not None:
            known = np.sort(scores[mine & np.isfinite(scores)])[:: -1 if score.lower_is_better else 1]
            row[f"test {score.words}"] = score.text(float(known.mean()) if len(known) else None)
            if (trivial := trivial_scores_of(run, score)) is not None:
                beside = trivial[mine & np.isfinite(trivial)]
                row["trivial"] = score.text(float(beside.mean()) if len(beside) else None)
            row["worst tenth"] = score.text(float(known[: -(-len(known) // 10)].mean()) if len(known) else None)
        if losses is not None:
            known = losses[mine & np.isfinite(losses).all(1)]
            row["own loss"] = readable(known.min(1).mean(), 3) if len(known) else "–"
            row["margin"] = f"{readable(float(np.median(margins(known))), 3)}×" if len(known) else "–"
        rows.append(row)
    return rows


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested settings to `outer.inner` keys, with long values truncated and None omitted."""
    rows: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            text = str(value)
            rows[f"{prefix}{name}"] = text if len(text) <= 120 else f"{text[:117]}..."
    return rows
