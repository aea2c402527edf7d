"""The rule: the simplest way wins, unless another one beats it beyond doubt and by enough.

The thresholds are here and nowhere else. They were set on seeds other than those that the docs report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from corymb.clustering.paired import Difference
from corymb.runs.advising.pairs import Judge, Paired
from corymb.runs.advising.trials import ALONE, ONE, ORDER

Verdict = Literal["alone", "one-model", "clusters"]
Pairs = Mapping[tuple[str, str], Paired]
"""By the names of both ways, the less simple one first."""

SURE = 0.01
"""A gain counts if chance would show one as large less often than this (one-sided, paired over clients), ..."""
PAYS = 0.1
"""... and if it is at least this part of the simpler way's loss (of a score up to 1: of what that is short of 1)."""


def beats(gain: Difference) -> bool:
    """Whether a way is better than a simpler one beyond doubt, and by enough."""
    return gain.p < SURE and gain.size > PAYS


def choose(pairs: Pairs, tried: Sequence[str], judge: Judge) -> str:
    """The way to go: from the simplest on, each next one that beats the one chosen so far."""
    chosen, *others = [name for name in ORDER if name in tried]
    for name in others:
        if beats(pairs[name, chosen].gain(judge)):
            chosen = name
    return chosen


def verdict_of(name: str, clusters: int) -> Verdict:
    """The verdict on a way."""
    if name == ALONE:
        return "alone"
    return "one-model" if name == ONE or clusters < 2 else "clusters"
