"""The decision rule: the simplest candidate wins, unless another is significantly better, and by enough.

All thresholds are defined here. They were set on other seeds than those that the docs report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from corymb.clustering.paired import Difference
from corymb.runs.advising.pairs import Judge, Paired
from corymb.runs.advising.trials import ALONE, ONE, ORDER

Verdict = Literal["alone", "one-model", "clusters"]
Pairs = Mapping[tuple[str, str], Paired]
"""Comparisons by the names of both candidates, the less simple one first."""

MAX_P = 0.01
"""A gain counts if its p-value is below this (one-sided, paired over clients), ..."""
MIN_GAIN = 0.1
"""... and if it exceeds this fraction of the simpler candidate's loss (for a score up to 1, of its distance from 1)."""


def beats(gain: Difference) -> bool:
    """Whether a candidate is significantly better than a simpler one, and by enough."""
    return gain.p < MAX_P and gain.size > MIN_GAIN


def choose(pairs: Pairs, tried: Sequence[str], judge: Judge) -> str:
    """The recommended candidate: starting from the simplest, each that beats the one chosen so far replaces it."""
    chosen, *others = [name for name in ORDER if name in tried]
    for name in others:
        if beats(pairs[name, chosen].gain(judge)):
            chosen = name
    return chosen


def verdict_of(name: str, clusters: int) -> Verdict:
    """The verdict if a candidate with this many clusters is chosen."""
    if name == ALONE:
        return "alone"
    return "one-model" if name == ONE or clusters < 2 else "clusters"
