"""`tune`: trials of settings with Optuna, each a run on three quarters of the training examples, judged on the rest.

Test examples are not used: `corymb.local.held_out` holds out a part of each client's training examples. With the
default ranges, the first trial uses the default settings, so the result is never worse than they are.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from corymb.core.federation import TooFewReplies
from corymb.core.snapshot import Algorithm
from corymb.data import FederatedDataset, as_dataset
from corymb.data.schema import schema_of
from corymb.data.validation_split import validation_split
from corymb.objectives.measures import chosen_metric, higher_is_better
from corymb.runs.defaults import class_of, configure, name_of
from corymb.runs.fit import Data, fit
from corymb.runs.history import counted
from corymb.runs.learners import Model, learner_for
from corymb.runs.progress import log_once
from corymb.runs.settings import RunSettings
from corymb.runs.tuning.space import Space, default_space, nested, read_range
from corymb.settings import InvalidInput, as_options, expanded, fingerprint, merged, require, to_dict

JOURNAL, ABOUT = "study.jsonl", "study.json"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Settings that were tried."""

    settings: dict[str, Any]
    score: float | None
    """The mean over clients of the metric, on held-out training examples; None if the run diverged."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of tuning."""

    algorithm: Algorithm
    """The algorithm with the best settings, to pass to `fit`."""
    settings: dict[str, Any]
    """The best settings, `local.lr` for a nested one."""
    score: float
    """The score of the best settings."""
    metric: str
    """What the score is: the run's `metric`, by default the objective's own, such as `accuracy`."""
    trials: list[Trial]
    command: str
    """The run with the best settings, on the command line."""


def tune(
    algorithm: str | Algorithm | type[Algorithm],
    data: Data,
    model: Model | None = None,
    *,
    trials: int = 20,
    params: Mapping[str, str | Sequence[Any]] | None = None,
    given: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[int, Trial, float | None], None] | None = None,
    data_name: str | None = None,
    data_options: Mapping[str, Any] | None = None,
    settings: RunSettings | None = None,
    **options: Any,
) -> Tuned:
    """Search for good settings of an algorithm by trials. Test examples are not used.

    Arguments:
        algorithm: A name (`corymb list algorithms`), a class, or an algorithm, whose other settings are kept.
        data: As for `fit`, except engines.
        model: As for `fit`.
        trials: Total number of trials; in a folder that already has some, only the rest are run.
        params: Ranges by setting: `{"local.lr": "log:0.001:1", "k": "int:2:8", "averaging": ["models", "gradients"]}`.
            By default `k`, the step size and the number of steps, as far as the algorithm has them, after a first
            trial with the default settings.
        given: Settings of the algorithm that are fixed.
        out: A folder where the study is saved; the same call again continues it.
        progress: A function that takes the number of a trial, the trial and the best score so far.
        data_name: The name of the data in the command.
        data_options: Options of the data in the command.
        settings: How to carry out the runs; `options` are its fields by name, as for `fit`.
    """
    require(trials >= 1, f"trials must be at least 1, got {trials}.")
    settings = (settings or RunSettings()).updated(options)
    dataset = as_dataset(data, settings.seed)
    fixed = dict(given or {})
    if not isinstance(algorithm, (str, type)):
        fixed, algorithm = merged(to_dict(algorithm), fixed), type(algorithm)
    least = {"k": 2} if _needs_k(algorithm, fixed) else {}
    first = configure(algorithm, dataset, model=model, **least, **fixed)
    space = {name: read_range(name, span) for name, span in (params or {}).items()}
    space = space or default_space(first, fixed if isinstance(algorithm, str) else given or {}, len(dataset))
    require(bool(space), f"{name_of(first)} has no settings to tune by default: give params=, --param NAME=RANGE.")
    objective = learner_for(model, schema_of(dataset), dropout=settings.dropout).objective
    metric = chosen_metric(objective, settings.metric)
    task = _Task(
        algorithm=algorithm,
        data=validation_split(dataset),
        model=model,
        space=space,
        begin=None if params else least,
        fixed=fixed,
        settings=replace(settings, evaluate_every=0),
        metric=metric,
    )
    task.configured({name: span.first for name, span in space.items()})  # rejects unknown settings before any trial
    with _study(task, out, larger=higher_is_better(objective, metric)) as study, log_once():
        task.search(study, trials, progress)
        best = _best(study)
    if best is None:
        raise InvalidInput(
            f"None of {counted(trials, 'trial')} had a finite {task.metric}: search smaller steps with "
            "--param local.lr=log:LOW:HIGH."
        )
    chosen = dict(best.user_attrs["settings"])
    full = merged(fixed, nested(chosen))
    own = {name: value for name, value in to_dict(settings).items() if value != getattr(RunSettings(), name)}
    title = data_name or (os.fspath(data) if isinstance(data, (str, os.PathLike)) else dataset.name)
    words = [title, name_of(first), *as_options({**full, **(data_options or {}), **own})]
    words += ["--model", model] if isinstance(model, str) else []
    return Tuned(
        algorithm=task.configured(chosen),
        settings=chosen,
        score=float(best.value),
        metric=task.metric,
        trials=_tried(study),
        command=shlex.join(["corymb", "run", *words]),
    )


