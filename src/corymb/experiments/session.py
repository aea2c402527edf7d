"""One run on its way: from the first round to a `Run`."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from corymb.datasets import FederatedDataset
from corymb.driver import drive
from corymb.engines import LoopEngine, VectorisedEngine, Where
from corymb.engines.kernels import KernelName
from corymb.evaluate import comparable, evaluate
from corymb.experiments.catalogue import name_of, row_of
from corymb.experiments.history import Mark, Round, record
from corymb.experiments.kind import Kind, kind_of
from corymb.experiments.models import Learner
from corymb.experiments.place import Memory, make_engine, placed
from corymb.experiments.preflight import check_model
from corymb.experiments.run import Run, served_in_place
from corymb.experiments.standardise import Nothing, Standard, Standardised, describe, standard_of
from corymb.federation import Federation, Ledger
from corymb.objectives import LinearRegression, Regression
from corymb.settings import InvalidInput, to_dict
from corymb.snapshot import Algorithm, Snapshot
from corymb.trees import count, map_tensors

Progress = Callable[[Round], None]


@dataclass(frozen=True)
class Plan:
    """What is run on what, and where."""

    algorithm: Algorithm
    data: FederatedDataset
    where: Where
    engine: str
    memory: Memory
    kernel: KernelName | None
    min_replies: int
    seed: int

    def make(self, objective: Any) -> LoopEngine | VectorisedEngine:
        """An engine with the clients and this objective."""
        return make_engine(self.engine, objective, self.data, self.where, memory=self.memory, kernel=self.kernel)

    def federate(self, engine: LoopEngine | VectorisedEngine) -> Federation:
        """The clients behind an engine."""
        return Federation(engine, min_replies=self.min_replies)


class Session:
    """One run on its way: goes through the rounds, evaluates, and ends with a `Run`."""

    def __init__(self, plan: Plan, learner: Learner, every: int, max_seconds: float | None) -> None:
        self.began = time.perf_counter()
        self.plan, self.learner, self.every, self.max_seconds = plan, learner, every, max_seconds
        self.kind: Kind = kind_of(plan.data)
        self.standard, moments = self._standard()
        objective = learner.objective if self.standard is None else Standardised(learner.objective, self.standard)
        self.objective = placed(objective, plan.where)
        self.engine = plan.make(self.objective)
        self.fed = plan.federate(self.engine)
        self.fed.ledger = moments
        check_model(self.fed)
        self.fingerprint = plan.data.fingerprint()
        self.history: list[Round] = []
        self.metrics: dict[str, float] = {}
        self.at: Snapshot | None = None
        self.stopped = ""

    @property
    def _about(self) -> str:
        return f"{self.fingerprint} {describe(self.objective)}"

    def _standard(self) -> tuple[Standard | None, Ledger]:
        """The means and scales of raw features, and what it cost to ask for them."""
        if not self.kind.standardise:
            return None, Ledger()
        fed = self.plan.federate(self.plan.make(placed(Nothing(), self.plan.where)))
        ours = isinstance(self.learner.objective, (Regression, LinearRegression))
        standard = standard_of(fed, self.kind.features, targets=ours and self.kind.task == "regression")
        fed.ledger.rounds += 1
        return standard, fed.ledger

    def go(self, start: Snapshot | None, show: Progress) -> None:
        """Round after round, until the algorithm ends, time is up or somebody presses Ctrl-C."""
        try:
            for row in self._rounds(start):
                show(row)
                if self.max_seconds is not None and time.perf_counter() - self.began > self.max_seconds:
                    self.stopped = "max_seconds"
                    break
        except KeyboardInterrupt:
            if self.at is None:
                raise
            self.stopped = "interrupted"
            self.fed.rewind(self.at.clock)  # what the broken round left in client memory

    def _rounds(self, start: Snapshot | None) -> Iterator[Round]:
        plan, fed = self.plan, self.fed
        before = Mark.of(fed.ledger, None if start is None else start.labels)
        last = time.perf_counter()
        for snapshot in drive(plan.algorithm, fed, start, seed=plan.seed, about=self._about):
            after, now = Mark.of(fed.ledger, snapshot.labels), time.perf_counter()
            row = record(snapshot, before, after, now - last)
            self.history.append(row)
            self.at, self.metrics = snapshot, {}
            if self.every and snapshot.clock % self.every == 0:
                row["metrics"] = self.metrics = self._evaluate(snapshot)
            before, last = after, time.perf_counter()
            yield row

    def _evaluate(self, snapshot: Snapshot) -> dict[str, float]:
        data = self.plan.data
        return evaluate(self.fed, self.plan.algorithm, snapshot, truth=data.truth, true_parameters=data.true_parameters)

    def result(self) -> Run:
        """The run as far as it came."""
        if self.at is None:
            raise InvalidInput("The snapshot to start from is at the end of the run: there are no rounds left.")
        metrics = self.history[-1]["metrics"] = self.metrics or self._evaluate(self.at)
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
            objective=placed(self.learner.objective, Where(dtype=self.plan.where.dtype)),
            standard=self.standard,
            stopped=self.stopped,
            serving=None if serve is None else (self.fed.evaluation(), serve),
        )

    def _oracle_error(self, last: Snapshot) -> dict[str, float]:
        """The parameter error of the same algorithm started from the true parameters, where they are known."""
        plan, truth = self.plan, self.plan.data.true_parameters
        algorithm = row_of(type(plan.algorithm)).started(plan.algorithm)
        if algorithm is None or truth is None or not comparable(last.models, truth) or last.k != count(truth):
            return {}
        models = {name: rows.to(plan.where.device, plan.where.dtype) for name, rows in truth.items()}
        end = Snapshot(models=models, labels=torch.full_like(last.labels, -1), seed=plan.seed)
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
            "seed": plan.seed if self.at is None else self.at.seed,
            **{name: value for name, value in used.items() if name not in ("kernel", "chunk")},
            "kernel": plan.kernel,
            "evaluate_every": self.every,
            "min_replies": plan.min_replies,
            **to_dict(plan.algorithm),
            "record": {
                **{name: used[name] for name in ("kernel", "chunk") if name in used},
                "learns": describe(self.objective),
                "served": plan.algorithm.serve.name,
                "data": self.fingerprint,
                "clients": len(plan.data),
                "versions": versions(),
            },
        }


def versions() -> dict[str, str]:
    """What the numbers may depend on."""
    from corymb import __version__

    return {"corymb": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _on_cpu(snapshot: Snapshot) -> Snapshot:
    changes = {name: map_tensors(Tensor.cpu, getattr(snapshot, name)) for name in ("models", "labels", "shares")}
    return replace(snapshot, **changes, carry={name: value.cpu() for name, value in snapshot.carry.items()})
