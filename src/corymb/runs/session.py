"""One run in progress: from the clients behind an engine to a `Run`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor

from corymb.core.driver import drive
from corymb.core.engine import TimeIsUp, Version
from corymb.core.federation import Federation, Ledger, TooFewReplies
from corymb.core.snapshot import Snapshot, ends_early, planned_rounds
from corymb.data.schema import DataSchema
from corymb.engines import Placement
from corymb.evaluate import Evaluation, score, trivial_prediction
from corymb.objectives import LinearRegression, Regression
from corymb.objectives.class_weight import smoothed, weighed
from corymb.objectives.measures import chosen_metric, higher_is_better
from corymb.objectives.whitening import can_whiten, whitening_root
from corymb.runs.audit import COUNTS, AuditCursor, check_same_bits
from corymb.runs.final import Ending, Fits, Hosts, estimate_ending, model_fits, on_cpu, oracle_error
from corymb.runs.folder.contents import initial_files
from corymb.runs.folder.environment import environment
from corymb.runs.folder.own_model import answers_of, bounds_of, ends_in_softmax, not_as_drawn, out_of_reach
from corymb.runs.folder.reader import restored_ledger
from corymb.runs.folder.writer import CheckpointInfo, RunStore, Saved
from corymb.runs.history import (
    BUDGET,
    CONVERGED,
    ENDED,
    IN_A_ROW,
    Mark,
    Round,
    converged,
    divergence,
    evaluated_loss,
    growth,
    noted_loss,
    of_this_plan,
    plain,
    record,
)
from corymb.runs.learners import MODELS, check_model, learner_for, of_standardised
from corymb.runs.own.callbacks import Start, StopRun
from corymb.runs.own.metrics import with_own
from corymb.runs.own.privacy import UNACCOUNTED, check_covered, is_private, spent_in
from corymb.runs.plan import Plan, config_of, placed, placed_snapshot, rounds_in, whitens
from corymb.runs.progress import EVERY, RoundProgress, RoundTimer
from corymb.runs.run import Run
from corymb.runs.serving import remembers, served_at, served_by
from corymb.runs.standardise.messages import describe_clients
from corymb.runs.standardise.objective import Standard, Standardised
from corymb.runs.standardise.statistics import robust_standard
from corymb.runs.stopping import Stopper
from corymb.settings import InvalidInput, to_dict

log = logging.getLogger(__name__)
Progress = Callable[[Round], None]

MOST_TRIED, PART_TRIED = 0.5, 0.02
"""The time spent on estimating the cost of the final evaluation: at most this many seconds and this fraction of
`max_seconds`."""
TRIED_ELSEWHERE, MOST_ELSEWHERE = 0.5, 0.25
"""The fraction of `max_seconds` after which that is estimated for clients in other processes, and the largest one that
the messages for it may take."""
OUT_OF_PROPORTION = (
    "its errors are out of all proportion to those of other clients; check the units of its labels. (If all targets "
    "have such tails, learn their logarithm.)"
)
PROBABILITIES = (
    "the model's outputs are probabilities, but logits are expected: remove its last softmax, or it will hardly learn "
    "and its probabilities will be wrong"
)
REINITIALISED = (
    "the model is an object, so its parameters are reinitialised, but those of %s are not as torch draws them: to "
    "start from them, give a function that returns the model (lambda: model)"
)
RESTANDARDISED = (
    "features are standardised by these data: models of start= that were trained on other data know other units; "
    "run.refresh(data) keeps the original standardisation"
)
UNSCALED = (
    "targets reach your own objective as they are, with mean {:.3g} and standard deviation {:.3g}: a fresh model "
    "predicts far from them and may take very long to get there; let predict return mean + deviation * the output"
)
BOUNDED = {
    "sign": "the model's outputs have only one sign: its targets are scaled, but not centred",
    "one": "the model's outputs stay within 1: it learns the original targets, not standardised ones",
}


class Session:
    """One run in progress: runs the rounds, evaluates and saves them, and returns a `Run`."""

    def __init__(self, plan: Plan, store: RunStore | None = None) -> None:
        self.began = time.perf_counter()
        self.plan, self.store = plan, store
        self.schema = DataSchema.read(plan.engine.schema)
        standardises = self.schema.standardise and plan.standard is None
        check_covered(plan.algorithm, plan.settings, standardises=standardises)
        self.fingerprint = plan.engine.fingerprint
        model = plan.model or getattr(plan.algorithm, "model", None)  # an algorithm of densities has its own
        examples = int(plan.engine.sizes.sum())
        self.learner = learner_for(model, self.schema, examples=examples, dropout=plan.settings.dropout)
        own = self.learner.name not in MODELS
        self.answers = answers_of(self.learner.objective, self.schema) if own else []
        if layer := not_as_drawn(model):
            log.warning(REINITIALISED, layer)
        if own and ends_in_softmax(self.learner.objective, self.schema):
            log.warning(PROBABILITIES)
        if smoothing := plan.settings.label_smoothing:
            self.learner = self.learner._replace(objective=smoothed(self.learner.objective, smoothing))
        self.standard, moments = self._standard()
        self.class_weight = self._class_weight(moments)
        objective = self.learner.objective
        if self.standard is not None:
            objective = Standardised(objective, self.standard)
        self.environment = environment(plan.settings.seed)
        if plan.run:
            self.environment["run"] = plan.run
        self._warned_of_memory = False
        with of_standardised(self.standard is not None):
            self.engine = plan.open(objective, None if store is None else store.journal, self.environment["run"])
            self.fed = plan.federate(self.engine)
            self.fed.ledger = moments
            check_model(self.fed)
        self.metric = chosen_metric(self.fed.objective, plan.settings.metric)
        self._trivial: Tensor | None = None
        self.history: list[Round] = []
        self.at: Snapshot | None = None
        self.stopped = ""
        self._evaluation: Evaluation | None = None  # of the last snapshot
        self._ending: Ending | None = None
        self._fastest_call = math.inf  # seconds of a call to clients elsewhere, in the fastest round so far
        self._evaluating: Callable[[], AbstractContextManager[None]] = nullcontext
        self._warned: set[str] = set()
        self._stopper = Stopper()
        self._logged = AuditCursor(0, 0)

    @property
    def about(self) -> str:
        """The identity of data and model, which must agree for one run to continue another."""
        return f"{self.fingerprint} {self.fed.objective.describe()}"

    def _standard(self) -> tuple[Standard | None, Ledger]:
        """The means and scales of raw features, and the ledger of computing them."""
        if not self.schema.standardise or self.plan.standard is not None:
            return self.plan.standard, Ledger()
        fed = self.plan.federate(self.plan.engine)
        ours = isinstance(self.learner.objective, (Regression, LinearRegression))
        targets = ours and self.schema.task == "regression"
        bounds = (
            bounds_of(self.learner.objective, self.schema) if targets and self.learner.name not in MODELS else "none"
        )
        if bounds != "none":
            log.warning(BOUNDED[bounds])
        found = robust_standard(fed, self.schema.features, targets=targets and bounds != "one")
        standard = found.standard.uncentred() if bounds == "sign" else found.standard
        self.add_notes(describe_clients(found, self.schema.size, self.schema.feature_names))
        own = self.schema.task == "regression" and not ours
        if own and out_of_reach(self.learner.objective, self.schema, *found.targets):
            self.add_notes([UNSCALED.format(*found.targets)])
        if whitens(self.plan.algorithm) and can_whiten(self.learner.objective, self.schema.features):
            standard = standard._replace(root=whitening_root(fed, standard.mean, standard.scale, standard.limit))
        return standard, fed.ledger

    def _class_weight(self, ledger: Ledger) -> dict[str, float] | None:
        """Apply the class weights to the objective; returns them by class, or None."""
        given = self.plan.settings.class_weight
        if given is None:
            return None
        fed = self.plan.federate(self.plan.engine)
        fed.ledger = ledger
        objective, weights = weighed(self.learner.objective, fed, given, self.schema.classes)
        self.learner = self.learner._replace(objective=objective)
        return weights

    def create_folder(self, start: Snapshot | None) -> None:
        """Create the run's folder; a snapshot to start from becomes its first checkpoint."""
        assert self.store is not None
        self.environment["seed"] = seed = self.plan.settings.seed if start is None else start.seed
        files = initial_files(self._config(seed), self.environment, self.fed.names, self.schema, self.standard)
        self.store.create(files, self.environment["run"])
        self.store.rounds.append([plain(row) for row in self.history])
        if start is not None:
            self.store.checkpoint(start, self._checkpoint_info())

    def take_over(self, history: list[Round], ledger: Ledger, seconds: float) -> None:
        """Continue from the end of another run."""
        self.history, self.fed.ledger = history, ledger
        self._logged = AuditCursor.of(ledger)
        self.began -= seconds

    def restore(self, saved: Saved | None, environment: dict[str, Any]) -> Snapshot | None:
        """Restore the state of a checkpoint; None if there is none."""
        self.environment = environment
        if saved is None:
            return None
        manifest, start, self.history, audit = saved
        check_same_bits(manifest.engine, self.engine.describe())
        self.began -= manifest.seconds
        self.fed.ledger = restored_ledger(manifest.ledger, audit)
        self._logged = AuditCursor.of(self.fed.ledger)
        self.at = placed_snapshot(start, self.plan.placement)
        if manifest.versions:
            self.fed.rewind(start.clock, {host: Version(*at) for host, at in manifest.versions.items()})
        return self.at

    def note_handover(self, start: Snapshot) -> None:
        """Note that features have new units, unless `start` is from the same data, and what ε does not cover."""
        new_units = self.standard is not None and start.units != self._units(start)
        unaccounted = is_private(self.plan.algorithm) and not start.account
        self.add_notes([RESTANDARDISED] * new_units + [UNACCOUNTED] * unaccounted)

    def add_notes(self, notes: Sequence[str]) -> None:
        """Log these lines, and keep them with the run."""
        for line in notes:
            log.warning(line)
        self.schema = self.schema._replace(notes=(*self.schema.notes, *notes))

    def _units(self, start: Snapshot | None) -> str:
        """The fingerprint of the data that features are standardised by: these, or those of the run continued here."""
        if self.plan.standard is None:
            return "" if self.standard is None else self.fingerprint
        return "" if start is None else start.units

    def about_to_start(self, start: Snapshot | None) -> Start:
        """The description of the run for `on_start` callbacks."""
        seed = self.plan.settings.seed if start is None else start.seed
        rounds = planned_rounds(self.plan.algorithm)
        return Start(self.fed.names, self._config(seed), rounds, self._rounds_done(start))

    def _rounds_done(self, start: Snapshot | None) -> int:
        """How many of the planned rounds are already done: on new data an algorithm without memory begins again."""
        begins = start is None or (start.round == 0 and self._starts_on_new_data())
        return 0 if begins else len(of_this_plan(self.history))

    def run(self, start: Snapshot | None, show: Progress, *, evaluated: bool = False) -> None:
        """Run rounds until the algorithm ends, diverges or converges, the time is up or Ctrl-C is pressed.

        If the run is to be `evaluated` afterwards (by `result`), time is reserved for that.
        """
        began, limit = time.perf_counter(), self.plan.max_seconds
        line = getattr(show, "show", show)
        # A limit of 0 asks for one round, however slow.
        timer = RoundTimer(limit or None, getattr(line, "within", None))
        timer.watch(self.fed, self.engine)
        if hasattr(line, "resume"):
            line.resume(self.history, self._rounds_done(start))
        self._evaluating = partial(self._evaluation_progress, timer, getattr(line, "evaluating", None))
        try:
            with nullcontext() if self.store is None else self._stopper.listening():
                for row in self._rounds(start, timer):
                    out_of_time = partial(self._out_of_time, began, timer, evaluated=evaluated)
                    if (why := self._why_to_end(row, show, out_of_time)) is not None:
                        self.stopped = why
                        break
                else:
                    self.stopped = BUDGET if self._budget_spent() else ""
        except KeyboardInterrupt:
            if self.at is None:
                raise
            self.stopped = "interrupted"
            self.fed.rewind(self.at.clock)  # drop what the interrupted round left in client memory
        except TimeIsUp:
            if self.at is None:
                progress = timer.progress
                raise InvalidInput(
                    f"max_seconds={limit:g} expired in the first round, after {progress.done} of {progress.asked} "
                    f"clients; {progress.estimate}give more time, or less work per round (--local.steps, "
                    "--local.batch, --participants)."
                ) from None
            self.stopped = "max_seconds"
            self.fed.rewind(self.at.clock)
        except TooFewReplies:
            self._save()
            raise
        self._save()

    def _why_to_end(self, row: Round, show: Progress, out_of_time: Callable[[], bool]) -> str | None:
        """Why the run ends after this round, before the algorithm does; None if it goes on."""
        if self._stopped_by_callback(row, show):
            return "callback"
        if self._diverged():
            return "diverged"
        if self._converged():
            return CONVERGED
        return "max_seconds" if out_of_time() else None

    def _out_of_time(self, began: float, timer: RoundTimer, *, evaluated: bool) -> bool:
        """Whether there is no time for another round and the evaluation.

        Remote rounds cannot be interrupted, so the next one is not started if, taking as long as this one, it would end
        farther from the limit than this one did. Estimating the cost of the evaluation takes as many messages there as
        the evaluation. So it is left to the second half of the time (many runs have ended by then), and until then, or
        if there is no time for it, calls of the evaluation are assumed to take as long as those of the fastest round so
        far (the first may be slow), and half of the limit at most.
        """
        limit = self.plan.max_seconds
        if limit is None:
            return False
        if timer.in_process:
            if evaluated and self._ending is None:
                self._ending = self._estimated_ending(limit, None)
            timer.limit = limit - self._seconds_to_end(self._ending)
            return time.perf_counter() - began > timer.limit
        last: float = self.history[-1]["seconds"]
        spent = time.perf_counter() - began + last / 2
        self._fastest_call = min(self._fastest_call, last / max(1, timer.calls))
        more, kept_back = len(of_this_plan(self.history)) < planned_rounds(self.plan.algorithm), 0.0
        if evaluated and more and self._ending is None:
            assert self.at is not None
            assumed = self._seconds_to_end(Ending.of_calls(self._fastest_call, self.at.k, fits=self._has_fits))
            if assumed < limit * MOST_ELSEWHERE and limit * TRIED_ELSEWHERE < spent < limit:
                self._ending = self._estimated_ending(limit, timer.remote)
            kept_back = min(assumed, limit / 2)
        timer.limit = limit - (kept_back if self._ending is None else self._seconds_to_end(self._ending))
        return time.perf_counter() - began + last / 2 > timer.limit

    def _budget_spent(self) -> bool:
        return self.at is not None and "privacy_budget" in self.at.notes

    def _stopped_by_callback(self, row: Round, show: Progress) -> bool:
        """Pass a round to the user's callbacks. If one raises an error, a checkpoint is saved first."""
        try:
            show(row)
        except StopRun:
            return True
        except Exception:
            self._save()
            raise
        return False

    def _rounds(self, start: Snapshot | None, timer: RoundTimer) -> Iterator[Round]:
        settings, fed = self.plan.settings, self.fed
        before = Mark.of(fed.ledger, None if start is None else start.labels)
        last = time.perf_counter()
        identity = {"about": self.about, "units": self._units(start)}
        for snapshot in timer.timed(drive(self.plan.algorithm, fed, start, seed=settings.seed, **identity)):
            after, now = Mark.of(fed.ledger, snapshot.labels), time.perf_counter()
            row = record(snapshot, before, after, now - last, getattr(fed.objective, "loss_unit", None))
            row |= {"refreshed": True} if self._starts_on_new_data() else {}
            self.history.append(row)
            self.at, self._evaluation = snapshot, None
            if settings.evaluate_every and snapshot.clock % settings.evaluate_every == 0:
                self._evaluate_into(row, snapshot)
            self._watch(row)
            self._watch_memory()
            with self._stopper.shielded():
                self._end_round(row)
            before, last = after, time.perf_counter()
            yield row

    def _starts_on_new_data(self) -> bool:
        """Whether the next round is the first on new data."""
        refreshed = self.plan.record.get("refreshed", ())
        return bool(refreshed and self.history) and self.history[-1]["clock"] == refreshed[-1]["clock"]

    def _estimated_ending(self, limit: float, remote: Hosts | None) -> Ending:
        """Estimate the cost of the final evaluation by measuring it on a few clients."""
        at = self.at
        assert at is not None
        self._trivial = (
            trivial_prediction(self.fed) if self._trivial is None else self._trivial
        )  # once, over all clients
        long_enough = min(MOST_TRIED, PART_TRIED * limit)

        def score_at(fed: Federation) -> Tensor:
            return self._score(fed, at).losses

        return estimate_ending(self.fed, at, score_at, fits=self._has_fits, long_enough=long_enough, remote=remote)

    def _seconds_to_end(self, ending: Ending | None) -> float:
        """The estimated duration of the final evaluation in seconds; 0 if unknown."""
        if ending is None or self.at is None:
            return 0.0
        return ending.seconds(self.at.k, scored=self._evaluation is not None)

    @contextmanager
    def _evaluation_progress(self, timer: RoundTimer, report: Callable[[RoundProgress], None] | None) -> Iterator[None]:
        """Report the progress of the evaluation, and first its estimated duration if that is long."""
        if report is not None and (left := self._seconds_to_end(self._ending)) > EVERY:
            report(RoundProgress(0, len(self.fed.names), left))
        with timer.evaluating(report):
            yield

    def _score(self, fed: Federation, at: Snapshot) -> Evaluation:
        """The metrics and test scores of these clients."""
        plan = self.plan
        self._trivial = trivial_prediction(self.fed) if self._trivial is None else self._trivial
        found = score(
            fed,
            plan.algorithm,
            at,
            truth=plan.truth,
            true_parameters=plan.true_parameters,
            trivial=self._trivial,
            classes=self.schema.classes,
        )
        return with_own(found, fed, plan.algorithm, at, plan.metrics) if plan.metrics else found

    def _evaluate(self, at: Snapshot) -> Evaluation:
        """The metrics and each client's test score, computed once per snapshot."""
        if self._evaluation is None:
            self._evaluation = found = self._score(self.fed, at)
            for name in sorted({*found.too_large} - self._warned):
                log.warning("client %r is not scored: %s", name, OUT_OF_PROPORTION)
            self._warned |= {*found.too_large}
        return self._evaluation

    def _evaluate_into(self, row: Round, at: Snapshot) -> None:
        found = self._evaluate(at)
        row["metrics"], row["not_scored"] = found.metrics, found.not_scored
        row |= {} if found.points is None else {"points": found.points}
        before = [set(other["not_scored"]) for other in self.history if other is not row and "not_scored" in other]
        # A client that could never be scored is faulty; if it could be scored before, its model has diverged.
        lost = any(name not in others for name in found.exploded for others in before)
        row["evaluated_loss"] = math.inf if lost else found.answered_loss

    def _watch(self, row: Round) -> None:
        """Mark a round whose loss has grown, and log a warning once per run if it keeps growing."""
        kinds = (evaluated_loss, noted_loss)
        if any(growth(self.history, kind, 1) for kind in kinds):
            row["diverging"] = True
        if any(growth(self.history, kind) for kind in kinds) and not any("warning" in other for other in self.history):
            row["warning"] = divergence(self.history, to_dict(self.plan.algorithm), IN_A_ROW)
            log.warning("the run is diverging: %s", row["warning"])

    def _watch_memory(self) -> None:
        """Warn once if clients write memory that the algorithm does not declare: `refresh` and nodes rely on it."""
        host, algorithm = getattr(self.engine, "host", None), self.plan.algorithm
        silent = not self._warned_of_memory and not getattr(algorithm, "keeps_memory", False)
        if silent and host is not None and not host.memory.empty:
            self._warned_of_memory = True
            log.warning(
                "%s writes client memory but does not declare it: set keeps_memory = True in the class, or restarts, "
                "refresh and nodes that lost their memory continue without it",
                type(algorithm).__name__,
            )

    def _diverged(self) -> bool:
        """Whether the loss has grown for too long: at evaluations or, without those, in the algorithm's notes."""
        settings = self.plan.settings
        kind = evaluated_loss if settings.evaluate_every else noted_loss
        return not settings.keep_going and growth(self.history, kind) is not None

    def _converged(self) -> bool:
        """Whether further rounds would change nothing. Only the last stage can end early; others must be completed.

        In the last stage, the rounds left by the algorithm's plan agree with those left by its own count.
        """
        algorithm, at = self.plan.algorithm, self.at
        rounds = rounds_in(to_dict(algorithm))
        if self.plan.settings.until != "converged" or rounds is None or at is None:
            return False
        if ends_early(algorithm):  # the rounds left are unknown, so the algorithm names its last stage
            return at.stage == getattr(algorithm, "last_stage", None) and at.round < rounds and converged(self.history)
        left = planned_rounds(algorithm) - len(of_this_plan(self.history))
        return 0 < left == rounds - at.round and converged(self.history)

    # ---- saving

    def _end_round(self, row: Round) -> None:
        """Write the round to the folder, if there is one; otherwise only client memory has to be committed."""
        assert self.at is not None
        clock, ledger = self.at.clock, self.fed.ledger
        if self.store is None:
            self.fed.commit(clock, {clock})
            return
        self.store.write_round(row, self._logged.news(ledger, self.at))
        self._logged = AuditCursor.of(ledger)
        if clock % self.plan.settings.checkpoint_every == 0:
            self._save()

    def _save(self) -> None:
        """Write a checkpoint, unless this round already has one."""
        store, at = self.store, self.at
        if store is None or at is None or at.clock in store.kept:
            return
        self.fed.commit(at.clock, store.kept | {at.clock})
        store.checkpoint(at, self._checkpoint_info())

    def _checkpoint_info(self) -> CheckpointInfo:
        counts = {name: getattr(self.fed.ledger, name) for name in COUNTS}
        metrics = {} if self._evaluation is None else self._evaluation.metrics
        value = metrics.get(f"test_{self.metric}", math.nan)
        better = higher_is_better(self.fed.objective, self.metric)
        larger = (value if better else -value) if math.isfinite(value) else None
        seconds = time.perf_counter() - self.began
        versions = {host: list(at) for host, at in self.fed.versions.items() if host}
        return CheckpointInfo(counts, self.engine.describe(), seconds, larger, versions)

    # ---- the end

    def result(self) -> Run:
        """Evaluate the last round and return the run, finished or not."""
        with self._evaluating():
            return self._result()

    @property
    def _has_fits(self) -> bool:
        """Whether the server has the models, so that all of them can be evaluated at all clients."""
        by = served_by(self.plan.algorithm)
        return (by if self.at is None else served_at(by, self.at)) not in ("own", "points")

    @property
    def _is_needed(self) -> bool:
        """Whether the clients are needed after the run: for their own models, or for their memory."""
        return not self._has_fits or remembers(self.plan.algorithm)

    def _result(self) -> Run:
        plan, at = self.plan, self.at
        if at is None:
            name = type(plan.algorithm).__name__
            raise InvalidInput(
                f"{name}.run ended without a round: it must yield a snapshot after each round. If the run started from "
                "a snapshot, that snapshot may already be at the end, with no rounds left."
            )
        found = self._evaluate(at)
        if self.history:
            self._evaluate_into(self.history[-1], at)
            if not self.stopped and not plan.settings.keep_going and growth(self.history, evaluated_loss, 1):
                self.stopped = "diverged"  # the run was too short to be stopped, but it ended diverged
        metrics = {**found.metrics, **({} if self.stopped not in ENDED else self._oracle_error(at)), **spent_in(at)}
        fits = model_fits(self.fed, at, found.losses) if self._has_fits else Fits()
        return Run(
            snapshot=on_cpu(at),
            names=self.fed.names,
            history=self.history,
            metrics=metrics,
            ledger=self.fed.ledger,
            config=self._config(at.seed),
            seconds=time.perf_counter() - self.began,
            schema=self.schema,
            objective=placed(self.learner.objective, Placement(dtype=plan.placement.dtype)),
            standard=self.standard,
            stopped=self.stopped,
            serving=(self.fed.evaluation(), plan.algorithm.serve) if self._is_needed else None,
            losses=fits.losses,
            scores=found.scores,
            by_client=found.by_client,
            points=tuple(found.points or ()),
            not_scored=tuple(found.not_scored),
            calibration=fits.calibration,
            environment=self.environment,
            folder=None if self.store is None else self.store.folder,
        )

    def _config(self, seed: int) -> dict[str, Any]:
        config = config_of(self.plan, self.engine, model=self.learner.name, seed=seed, fingerprint=self.fingerprint)
        if self.class_weight is not None:
            config["record"]["class_weight"] = self.class_weight
        if self.answers:
            config["record"]["answers"] = self.answers
        return config

    def _oracle_error(self, at: Snapshot) -> dict[str, float]:
        def open_fed() -> Federation:
            return self.plan.federate(self.plan.open(self.fed.objective))

        return oracle_error(self.plan.algorithm, at, self.plan.true_parameters, self.about, open_fed)
