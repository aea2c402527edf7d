"""The text of the advice: two sentences, and cautions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from corymb.algorithms.catalogue import CATALOGUE
from corymb.algorithms.evidence.headline import BLIND, SEEN
from corymb.clustering.paired import Difference
from corymb.runs.advising.advice import Advice, Candidate
from corymb.runs.advising.trials import ALONE
from corymb.runs.advising.verdict import MAX_P, MIN_GAIN
from corymb.runs.history import counted, readable


def sentences(advice: Advice) -> list[str]:
    """The verdict with its evidence, and what the other candidates would gain or lose over the simplest."""
    chosen, base = advice.candidates[advice.algorithm], advice.candidates[advice.base]
    others = [other for other in advice.candidates.values() if other not in (chosen, base) and other.is_another]
    parts = [f"{_short(other)} would {_gains(advice, other.gain)}" for other in others if other.gain]
    parts += [_too_little(advice.clustering)] if advice.clustering.get("guarded") else []
    second = [f"Over {_short(base)}, {'; '.join(parts)}."] if parts else []
    if chosen is base:
        return [f"{_what(chosen)}: {_nothing_better(advice)}.", *second]
    assert chosen.gain is not None
    against = f"{advice.judge_words} {advice.text(chosen.value)} against {advice.text(base.value)} with {_short(base)}"
    return [f"{_what(chosen)}: {against}, a gain of {gain_words(advice, chosen.gain)}.", *second]


def _what(chosen: Candidate) -> str:
    if chosen.name == ALONE:
        return "Local training"
    if chosen.clusters < 2:
        return "One global model"
    return f"{chosen.clusters} clusters, by {CATALOGUE[chosen.name].title}"


def _short(candidate: Candidate) -> str:
    if candidate.name == ALONE:
        return "local training"
    return (
        "one model" if candidate.clusters < 2 else f"{candidate.clusters} clusters by {CATALOGUE[candidate.name].title}"
    )


def _nothing_better(advice: Advice) -> str:
    value = advice.text(advice.candidates[advice.base].value)
    return (
        f"no alternative improves on its {advice.judge_words} of {value} significantly (p < {MAX_P:g}) and by more "
        f"than {MIN_GAIN:.0%}{'' if not advice.judge.higher else ' of its distance from 1'}"
    )


def _too_little(notes: Mapping[str, Any]) -> str:
    """The gain of clusters that were found but rejected in favour of one model."""
    gain, share = notes["gain"], notes["gain"] / max(notes["loss_of_one"], 1e-12)
    size = f"{readable(abs(gain), 3)} ± {readable(notes['gain_error'], 2)} of the loss ({abs(share):.0%}"
    gained = f"{notes['share_gaining']:.0%} of clients gain, {p_words(notes['gain_p'])})"
    return f"the {notes['candidates']} clusters that were found {'gain' if gain > 0 else 'lose'} {size}; {gained}"


def _gains(advice: Advice, gain: Difference) -> str:
    return f"{'lose' if gain.mean < 0 else 'gain'} {gain_words(advice, gain)}"


def gain_words(advice: Advice, gain: Difference) -> str:
    """A gain or a loss with its error, share, clients and p."""
    size = f"{advice.text(abs(gain.mean))} ± {advice.text(gain.error, 2)}"
    how_many = f"{round(gain.worse * gain.clients)} of {counted(gain.clients, 'client')} gain"
    return f"{size} ({abs(gain.size):.0%}; {how_many}, {p_words(gain.p)})"


def p_words(p: float) -> str:
    """A p-value.

    >>> p_words(0.0123), p_words(1e-9), p_words(0.99999)
    ('p = 0.012', 'p < 0.0001', 'p > 0.9999')
    """
    return "p < 0.0001" if p < 1e-4 else "p > 0.9999" if p > 0.9999 else f"p = {p:.2g}"


# ---- cautions


def cautions(advice: Advice) -> list[str]:
    """Candidates that were left out, effects too small to detect, and disagreements of loss and score."""
    found = [f"{CATALOGUE[name].title} was left out: {why}." for name, why in advice.left_out.items()]
    late = [candidate for candidate in advice.candidates.values() if candidate.out_of_time]
    found += [f"{CATALOGUE[one.name].title} was stopped by --max_seconds and might do better." for one in late]
    found += _unseen(advice)
    if advice.by_score not in ("", advice.algorithm):
        other = advice.candidates[advice.by_score]
        score = advice.score_name.replace("_", " ")
        found.append(
            f"Judged by {score}, the advice would be: {_what(other).lower()} "
            f"({readable(other.score)} against {readable(advice.candidates[advice.algorithm].score)}). "
            f"Use --metric {advice.score_name} for that."
        )
    if len(set(advice.clusters_by_seed)) > 1:
        found.append(f"Seeds disagree on the number of clusters: {', '.join(map(str, advice.clusters_by_seed))}.")
    return found


def _unseen(advice: Advice) -> list[str]:
    """Notes on how small a gain would have gone undetected with these clients."""
    lines = []
    visible, guarded = detectable_difference(advice.clustering), advice.clustering.get("guarded")
    if advice.verdict == "one-model" and not guarded and visible is not None:
        small = f"two groups that gain less than about {visible:.0%} of the loss from separate models would mostly"
        large = "even two groups that gain a lot from separate models would mostly"
        lines.append(
            "This does not mean that there are no clusters: with these clients, "
            f"{small if visible <= BLIND else large} go undetected. "
            "If you expect two groups, also run ifca --k 2 and compare."
        )
    alone = advice.candidates.get(ALONE)
    if advice.verdict == "one-model" and alone is not None and alone.gain is not None and alone.gain.p < 1 - MAX_P:
        least = SEEN * alone.gain.error * abs(alone.gain.size / alone.gain.mean) if alone.gain.mean else math.nan
        if math.isfinite(least) and least > MIN_GAIN:
            small = f"A gain of less than {least:.0%}" if least < 1 else "Even a large gain"
            lines.append(f"{small} from local training would mostly go undetected too.")
    return lines


def detectable_difference(notes: Mapping[str, Any]) -> float | None:
    """The smallest difference between two groups, relative to the loss, that the tests for clusters would detect."""
    pair = notes.get("doubtful_pair")
    if not pair or not pair["mean"]:
        return None
    return float(SEEN * pair["error"] * abs(pair["size"] / pair["mean"]))
