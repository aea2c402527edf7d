"""`advise`: should these clients share one model, be clustered, or train alone?

Every client's training examples are split once into kept and held-out ones (`corymb.local.held_out`); test examples are
not used. All candidates train on the kept examples and are compared on the held-out ones, client by client.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

from corymb.core.objective import Objective
from corymb.data import FederatedDataset, as_dataset
from corymb.data.validation_split import validation_split
from corymb.engines.isolation import torch_quiet
from corymb.runs.advising import words
from corymb.runs.advising.advice import Advice, Candidate
from corymb.runs.advising.pairs import LOSS, Judge, Paired, combined, compare
from corymb.runs.advising.progress import SilentObserver, TrialLine
from corymb.runs.advising.trials import (
    ALONE,
    CLUSTERING,
    IFCA,
    ORDER,
    SETTINGS,
    TrialObserver,
    TrialResults,
    configured,
    planned,
    try_all,
)
from corymb.runs.advising.verdict import choose, verdict_of
from corymb.runs.fit import Data, plan_for
from corymb.runs.learners import Model
from corymb.runs.plan import threads_set
from corymb.runs.progress import RoundLine, log_once
from corymb.runs.settings import DataOptions, RunSettings, has_name
from corymb.settings import InvalidInput, require, run_command, to_dict


class NothingToJudge(InvalidInput):
    """Raised if every candidate failed."""


def advise(
    data: Data,
    model: Model | None = None,
    *,
    seeds: Sequence[int] | None = None,
    given: Mapping[str, Any] | None = None,
    progress: bool | TrialObserver | None = None,
    max_seconds: float | None = None,
    data_name: str | None = None,
    data_options: DataOptions = DataOptions(),  # noqa: B008 - frozen
    settings: RunSettings | None = None,
    **options: Any,
) -> Advice:
    """Try one model, clusters and training alone on held-out training examples, and say which to choose.

    Arguments:
        data: As for `fit`, except engines: advice needs to split the training examples.
        model: As for `fit`.
        seeds: Seeds of the trials, each with another split; by default only the run's seed.
        given: Settings for all algorithms that are tried, such as `{"rounds": 20, "local": {"lr": 0.1}}`.
        progress: True for a line on stderr.
        max_seconds: Approximate time limit for all trials together.
        data_name: The name of the data in the command.
        data_options: How the data were read, for the command.
        settings: How to carry out the runs; `options` are its fields by name, as for `fit`. If `metric` is given, it
            decides, otherwise the loss.
    """
    settings = (settings or RunSettings()).updated(options)
    is_engine = hasattr(data, "open") and hasattr(data, "describe")
    require(not is_engine, "advise needs the data set itself, not an engine: it splits the training examples.")
    dataset = as_dataset(data, settings.seed).in_order()
    require(len(dataset) > 1, f"{dataset.name!r} has one client: there is nothing to share.")
    title = data_name or (os.fspath(data) if isinstance(data, (str, os.PathLike)) else dataset.name)
    asked = list(seeds) if seeds is not None else [settings.seed]
    require(bool(asked), "seeds is empty: give at least one seed.")
    plain_given = {name: to_dict(value) if is_dataclass(value) else value for name, value in (given or {}).items()}
    study = _Study(dataset, model, settings, plain_given, None if max_seconds is None else max_seconds / len(asked))
    with threads_set(settings.threads), torch_quiet(), log_once():
        if progress is True:
            with RoundLine(0) as line:  # the first trial sets the number of rounds
                study.run(asked, TrialLine(line))
        else:
            study.run(asked, progress or SilentObserver())
    return study.advice(title, data_options)


class _Study:
    """The trials of all seeds, and their combined result."""

    def __init__(
        self,
        data: FederatedDataset,
        model: Model | None,
        settings: RunSettings,
        given: Mapping[str, Any],
        limit: float | None,
    ) -> None:
        self.data, self.model, self.settings, self.given, self.limit = data, model, settings, given, limit
        self.seeds: list[int] = []
        self.tried: list[TrialResults] = []
        self.pairs: list[dict[tuple[str, str], Paired]] = []
        self.objective: Objective | None = None

    def run(self, seeds: Sequence[int], observer: TrialObserver) -> None:
        """Try all candidates with every seed, each with its own split."""
        rounds = sum(planned(self.data, self.given).values())
        for turn, seed in enumerate(seeds):
            split = validation_split(self.data, turn)
            plan = plan_for(
                split,
                replace(self.settings, seed=seed, evaluate_every=0),
                algorithm=configured(ORDER[0], split, self.given),
                model=self.model,
                max_seconds=self.limit,
            )
            tried = try_all(plan, split, self.given, observer, later=rounds * (len(seeds) - turn - 1))
            self.seeds.append(seed)
            self.tried.append(tried)
            self.pairs.append(self._compare(tried))

    def _compare(self, tried: TrialResults) -> dict[tuple[str, str], Paired]:
        """Compare every candidate with all simpler ones, and the simplest with itself."""
        names = [name for name in ORDER if name in tried.trials]
        if not names:
            why = "; ".join(f"{name}: {reason}" for name, reason in tried.left_out.items())
            raise NothingToJudge(f"Every candidate failed: try a smaller --local.lr ({why}).")
        served = {name: tried.trials[name].serving for name in names}
        self.objective = served[names[0]].fed.objective
        return {(a, b): compare(served[a], served[b], self.settings.metric) for a, b in _with_simpler(names)}

    def advice(self, title: str, data_options: DataOptions) -> Advice:
        """The advice from the candidates that succeeded with every seed."""
        assert self.objective is not None
        names = [name for name in ORDER if all(name in tried.trials for tried in self.tried)]
        if not names:
            raise NothingToJudge("No candidate succeeded with every seed: try a smaller --local.lr.")
        whole = {pair: combined([pairs[pair] for pairs in self.pairs]) for pair in _with_simpler(names)}
        judge = Judge.named(self.settings.metric, self.objective)
        own = Judge.named(self.objective.score_name, self.objective)
        name = choose(whole, names, judge)
        clusters = {one: self._clusters(one) for one in names}
        if name in CLUSTERING and clusters[name] < 2:  # the same as one model
            name = names[0]
        base = names[0]
        made = {one: self._candidate(one, base, name, whole, judge, own, clusters[one]) for one in names}
        trial = self.tried[0].trials[name]
        chosen = {**self.given, **({"rounds": trial.overfits_after} if trial.overfits_after else {})}
        advice = Advice(
            verdict=verdict_of(name, clusters[name]),
            clusters=clusters[name],
            algorithm=name,
            run_next=configured(name, self.data, chosen),
            command=self._next(name, title, chosen, data_options),
            judge=judge,
            score_name=self.objective.score_name,
            by_score=choose(whole, names, own) if judge.name == LOSS else "",
            base=base,
            candidates=made,
            left_out={one: why for tried in self.tried for one, why in tried.left_out.items()},
            clustering=next((t.trials[IFCA].notes for t in self.tried if IFCA in t.trials), {}),
            clusters_by_seed=[tried.trials[IFCA].clusters for tried in self.tried if IFCA in tried.trials],
            data=title,
            clients=int((whole[base, base].number > 0).sum()),
            held_out=round(float(whole[base, base].number.sum())),
            seeds=self.seeds,
        )
        return replace(advice, sentences=words.sentences(advice), cautions=words.cautions(advice))

    def _clusters(self, name: str) -> int:
        """The number of clusters found with most seeds."""
        found = Counter(tried.trials[name].clusters for tried in self.tried)
        return 0 if name == ALONE else found.most_common(1)[0][0]

    def _candidate(
        self,
        name: str,
        base: str,
        chosen: str,
        whole: Mapping[tuple[str, str], Paired],
        judge: Judge,
        own: Judge,
        clusters: int,
    ) -> Candidate:
        pair, loss = whole[name, base], Judge.named(None, self.objective)
        trials = [tried.trials[name] for tried in self.tried]
        gain, loss_gain, score_gain = (None if name == base else pair.gain(by) for by in (judge, loss, own))
        versus = whole.get((name, chosen)) if chosen not in (base, name) else None
        return Candidate(
            name=name,
            clusters=clusters,
            value=pair.values(judge)[0],
            loss=pair.values(loss)[0],
            score=pair.values(own)[0],
            gain=gain,
            loss_gain=loss_gain,
            score_gain=score_gain,
            over_chosen=None if versus is None else versus.gain(judge),
            rounds=max(trial.rounds for trial in trials),
            seconds=sum(trial.seconds for trial in trials),
            bytes_sent=sum(trial.bytes_sent for trial in trials),
            overfits_after=trials[0].overfits_after,
            out_of_time=any(trial.out_of_time for trial in trials),
        )

    def _next(self, name: str, title: str, chosen: Mapping[str, Any], data_options: DataOptions) -> str:
        """The command of the recommended run, or Python code if the data exist only in Python."""
        if not has_name(title):
            model = [] if self.model is None else [repr(self.model) if isinstance(self.model, str) else "model"]
            settings = [f"{key}={value!r}" for key, value in self._unusual_settings().items()]
            return f"corymb.fit({', '.join(['advice.run_next', 'data', *model, *settings])})"
        return run_command(name, title, self._options(name, chosen, data_options))

    def _options(self, name: str, given: Mapping[str, Any], data_options: DataOptions) -> dict[str, Any]:
        """The options of the recommended command."""
        known = to_dict(configured(name, self.data, given))
        of_algorithm = {key: value for key, value in given.items() if key in known}
        own = {} if self.model is None else {"model": self.model if isinstance(self.model, str) else "MODULE:NAME"}
        return {**SETTINGS[name], **of_algorithm, **data_options.given(), **own, **self._unusual_settings()}

    def _unusual_settings(self) -> dict[str, Any]:
        usual = to_dict(RunSettings())
        return {key: value for key, value in to_dict(self.settings).items() if value != usual[key]}


def _with_simpler(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of each candidate with every simpler one, and of the simplest with itself."""
    return [(a, b) for place, a in enumerate(names) for b in names[:place] or [a]]
