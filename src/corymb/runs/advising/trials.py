"""The candidates, tried on the same data: one model, clusters by two algorithms, and local training.

    one model   FedAvg
    clusters    IFCA with k = "auto"; if it finds any, also SR-FCA from the same clusters
    alone       local training of every client

A trial ends when the loss on held-out examples stops falling, and is judged at its minimum. SR-FCA refines once, for as
many rounds as IFCA took after the clusters were found, and then trains the clusters for at most as many more. Both use
the same tests to find clusters, so these are run once. A trial that diverges is left out and reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from corymb.algorithms.catalogue import CATALOGUE
from corymb.core.federation import TooFewReplies
from corymb.core.snapshot import Algorithm, Snapshot, planned_rounds
from corymb.data import FederatedDataset
from corymb.evaluate import clusters_in_use
from corymb.runs.advising.pairs import Serving
from corymb.runs.defaults import configure
from corymb.runs.history import Round, divergence
from corymb.runs.own.callbacks import StopRun
from corymb.runs.plan import Plan
from corymb.runs.session import Session
from corymb.settings import first_line, merged, to_dict

ONE, IFCA, SR_FCA, ALONE = ORDER = ("fedavg", "ifca", "sr-fca", "alone")
"""The candidates, simplest first: the simpler of two equally good ones is preferred."""
CLUSTERING = (IFCA, SR_FCA)
SETTINGS: Mapping[str, dict[str, Any]] = {ONE: {}, IFCA: {"k": "auto"}, SR_FCA: {}, ALONE: {}}
"""The settings of each candidate besides the defaults for the data; the recommended command includes them."""

MEASURE_EVERY = 5
"""Rounds between measurements of the held-out loss."""
MIN_FALL, PATIENCE = 0.01, 2
"""A trial ends if its held-out loss has not fallen by this fraction in this many measurements, ..."""
MAX_RISE = 0.02
"""... or if it exceeds its minimum by this fraction: it overfits."""
EXTRA_ROUNDS = 3
"""Rounds of SR-FCA besides those in which clusters train."""
MOST_CROSS_LOSSES = 300
"""SR-FCA sends every client the models of all others, so it is not tried with more clients than this."""


class TrialObserver(Protocol):
    """An observer of the trials."""

    def begin(self, name: str, rounds: int, later: int) -> None:
        """A trial of at most `rounds` rounds starts; `later` rounds are planned for the trials after it."""

    def round(self, row: Round) -> None:
        """A round of the trial has ended."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of a candidate's trial."""

    name: str
    serving: Serving
    clusters: int
    rounds: int
    """All rounds, including those that found the clusters."""
    seconds: float
    bytes_sent: int
    overfits_after: int | None = None
    """The round after which training longer made it worse, if it did."""
    out_of_time: bool = False
    notes: Mapping[str, Any]
    """The results of the held-out tests of the clusters: see `corymb.algorithms.evidence.headline`."""


class TrialResults:
    """The trials that can be judged, and the reasons why others cannot."""

    def __init__(self) -> None:
        self.trials: dict[str, Trial] = {}
        self.left_out: dict[str, str] = {}


def configured(name: str, data: FederatedDataset, given: Mapping[str, Any]) -> Algorithm:
    """The algorithm of a candidate, with those of the given settings that it has."""
    known = {field.name for field in fields(CATALOGUE[name].algorithm)}  # type: ignore[arg-type]
    own = {key: value for key, value in given.items() if key in known}
    return configure(name, data, **merged(own, SETTINGS[name]))


def planned(data: FederatedDataset, given: Mapping[str, Any]) -> dict[str, int]:
    """The most rounds that each candidate may take; SR-FCA starts from the clusters already found."""
    algorithms = {name: configured(name, data, given) for name in ORDER}
    rounds = {name: planned_rounds(algorithm) for name, algorithm in algorithms.items()}
    again = 1 if getattr(algorithms[SR_FCA], "finish", None) is None else 2
    return {**rounds, SR_FCA: again * getattr(algorithms[IFCA], "rounds", 0) + EXTRA_ROUNDS}


def try_all(
    plan: Plan, data: FederatedDataset, given: Mapping[str, Any], observer: TrialObserver, later: int = 0
) -> TrialResults:
    """Try every candidate once; `plan` holds the clients and the time limit of all trials together."""
    attempt, tried = _Attempts(plan, observer, planned(data, given), later), TrialResults()
    one = attempt(ONE, configured(ONE, data, given))
    if one.passed(tried):
        tried.trials[ONE] = one.trial()
    ifca = attempt(IFCA, configured(IFCA, data, given))
    if ifca.passed(tried):
        _add_clusters(tried, ifca)
    if IFCA in tried.trials and ifca.found is not None and ifca.found.k > 1:
        if len(data) > MOST_CROSS_LOSSES:
            tried.left_out[SR_FCA] = f"every client would receive the models of all {len(data)} clients"
        else:
            once = {"refinements": 1, "rounds": max(1, ifca.rounds_since_found)}
            refined = configured(SR_FCA, data, {**given, **once})
            sr_fca = attempt(SR_FCA, refined, replace(ifca.found, stage="find/found", fingerprint=""))
            if sr_fca.passed(tried):
                tried.trials[SR_FCA] = sr_fca.trial(ifca)
    alone = attempt(ALONE, configured(ALONE, data, given))
    again, best = alone, alone.best_round if alone.overfits else None
    if best:  # clients keep only their last models, so it is run again up to its best round
        again = attempt(ALONE, configured(ALONE, data, {**given, "rounds": best}))
    if again.passed(tried):
        tried.trials[ALONE] = replace(again.trial(), overfits_after=best)
    return tried


