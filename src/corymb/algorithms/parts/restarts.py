"""Independent runs of one algorithm, of which the best is kept."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.parts.scoring import score_of
from corymb.algorithms.parts.then import keeps_memory
from corymb.core.client import Client, ClientFn, Served, on_client
from corymb.core.driver import FAILURES_IN_A_ROW
from corymb.core.federation import Cohort, Federation, Replies, TooFewReplies
from corymb.core.patience import ask_again
from corymb.core.snapshot import Algorithm, Snapshot, planned_rounds
from corymb.settings import check_types, require
from corymb.trees import Params

log = logging.getLogger(__name__)
BEST = "best/"
"""Prefix of the best run's models and labels in `carry`, and of its slots in client memory."""


class Best(NamedTuple):
    """The scores of the runs so far, and the end of the best of them; no models while every run has diverged."""

    losses: list[float]
    models: Params
    labels: Tensor | None = None
    shares: Tensor | None = None

    @staticmethod
    def from_carry(carry: Mapping[str, Tensor]) -> Best:
        """The state stored in a snapshot's carry."""
        kept = {name.removeprefix(BEST): value for name, value in carry.items() if name.startswith(BEST)}
        losses = kept["losses"].tolist() if "losses" in kept else []
        models = {name.removeprefix("models/"): value for name, value in kept.items() if name.startswith("models/")}
        return Best(losses, models, kept.get("labels"), kept.get("shares"))

    def to_carry(self) -> dict[str, Tensor]:
        """The state as named tensors, for the carry of a snapshot."""
        if not self.losses:
            return {}
        rows = {"labels": self.labels, "shares": self.shares}
        kept = {f"models/{name}": value for name, value in self.models.items()}
        kept |= {name: value for name, value in rows.items() if value is not None}
        kept["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        return {BEST + name: value for name, value in kept.items()}

    def after(self, at: Snapshot | None, loss: float) -> Best:
        """The state after one more run; the first of equally good runs is kept."""
        losses = [*self.losses, loss]
        if at is None or not loss < min(self.losses, default=math.inf):
            return self._replace(losses=losses)
        return Best(losses, at.models, at.labels, at.shares)


@on_client
def keep_best(client: Client, *, better: bool) -> Tensor:
    """Save this restart's memory as the best so far, or, if it is not the best, restore the best restart's."""
    memory, names = client.memory, client.memory.names()
    for name in [name for name in names if not name.startswith(BEST)]:
        if better:
            memory.copy(name, BEST + name)
        elif BEST + name in names:
            memory.copy(BEST + name, name)
        else:
            memory.clear(name)
    return client.train.weight.new_zeros(())


@on_client
def forget_run(client: Client) -> Tensor:
    """Clear the memory of the last restart; the memory saved as the best stays."""
    for name in [name for name in client.memory.names() if not name.startswith(BEST)]:
        client.memory.clear(name)
    return client.train.weight.new_zeros(())


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """The best of several runs from independent starts, by training loss or the inner algorithm's own `score`.

    After each run a round scores it; the last snapshot holds the best run's models and labels, client memory what the
    best run kept, and the notes every run's score. A run that diverges counts as the worst of all: one whose score is
    not finite, or whose round is abandoned so often that the driver would give up. A start that is handed over is the
    first run's; the others begin from random models.
    """

    inner: Algorithm
    times: int = 5

    def __post_init__(self) -> None:
        check_types(self)
        require(self.times >= 1, f"times must be at least 1, got {self.times}.")
        require(not isinstance(self.inner, Restarts), "Restarts of Restarts: give the product of their times to one.")
        private = getattr(self.inner, "privacy", None) is not None
        require(not private, "restarts are not covered by the privacy accounting: leave Restarts out.")

    @property
    def serve(self) -> ClientFn[..., Params | Served]:
        """The inner algorithm's client function for serving."""
        return self.inner.serve

    @property
    def keeps_memory(self) -> bool:
        """Whether the inner algorithm writes client memory."""
        return keeps_memory(self.inner)

    @property
    def planned_rounds(self) -> int:
        """The rounds of every run, and one more to score each."""
        once = planned_rounds(self.inner)
        return once if self.times == 1 else self.times * (once + 1)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """The runs in order, each followed by a round that scores it."""
        if self.times == 1:
            yield from self.inner.run(fed, start)
            return
        place, _, within = start.stage.partition("/") if start else ("", "", "")
        kind, _, number = place.partition("-")
        best = Best.from_carry(start.carry) if start and kind else Best([], {})
        at = start if not kind else None  # after a handover, the first run starts there
        if start and kind == "restart":
            at = replace(start, stage=within, carry=_unnested(start.carry))
        for run in range(int(number or 0) + (kind == "scored"), self.times):
            loss, problem = math.inf, None
            try:
                if at is None and run and self.keeps_memory:
                    _call_all(fed.clients, lambda clients: clients.map(forget_run))
                for inner in self.inner.run(fed, at):
                    at = inner
                    stage = f"restart-{run}/{at.stage}" if at.stage else f"restart-{run}"
                    yield replace(at, stage=stage, carry={**_nested(at.carry), **best.to_carry()})
                if at is None:
                    raise ValueError(
                        "Restarts needs an inner algorithm with at least one round: there is nothing to score"
                    )
                loss = score_of(self.inner, fed, at)
            except TooFewReplies as failure:
                if not _last_attempt(fed) or (at is None and not best.models):
                    raise
                problem = failure
            best = self._scored(fed, run, at, best, loss, problem)
            yield _scored_snapshot(run, at, best, fed)
            at = None

    def _scored(
        self, fed: Federation, run: int, at: Snapshot | None, best: Best, loss: float, problem: Exception | None
    ) -> Best:
        """The best run after this one; the error is raised if every run has diverged."""
        loss = loss if math.isfinite(loss) else math.inf
        if loss == math.inf:
            log.warning("restart %d diverged%s", run, f": {problem}" if problem else "")
        best = best.after(at, loss)
        if run == self.times - 1 and min(best.losses) == math.inf:
            raise problem or TooFewReplies("no restart ended with a finite training loss: lower the step size")
        if self.keeps_memory and best.models:
            better = best.losses.index(min(best.losses)) == run
            _call_all(fed.clients, lambda clients: clients.map(keep_best, better=better))
        return best


def _call_all(clients: Cohort, call: Callable[[Cohort], Replies[Tensor]]) -> None:
    """Make a call that manages client memory; a client that misses it would go on with another run's memory."""
    ask_again(clients, call(clients), call)


def _scored_snapshot(run: int, at: Snapshot | None, best: Best, fed: Federation) -> Snapshot:
    """A snapshot with the best run's models and labels, or those of the run just scored if all have diverged so far."""
    losses = [loss if math.isfinite(loss) else None for loss in best.losses]
    notes: dict[str, Any] = {**(at.notes if at else {}), "restart_losses": losses}
    stage, carry = f"scored-{run}", best.to_carry()
    if best.labels is None:
        assert at is not None
        return replace(at, stage=stage, carry=carry, notes=notes)
    notes["best_restart"] = best.losses.index(min(best.losses))
    at = at or Snapshot(models=best.models, labels=best.labels, seed=fed.seed, clock=fed.clock)
    return replace(
        at, stage=stage, models=best.models, labels=best.labels, shares=best.shares, carry=carry, notes=notes
    )


def _last_attempt(fed: Federation) -> bool:
    """Whether the preceding rounds were abandoned too, so that the driver would end the run on the next failure."""
    before = FAILURES_IN_A_ROW - 1
    clocks = [entry["clock"] for entry in fed.ledger.abandoned[-before:]]
    return clocks == list(range(fed.clock - before, fed.clock))


def _nested(carry: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inner algorithm's carry, renamed where its names would clash with ours."""
    return {f"inner/{name}" if name.startswith((BEST, "inner/")) else name: value for name, value in carry.items()}


def _unnested(carry: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("inner/"): value for name, value in carry.items() if not name.startswith(BEST)}
