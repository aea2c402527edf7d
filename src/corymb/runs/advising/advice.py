"""The advice as a value: the verdict, every candidate tried, and its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corymb.clustering.paired import Difference
from corymb.core.snapshot import Algorithm
from corymb.runs.advising.pairs import Judge
from corymb.runs.advising.verdict import MAX_P, MIN_GAIN, Verdict
from corymb.runs.history import plain, readable


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One candidate and its result on held-out examples; with several seeds, means over them."""

    name: str
    """The name of its algorithm."""
    clusters: int
    """The number of clusters found; 1 for one model, 0 for local training."""
    value: float
    """The metric that decides: mean over clients."""
    loss: float
    score: float
    gain: Difference | None
    """How much better it is than the simplest candidate, by the judge; None for that candidate itself."""
    loss_gain: Difference | None
    score_gain: Difference | None
    over_chosen: Difference | None
    """How much better it is than the recommended candidate; None if they were not compared."""
    rounds: int
    seconds: float
    bytes_sent: int
    overfits_after: int | None
    out_of_time: bool

    @property
    def is_another(self) -> bool:
        """Whether it is something other than one global model."""
        return self.clusters != 1

    def to_dict(self) -> dict[str, Any]:
        """The candidate as plain values."""
        gains = ("gain", "loss_gain", "score_gain", "over_chosen")
        values = {name: value for name, value in vars(self).items() if name not in gains and name != "name"}
        return {**values, **{name: _as_dict(getattr(self, name)) for name in gains}}


def _as_dict(gain: Difference | None) -> dict[str, Any] | None:
    if gain is None:
        return None
    words = {"mean": gain.mean, "error": gain.error, "p": gain.p, "share": gain.size, "clients": gain.clients}
    return {**words, "share_of_clients_that_gain": gain.worse}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What `advise` recommends: one model, clusters or training alone, with the evidence."""

    verdict: Verdict
    clusters: int
    """The recommended number of models: that of clusters; 1 for one model; 0 if every client trains alone."""
    algorithm: str
    """The name of the algorithm to run."""
    run_next: Algorithm
    """The same, to pass to `fit`."""
    command: str
    """The same on the command line, or in Python if the data have no name there."""
    judge: Judge
    score_name: str
    """The objective's own score."""
    by_score: str
    """The algorithm if that score had been the judge; empty if it was, or if another metric was named."""
    base: str
    """The simplest candidate that could be tried, with which gains are compared."""
    candidates: dict[str, Candidate]
    left_out: dict[str, str]
    """Candidates that could not be tried, and why."""
    clustering: Mapping[str, Any]
    """What the tests that looked for clusters found: see `corymb.algorithms.evidence.headline`."""
    clusters_by_seed: list[int]
    data: str
    clients: int
    held_out: int
    """The number of held-out examples that decided."""
    seeds: list[int]
    sentences: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)

    @property
    def judge_words(self) -> str:
        """The name of the metric that decides."""
        return f"held-out {self.judge.name.replace('_', ' ')}"

    def text(self, value: float, digits: int = 3) -> str:
        """Format a value of the metric that decides."""
        return f"{value:.1%}" if self.judge.name.endswith("accuracy") else readable(value, digits)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that the command line prints."""
        evidence = {
            "judge": self.judge.name,
            "sure": MAX_P,
            "pays": MIN_GAIN,
            "clients": self.clients,
            "held_out_examples": self.held_out,
            "seeds": self.seeds,
            "gains_are_over": self.base,
            "candidates": {name: candidate.to_dict() for name, candidate in self.candidates.items()},
            "left_out": self.left_out,
            "clustering": dict(self.clustering),
            "clusters_by_seed": self.clusters_by_seed,
        }
        result = {
            "verdict": self.verdict,
            "clusters": self.clusters,
            "algorithm": self.algorithm,
            "command": self.command,
            "sentences": self.sentences,
            "cautions": self.cautions,
            "evidence": evidence,
        }
        return {name: plain(value) for name, value in result.items()}

    def __str__(self) -> str:
        return "\n".join([*self.sentences, *self.cautions, f"Next: {self.command}"])