class _Attempts:
    """Runs the trials in turn, each for its share of the time left."""

    def __init__(self, plan: Plan, observer: TrialObserver, rounds: Mapping[str, int], later: int) -> None:
        self.plan, self.observer, self.rounds, self.later = plan, observer, rounds, later
        self.began = time.perf_counter()

    def __call__(self, name: str, algorithm: Algorithm, start: Snapshot | None = None) -> _TrialRun:
        limit, to_come = self.plan.max_seconds, ORDER[ORDER.index(name) :]
        left = None if limit is None else max(0.0, limit - (time.perf_counter() - self.began)) / len(to_come)
        trial = _TrialRun(name, replace(self.plan, algorithm=algorithm, max_seconds=left), self.observer)
        after = sum(self.rounds[other] for other in to_come[1:])
        self.observer.begin(name, self.rounds[name], after + self.later)
        trial.run(start)
        return trial


def _add_clusters(tried: TrialResults, ifca: _TrialRun) -> None:
    """Add IFCA's result; if it found a single cluster, that of the one model, which has already been tried."""
    if ifca.found is None:
        tried.left_out[IFCA] = "its time expired before the clusters were found"
    elif ifca.found.k > 1 or ONE not in tried.trials:
        tried.trials[IFCA] = ifca.trial()
    else:
        tried.trials[IFCA] = replace(ifca.trial(), serving=tried.trials[ONE].serving, clusters=1)


class _TrialRun:
    """One trial: measures the held-out loss every few rounds, and ends the run when it stops falling."""

    def __init__(self, name: str, plan: Plan, observer: TrialObserver) -> None:
        self.name, self.observer = name, observer
        self.session = Session(plan)
        self.notes: dict[str, Any] = {}
        self.found: Snapshot | None = None
        self.best = math.inf
        self.best_at: Snapshot | None = None
        self.last, self.stale, self.failed = 0.0, 0, ""

    def run(self, start: Snapshot | None) -> None:
        session = self.session
        try:
            session.run(start, self)
        except TooFewReplies as problem:
            self.failed = first_line(problem)
        if session.stopped == "interrupted":
            raise KeyboardInterrupt
        if session.stopped == "diverged" or not math.isfinite(self.last):
            grew = divergence(session.history, to_dict(session.plan.algorithm))
            self.failed = f"it diverged: {grew or 'some client could not be scored'}"

    def passed(self, tried: TrialResults) -> bool:
        """Whether the trial can be judged; otherwise records why it is left out."""
        if self.failed:
            tried.left_out[self.name] = self.failed
        return not self.failed

    def __call__(self, row: Round) -> None:
        self.observer.round(row)
        at = self.session.at
        assert at is not None
        if "evidence" in row["notes"]:
            self.notes, self.found = row["notes"], at
            if at.k == 1:
                raise StopRun
        if not self._measures_now(at):
            return
        self.last = self._serving(at).loss()
        if self.last < (1 - MIN_FALL) * self.best:
            self.stale = 0
        else:
            self.stale += 1
        if self.last < self.best:
            self.best, self.best_at = self.last, at
        if self.stale >= PATIENCE or self.overfits:
            raise StopRun

    def _measures_now(self, at: Snapshot) -> bool:
        """Whether to measure now: every few rounds of the last stage and at its end. SR-FCA always runs to its end."""
        if self.name == SR_FCA or (self.name == IFCA and at.stage != "rounds"):
            return False
        return at.round % MEASURE_EVERY == 0 or at.round == getattr(self.session.plan.algorithm, "rounds", 0)

    @property
    def overfits(self) -> bool:
        """Whether the held-out loss has risen above its minimum."""
        return self.best_at is not None and self.last > (1 + MAX_RISE) * self.best

    @property
    def best_round(self) -> int:
        return 0 if self.best_at is None else self.best_at.round

    @property
    def rounds_since_found(self) -> int:
        return 0 if self.found is None or self.session.at is None else self.session.at.clock - self.found.clock

    def trial(self, found_by: _TrialRun | None = None) -> Trial:
        """The result to judge: the best snapshot if the server has the models, the last if clients keep theirs."""
        session, at = self.session, self.session.at
        assert at is not None
        best = at if self.name == ALONE or self.best_at is None else self.best_at
        ledger = session.fed.ledger
        before = 0 if found_by is None or found_by.found is None else found_by.found.clock
        return Trial(
            name=self.name,
            serving=self._serving(best),
            clusters=clusters_in_use(best.labels),
            rounds=len(session.history) + before,
            seconds=time.perf_counter() - session.began,
            bytes_sent=ledger.bytes_down + ledger.bytes_up,
            out_of_time=session.stopped == "max_seconds",
            notes=self.notes if found_by is None else found_by.notes,
        )

    def _serving(self, at: Snapshot) -> Serving:
        return Serving(self.session.plan.algorithm, self.session.fed, at)
