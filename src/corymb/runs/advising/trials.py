"""Every way to serve clients, tried on the same data: one model, clusters by either algorithm, each client alone.

    one model   FedAvg
    clusters    IFCA with k = "auto"; and, where that found any, SR-FCA from the same clusters
    alone       every client for itself

A trial ends when the loss on held-out examples no longer falls, and is judged at its least. SR-FCA refines once, for as
many rounds as IFCA took after the clusters were found, and trains the clusters on for no more than that; both find them
by the same tests, so these are done once. A trial that diverges is left out and said.
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
from corymb.runs.advising.pairs import Way
from corymb.runs.defaults import configure
from corymb.runs.history import Round, divergence
from corymb.runs.own.callbacks import StopRun
from corymb.runs.plan import Plan
from corymb.runs.session import Session
from corymb.settings import first_line, merged, to_dict

ONE, IFCA, SR_FCA, ALONE = ORDER = ("fedavg", "ifca", "sr-fca", "alone")
"""The ways, simplest first: which one is kept where they are as good as each other."""
CLUSTERING = (IFCA, SR_FCA)
SETTINGS: Mapping[str, dict[str, Any]] = {ONE: {}, IFCA: {"k": "auto"}, SR_FCA: {}, ALONE: {}}
"""What a way is run with, beside the defaults that suit the data: as the command that is recommended has it."""

LOOK = 5
"""Rounds between looks at the held-out loss."""
LITTLE, PATIENCE = 0.01, 2
"""A trial ends when its held-out loss has not fallen by this part of it in so many looks, ..."""
RISEN = 0.02
"""... or when it is above its least by this part of it: it overfits."""
AROUND = 3
"""Rounds of SR-FCA before and after those in which clusters train."""
MOST_CROSS_LOSSES = 300
"""SR-FCA sends every client the models of all others: with more clients than this it is not tried."""


class Course(Protocol):
    """Who is told how the trials go."""

    def begin(self, name: str, rounds: int, later: int) -> None:
        """A trial begins, of at most so many rounds; so many are planned for those that follow."""

    def round(self, row: Round) -> None:
        """A round of it is over."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A way that was tried."""

    name: str
    way: Way
    clusters: int
    rounds: int
    """All rounds that were run, those that found the clusters included."""
    seconds: float
    bytes_sent: int
    overfits_after: int | None = None
    """The round after which training longer made it worse, if it did."""
    out_of_time: bool = False
    notes: Mapping[str, Any]
    """What held-out tests said of the clusters: see `corymb.algorithms.evidence.headline`."""


class Tried:
    """What came of the trials: those that can be judged, and why others cannot."""

    def __init__(self) -> None:
        self.trials: dict[str, Trial] = {}
        self.left_out: dict[str, str] = {}


def configured(name: str, data: FederatedDataset, given: Mapping[str, Any]) -> Algorithm:
    """A way's algorithm, with those of the given settings that it has."""
    known = {field.name for field in fields(CATALOGUE[name].algorithm)}  # type: ignore[arg-type]
    own = {key: value for key, value in given.items() if key in known}
    return configure(name, data, **merged(own, SETTINGS[name]))


def planned(data: FederatedDataset, given: Mapping[str, Any]) -> dict[str, int]:
    """How many rounds each way takes at most; SR-FCA begins where the clusters have been found."""
    ways = {name: configured(name, data, given) for name in ORDER}
    rounds = {name: planned_rounds(way) for name, way in ways.items()}
    again = 1 if getattr(ways[SR_FCA], "finish", None) is None else 2
    return {**rounds, SR_FCA: again * getattr(ways[IFCA], "rounds", 0) + AROUND}


def try_all(plan: Plan, data: FederatedDataset, given: Mapping[str, Any], course: Course, later: int = 0) -> Tried:
    """Run every way once; `plan` has the clients, and for how long all trials together may run."""
    attempt, tried = _Attempts(plan, course, planned(data, given), later), Tried()
    one = attempt(ONE, configured(ONE, data, given))
    if one.passed(tried):
        tried.trials[ONE] = one.trial()
    ifca = attempt(IFCA, configured(IFCA, data, given))
    if ifca.passed(tried):
        _add_clusters(tried, ifca)
    if IFCA in tried.trials and ifca.found is not None and ifca.found.k > 1:
        if len(data) > MOST_CROSS_LOSSES:
            tried.left_out[SR_FCA] = f"every client would be sent the models of all {len(data)}"
        else:
            once = {"refinements": 1, "rounds": max(1, ifca.rounds_since_found)}
            refined = configured(SR_FCA, data, {**given, **once})
            sr_fca = attempt(SR_FCA, refined, replace(ifca.found, stage="find/found", fingerprint=""))
            if sr_fca.passed(tried):
                tried.trials[SR_FCA] = sr_fca.trial(ifca)
    alone = attempt(ALONE, configured(ALONE, data, given))
    again, best = alone, alone.best_round if alone.overfits else None
    if best:  # clients keep their models: it is trained again, up to the round in which it was best
        again = attempt(ALONE, configured(ALONE, data, {**given, "rounds": best}))
    if again.passed(tried):
        tried.trials[ALONE] = replace(again.trial(), overfits_after=best)
    return tried


