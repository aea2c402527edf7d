"""One run on its way: from the first round to a `Run`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from corymb.core.driver import drive
from corymb.core.engine import Journal
from corymb.core.federation import Federation, Ledger, TooFewReplies
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.data import FederatedDataset
from corymb.data.schema import DataSchema, schema_of
from corymb.engines import LoopEngine, Placement, VectorisedEngine
from corymb.evaluate import comparable, evaluate, every_loss
from corymb.evaluate import score as score_snapshot
from corymb.objectives import LinearRegression, Regression
from corymb.runs.assign import Calibration, calibrate
from corymb.runs.audit import COUNTS, AuditCursor, check_same_bits
from corymb.runs.catalogue import name_of, row_of
from corymb.runs.environment import environment, versions
from corymb.runs.folder.reader import initial_files, restored_ledger
from corymb.runs.folder.writer import CheckpointInfo, RunStore, Saved
from corymb.runs.history import Mark, Round, record
from corymb.runs.learners import Learner
from corymb.runs.placing import make_engine, placed, placed_snapshot
from corymb.runs.preflight import check_model
from corymb.runs.run import Run, served_in_place
from corymb.runs.settings import RunSettings
from corymb.runs.standardise import NullObjective, Standard, Standardised, describe, standard_of
from corymb.runs.stopping import Stopper
from corymb.settings import InvalidInput, to_dict
from corymb.trees import count, map_tensors

Progress = Callable[[Round], None]
LOSSES_AT_MOST = 2_000_000


@dataclass(frozen=True)
class Plan:
    """What is run on what, and where."""

    algorithm: Algorithm
    data: FederatedDataset
    where: Placement
    how: RunSettings
    said: Mapping[str, Any] = field(default_factory=dict)
    """How the user called the data, for the record."""

    def make(self, objective: Any, journal: Journal | None = None) -> LoopEngine | VectorisedEngine:
        """An engine with the clients and this objective."""
        how = self.how
        return make_engine(
            how.engine, objective, self.data, self.where, memory=how.memory, kernel=how.kernel, journal=journal
        )

    def federate(self, engine: LoopEngine | VectorisedEngine) -> Federation:
        """The clients behind an engine."""
        return Federation(engine, min_replies=self.how.min_replies)


class Session:
    """One run on its way: goes through the rounds, evaluates, and ends with a `Run`."""

    def __init__(self, plan: Plan, learner: Learner, max_seconds: float | None, store: RunStore | None) -> None:
        self.began = time.perf_counter()
        self.plan, self.learner, self.max_seconds, self.store = plan, learner, max_seconds, store
        self.kind: DataSchema = schema_of(plan.data)
        self.standard, moments = self._standard()
        objective = learner.objective if self.standard is None else Standardised(learner.objective, self.standard)
        self.objective = placed(objective, plan.where)
        self.engine = plan.make(self.objective, None if store is None else store.journal)
        self.fed = plan.federate(self.engine)
        self.fed.ledger = moments
        check_model(self.fed)
        self.fingerprint = plan.data.fingerprint()
        self.history: list[Round] = []
        self.metrics: dict[str, float] = {}
        self.at: Snapshot | None = None
        self.stopped = ""
        self.environment = environment(plan.how.seed)
        self._stopper = Stopper()
        self._told = AuditCursor(0, 0)

    @property
    def _about(self) -> str:
        return f"{self.fingerprint} {describe(self.objective)}"

    def _standard(self) -> tuple[Standard | None, Ledger]:
        """The means and scales of raw features, and what it cost to ask for them."""
        if not self.kind.standardise:
            return None, Ledger()
        fed = self.plan.federate(self.plan.make(placed(NullObjective(), self.plan.where)))
        ours = isinstance(self.learner.objective, (Regression, LinearRegression))
        standard = standard_of(fed, self.kind.features, targets=ours and self.kind.task == "regression")
        fed.ledger.rounds += 1
        return standard, fed.ledger

    def keep(self, start: Snapshot | None) -> None:
        """Begin the run's folder; a snapshot to start from is its first checkpoint."""
        assert self.store is not None
        names, seed = self.plan.data.names, self.plan.how.seed if start is None else start.seed
        self.environment["seed"] = seed
        files = initial_files({**self._config(), "seed": seed}, self.environment, names, self.kind, self.standard)
        self.store.begin(files, self.environment["run"])
        if start is not None:
            self.store.checkpoint(start, self._facts())

    def resume(self, saved: Saved | None, environment: dict[str, Any]) -> Snapshot | None:
        """Stand where a checkpoint was made; None if there was none."""
        self.environment = environment
        if saved is None:
            return None
        manifest, start, self.history, audit = saved
        check_same_bits(manifest.engine, self.engine.describe())
        self.began -= manifest.seconds
        self.fed.ledger = restored_ledger(manifest.ledger, audit)
        self._told = AuditCursor.of(self.fed.ledger)
        self.metrics = self.history[-1].get("metrics", {}) if self.history else {}
        self.at = placed_snapshot(start, self.plan.where)
        return self.at

    def go(self, start: Snapshot | None, show: Progress) -> None:
        """Round after round, until the algorithm ends, time is up or somebody presses Ctrl-C."""
        began = time.perf_counter()
        try:
            with nullcontext() if self.store is None else self._stopper.listening():
                for row in self._rounds(start):
                    show(row)
                    if self.max_seconds is not None and time.perf_counter() - began > self.max_seconds:
                        self.stopped = "max_seconds"
                        break
        except KeyboardInterrupt:
            if self.at is None:
                raise
            self.stopped = "interrupted"
            self.fed.rewind(self.at.clock)  # what the broken round left in client memory
        except TooFewReplies:
            self._save()
            raise
        self._save()

    def _rounds(self, start: Snapshot | None) -> Iterator[Round]:
        plan, fed = self.plan, self.fed
        before = Mark.of(fed.ledger, None if start is None else start.labels)
        last = time.perf_counter()
        for snapshot in drive(plan.algorithm, fed, start, seed=plan.how.seed, about=self._about):
            after, now = Mark.of(fed.ledger, snapshot.labels), time.perf_counter()
            row = record(snapshot, before, after, now - last)
            self.history.append(row)
            self.at, self.metrics = snapshot, {}
            if plan.how.evaluate_every and snapshot.clock % plan.how.evaluate_every == 0:
                row["metrics"] = self.metrics = self._evaluate(snapshot)
            with self._stopper.shielded():
                self._end_round(row)
            before, last = after, time.perf_counter()
            yield row

    # ---- saving

    def _end_round(self, row: Round) -> None:
        """Keep the round: in the folder, where there is one, else only as far as client memory needs it."""
        assert self.at is not None
        clock, ledger = self.at.clock, self.fed.ledger
        if self.store is None:
            self.fed.commit(clock, {clock})
            return
        self.store.write_round(row, self._told.news(ledger, self.at))
        self._told = AuditCursor.of(ledger)
        if clock % self.plan.how.checkpoint_every == 0:
            self._save()

    def _save(self) -> None:
        """Make a checkpoint, unless the last one is of this round."""
        store, at = self.store, self.at
        if store is None or at is None or at.clock in store.kept:
            return
        self.fed.commit(at.clock, store.kept | {at.clock})
        store.checkpoint(at, self._facts())

    def _facts(self) -> CheckpointInfo:
        counts = {name: getattr(self.fed.ledger, name) for name in COUNTS}
        objective = self.fed.objective
        score = self.metrics.get(f"test_{objective.score_name}")
        if score is not None:
            score = None if not math.isfinite(score) else score if objective.higher_is_better else -score
        return CheckpointInfo(counts, self.engine.describe(), time.perf_counter() - self.began, score)

    def _evaluate(self, snapshot: Snapshot) -> dict[str, float]:
        data = self.plan.data
        return evaluate(self.fed, self.plan.algorithm, snapshot, truth=data.truth, true_parameters=data.true_parameters)

    def result(self) -> Run:
        """The run as far as it came."""
        if self.at is None:
            raise InvalidInput("The snapshot to start from is at the end of the run: there are no rounds left.")
        metrics = self.metrics or self._evaluate(self.at)
        if self.history:
            self.history[-1]["metrics"] = metrics
        if not self.stopped:
            metrics = {**metrics, **self._oracle_error(self.at)}
        serve = served_in_place(self.plan.algorithm)
        return Run(
            snapshot=_on_cpu(self.at),
            names=self.plan.data.names,
            history=self.history,
            metrics=metrics,
            ledger=self.fed.ledger,
            config=self._config(),
            seconds=time.perf_counter() - self.began,
            kind=self.kind,
            objective=placed(self.learner.objective, Placement(dtype=self.plan.where.dtype)),
            standard=self.standard,
            stopped=self.stopped,
            serving=None if serve is None else (self.fed.evaluation(), serve),
            losses=self._losses() if serve is None else None,
            scores=score_snapshot(self.fed, self.plan.algorithm, self.at).scores,
            calibration=self._calibration() if serve is None else None,
            environment=self.environment,
            folder=None if self.store is None else self.store.folder,
        )

    def _calibration(self) -> Calibration | None:
        """What genuine clients' losses look like, for the sake of new ones."""
        assert self.at is not None
        few = len(self.fed.names) * self.at.k <= LOSSES_AT_MOST
        return calibrate(self.fed, self.at.models, self.at.labels) if few else None

    def _losses(self) -> Tensor | None:
        """Every client's loss of every model, unless that is more than anybody would look at."""
        assert self.at is not None
        few = len(self.fed.names) * self.at.k <= LOSSES_AT_MOST
        return every_loss(self.fed, self.at.models) if few else None

    def _oracle_error(self, last: Snapshot) -> dict[str, float]:
        """The parameter error of the same algorithm started from the true parameters, where they are known."""
        plan, truth = self.plan, self.plan.data.true_parameters
        algorithm = row_of(type(plan.algorithm)).started(plan.algorithm)
        if algorithm is None or truth is None or not comparable(last.models, truth) or last.k != count(truth):
            return {}
        models = {name: rows.to(plan.where.device, plan.where.dtype) for name, rows in truth.items()}
        end = Snapshot(models=models, labels=torch.full_like(last.labels, -1), seed=plan.how.seed)
        fed = plan.federate(plan.make(self.objective))
        for snapshot in drive(algorithm, fed, end, about=self._about):
            end = snapshot
        metrics = evaluate(fed, algorithm, end, true_parameters=truth)
        return {"oracle_error": metrics["parameter_error"]} if "parameter_error" in metrics else {}

    def _config(self) -> dict[str, Any]:
        """What was run, as it could be given again; under `record`, what else there is to know."""
        plan, used = self.plan, self.engine.describe()
        return {
            "data": plan.data.name,
            "algorithm": name_of(plan.algorithm),
            "model": self.learner.name,
            "seed": plan.how.seed if self.at is None else self.at.seed,
            **{name: value for name, value in used.items() if name not in ("kernel", "chunk")},
            "kernel": plan.how.kernel,
            "evaluate_every": plan.how.evaluate_every,
            "checkpoint_every": plan.how.checkpoint_every,
            "min_replies": plan.how.min_replies,
            "dropout": plan.how.dropout,
            **to_dict(plan.algorithm),
            "record": {
                **{name: used[name] for name in ("kernel", "chunk") if name in used},
                "learns": describe(self.objective),
                "served": plan.algorithm.serve.name,
                "data": self.fingerprint,
                "clients": len(plan.data),
                "versions": versions(),
            },
            **plan.said,
        }


def _on_cpu(snapshot: Snapshot) -> Snapshot:
    changes = {name: map_tensors(Tensor.cpu, getattr(snapshot, name)) for name in ("models", "labels", "shares")}
    return replace(snapshot, **changes, carry={name: value.cpu() for name, value in snapshot.carry.items()})