@dataclass(frozen=True, kw_only=True)
class _Task:
    """The task that a trial runs."""

    algorithm: str | type[Algorithm]
    data: FederatedDataset
    model: Model | None
    space: Space
    begin: Mapping[str, Any] | None
    """The settings of the first trial besides `fixed`; None if the first trial is sampled like the others."""
    fixed: Mapping[str, Any]
    settings: RunSettings
    metric: str

    def configured(self, chosen: Mapping[str, Any]) -> Algorithm:
        return configure(self.algorithm, self.data, model=self.model, **merged(self.fixed, nested(chosen)))

    def about(self) -> str:
        """A fingerprint that is equal if and only if trials are comparable."""
        name = self.algorithm if isinstance(self.algorithm, str) else self.algorithm.__name__
        named = self.model if isinstance(self.model, str) or self.model is None else "own"
        space = {name: str(span) for name, span in self.space.items()}
        return fingerprint(name, self.data.fingerprint(), named, dict(self.fixed), to_dict(self.settings), space)

    def search(self, study: Any, trials: int, progress: Callable[[int, Trial, float | None], None] | None) -> None:
        import optuna

        while (done := len(_finished(study))) < trials:
            # A new sampler for each trial, seeded by its number: an interrupted study continues as if it had not been.
            study.sampler = optuna.samplers.TPESampler(seed=1000 * self.settings.seed + done)
            trial = study.ask()
            if done or self.begin is None:
                chosen = {name: span.suggest(trial, name) for name, span in self.space.items()}
            else:
                chosen = dict(self.begin)
            trial.set_user_attr("settings", chosen)
            score = self.score(chosen)
            if score is None:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, score)
            if progress is not None:
                best = _best(study)
                progress(done + 1, Trial(settings=chosen, score=score), None if best is None else best.value)

    def score(self, chosen: Mapping[str, Any]) -> float | None:
        """The metric on held-out training examples; None if the run diverged."""
        try:
            run = fit(self.configured(chosen), self.data, self.model, settings=self.settings)
        except TooFewReplies:
            return None
        if run.stopped == "interrupted":
            raise KeyboardInterrupt
        score = run.metrics.get(f"test_{self.metric}", math.nan)
        return score if math.isfinite(score) and run.stopped != "diverged" else None


def _needs_k(algorithm: str | type[Algorithm], fixed: Mapping[str, Any]) -> bool:
    """Whether an algorithm requires k and it is not given; it is then searched."""
    kind = class_of(algorithm) if isinstance(algorithm, str) else algorithm
    field = getattr(kind, "__dataclass_fields__", {}).get("k")
    return "k" not in fixed and field is not None and field.default is field.default_factory


# ---- Optuna


@contextmanager
def _study(task: _Task, out: str | os.PathLike[str] | None, *, larger: bool) -> Iterator[Any]:
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise InvalidInput("Optuna is not installed: pip install 'corymb[tune]'.") from None
    optuna.logging.set_verbosity(logging.ERROR)
    direction: Literal["maximize", "minimize"] = "maximize" if larger else "minimize"
    if out is None:
        yield optuna.create_study(direction=direction)
        return
    place = expanded(out)
    require(not place.exists() or place.is_dir(), f"{place} is a file: give a folder for the study.")
    others = [path.name for path in place.iterdir()] if place.is_dir() and not (place / ABOUT).exists() else []
    require(not others, f"{place} is not empty and holds no study: give a new or empty folder.")
    place.mkdir(parents=True, exist_ok=True)
    about = {"about": task.about(), "metric": task.metric}
    if (place / ABOUT).exists():
        try:
            before = json.loads((place / ABOUT).read_text(encoding="utf-8"))
        except ValueError:
            before = None
        require(
            before == about,
            f"{place} holds a different study (data, algorithm, settings or ranges differ): give another folder.",
        )
    else:
        (place / ABOUT).write_text(json.dumps(about), encoding="utf-8")
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(place / JOURNAL)))
    yield optuna.create_study(study_name="corymb", storage=storage, direction=direction, load_if_exists=True)


def _finished(study: Any) -> list[Any]:
    """Finished trials; one that was killed does not count."""
    import optuna

    states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state in states]


def _best(study: Any) -> Any:
    """The best trial, the first among equals; None if all diverged."""
    scored = [trial for trial in _finished(study) if trial.value is not None]
    return study.best_trial if scored else None


def _tried(study: Any) -> list[Trial]:
    return [Trial(settings=dict(trial.user_attrs["settings"]), score=trial.value) for trial in _finished(study)]