class _Attempts:
    """Runs one trial after another, each for its part of the time that is left."""

    def __init__(self, plan: Plan, course: Course, rounds: Mapping[str, int], later: int) -> None:
        self.plan, self.course, self.rounds, self.later = plan, course, rounds, later
        self.began = time.perf_counter()

    def __call__(self, name: str, algorithm: Algorithm, start: Snapshot | None = None) -> _Watch:
        limit, to_come = self.plan.max_seconds, ORDER[ORDER.index(name) :]
        left = None if limit is None else max(0.0, limit - (time.perf_counter() - self.began)) / len(to_come)
        watch = _Watch(name, replace(self.plan, algorithm=algorithm, max_seconds=left), self.course)
        after = sum(self.rounds[other] for other in to_come[1:])
        self.course.begin(name, self.rounds[name], after + self.later)
        watch.run(start)
        return watch


def _add_clusters(tried: Tried, ifca: _Watch) -> None:
    """IFCA's clusters; where it found one, that is the one model, which has been tried."""
    if ifca.found is None:
        tried.left_out[IFCA] = "its time was up before the clusters were found"
    elif ifca.found.k > 1 or ONE not in tried.trials:
        tried.trials[IFCA] = ifca.trial()
    else:
        tried.trials[IFCA] = replace(ifca.trial(), way=tried.trials[ONE].way, clusters=1)


class _Watch:
    """One trial: looks at the held-out loss every few rounds, and ends it where that no longer falls."""

    def __init__(self, name: str, plan: Plan, course: Course) -> None:
        self.name, self.course = name, course
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

    def passed(self, tried: Tried) -> bool:
        """Whether it can be judged; else it is left out, and why is said."""
        if self.failed:
            tried.left_out[self.name] = self.failed
        return not self.failed

    def __call__(self, row: Round) -> None:
        self.course.round(row)
        at = self.session.at
        assert at is not None
        if "evidence" in row["notes"]:
            self.notes, self.found = row["notes"], at
            if at.k == 1:
                raise StopRun
        if not self._looks(at):
            return
        self.last = self._way(at).loss()
        if self.last < (1 - LITTLE) * self.best:
            self.stale = 0
        else:
            self.stale += 1
        if self.last < self.best:
            self.best, self.best_at = self.last, at
        if self.stale >= PATIENCE or self.overfits:
            raise StopRun

    def _looks(self, at: Snapshot) -> bool:
        """In the last stage of a run, every few rounds and at its end. SR-FCA's stages have to come to their ends."""
        if self.name == SR_FCA or (self.name == IFCA and at.stage != "rounds"):
            return False
        return at.round % LOOK == 0 or at.round == getattr(self.session.plan.algorithm, "rounds", 0)

    @property
    def overfits(self) -> bool:
        """Whether the held-out loss has risen above its least."""
        return self.best_at is not None and self.last > (1 + RISEN) * self.best

    @property
    def best_round(self) -> int:
        return 0 if self.best_at is None else self.best_at.round

    @property
    def rounds_since_found(self) -> int:
        return 0 if self.found is None or self.session.at is None else self.session.at.clock - self.found.clock

    def trial(self, found_by: _Watch | None = None) -> Trial:
        """As it is judged: the best snapshot where models are the server's, the last where clients keep theirs."""
        session, at = self.session, self.session.at
        assert at is not None
        best = at if self.name == ALONE or self.best_at is None else self.best_at
        ledger = session.fed.ledger
        before = 0 if found_by is None or found_by.found is None else found_by.found.clock
        return Trial(
            name=self.name,
            way=self._way(best),
            clusters=clusters_in_use(best.labels),
            rounds=len(session.history) + before,
            seconds=time.perf_counter() - session.began,
            bytes_sent=ledger.bytes_down + ledger.bytes_up,
            out_of_time=session.stopped == "max_seconds",
            notes=self.notes if found_by is None else found_by.notes,
        )

    def _way(self, at: Snapshot) -> Way:
        return Way(self.session.plan.algorithm, self.session.fed, at)
