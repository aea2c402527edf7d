"""Measurements at the end of a run: losses for the report, calibration for new clients, and the oracle error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.evaluate import comparable, evaluate, every_loss
from corymb.runs.assign import Calibration, calibrate
from corymb.runs.defaults import started
from corymb.settings import first_line
from corymb.trees import Params, count, map_tensors

log = logging.getLogger(__name__)
PART_ELSEWHERE = 16
"""If clients are in other processes, the first sample for estimating the final evaluation is one in this many."""
MOST_LOSSES = 2_000_000
"""The most clients times models for which all losses are measured."""


class Fits(NamedTuple):
    """How well the models of a run fit its clients."""

    losses: Tensor | None = None
    """Each client's training loss under each model (n k)."""
    calibration: Calibration | None = None


def model_fits(fed: Federation, at: Snapshot, served: Tensor | None = None) -> Fits:
    """Measure every client's loss under every model, and calibrate the losses expected of new clients.

    `served` are the clients' losses under the models they are served, if known; with a single model nothing else needs
    to be measured. A failure is logged, and the run ends without these values: the trained models must not be lost.
    """
    if len(fed.names) * at.k > MOST_LOSSES:
        return Fits()
    try:
        return _fits(fed, at, served)
    except (RuntimeError, MemoryError) as error:  # out of memory, or too few replies
        log.warning(
            "the losses of all models at all clients could not be measured after the last round: %s. The report will "
            "not show them, and `assign` cannot detect that no cluster fits.",
            first_line(error),
        )
        return Fits()


def _fits(fed: Federation, at: Snapshot, served: Tensor | None) -> Fits:
    if served is not None and at.k == 1 and bool(fed.clients.pick(served).isfinite().all()):
        losses = served[:, None].to(torch.get_default_dtype())
    else:
        losses = every_loss(fed, at.models)
    return Fits(losses, calibrate(fed, at.models, at.labels))


class Ending(NamedTuple):
    """The estimated duration of the final evaluation, in seconds."""

    scores: float = 0.0
    fits: float = 0.0
    """Seconds per model."""
    messages: float = 0.0
    """Seconds for messages, independent of the number of models."""

    def seconds(self, k: int, *, scored: bool = False) -> float:
        """The total with k models; `scored` if their scores are already known."""
        return (0.0 if scored else self.scores) + self.messages + k * self.fits

    @staticmethod
    def of_calls(seconds: float, *, fits: bool) -> Ending:
        """The ending if each of its calls takes this many seconds: labels and scores, then losses and calibration."""
        return Ending(2 * seconds, messages=2 * seconds if fits else 0.0)


class Hosts(Protocol):
    """An engine with hosts in other processes, which report how long they computed."""

    hosts: Sequence[str]
    """The host of each client."""
    traffic: Any


class _Spent(NamedTuple):
    """Elapsed time, and the time that each remote host spent computing."""

    seconds: float
    computed: Mapping[str, float]

    @staticmethod
    def now(remote: Hosts | None) -> _Spent:
        return _Spent(time.perf_counter(), {} if remote is None else dict(remote.traffic.computed))

    def since(self, before: _Spent) -> _Spent:
        computed = {host: spent - before.computed.get(host, 0.0) for host, spent in self.computed.items()}
        return _Spent(self.seconds - before.seconds, computed)

    def by_all(self, fed: Federation, part: Federation, remote: Hosts | None) -> tuple[float, float]:
        """Extrapolate from a sample of clients to all: the seconds of messages, and of computation.

        Remote hosts compute in parallel, each at its own pace; the time for messages is not scaled.
        """
        if remote is None:
            return 0.0, self.seconds * float(fed.sizes.sum()) / max(1.0, float(part.clients.sizes.sum()))
        messages = max(0.0, self.seconds - max(self.computed.values(), default=0.0))
        everyone, asked = (_examples(remote, one) for one in (fed, part))
        usual = sum(self.computed.values()) / max(1.0, sum(asked.values()))
        paces = {host: self.computed.get(host, 0.0) / count for host, count in asked.items() if count}
        return messages, max(count * paces.get(host, usual) for host, count in everyone.items())


def _examples(remote: Hosts, fed: Federation) -> dict[str, float]:
    """The number of training examples of a federation's clients on each host."""
    found: dict[str, float] = {}
    for client, size in zip(fed.clients.ids.tolist(), fed.clients.sizes.tolist(), strict=True):
        found[remote.hosts[client]] = found.get(remote.hosts[client], 0.0) + size
    return found


def estimate_ending(
    fed: Federation,
    at: Snapshot,
    score: Callable[[Federation], Tensor],
    *,
    fits: bool,
    long_enough: float,
    remote: Hosts | None = None,
) -> Ending:
    """Estimate the cost of the final evaluation on samples of clients, doubled until one takes `long_enough` seconds.

    `score` evaluates the clients of a federation and returns their training losses; `fits` tells whether `model_fits`
    follows. A sample that cannot be evaluated is not a measurement, so a larger one is tried. If clients are
    `remote`, messages dominate the time, so the first sample is already large enough to be representative.
    """
    everybody, by_size = len(fed.clients), fed.sizes.argsort(stable=True)
    some = 1 if remote is None else min(everybody, max(2, everybody // PART_ELSEWHERE))
    fits = fits and everybody * at.k <= MOST_LOSSES
    while True:
        places = by_size[(torch.arange(some) + 0.5).mul(everybody / some).long()].sort().values
        part, known = fed.only(fed.clients[places]), False
        began = scored = _Spent.now(remote)
        with suppress(RuntimeError):
            losses = score(part)
            scored = _Spent.now(remote)
            if fits:
                _fits(part, at, losses)
            known = True
        ended = _Spent.now(remote)
        measured = known and ended.seconds - began.seconds >= long_enough
        if (measured and some > 1) or some == everybody:  # the very first client pays one-off costs
            scores = sum(scored.since(began).by_all(fed, part, remote))
            messages, work = ended.since(scored).by_all(fed, part, remote)
            return Ending(scores, work / at.k, messages)
        some = min(everybody, 2 * some)


def oracle_error(
    algorithm: Algorithm, last: Snapshot, truth: Params | None, about: str, open_fed: Callable[[], Federation]
) -> dict[str, float]:
    """The parameter error of the same algorithm when started from the true parameters, if they are known.

    `open_fed` returns the run's clients with empty memory, so that this run does not affect the actual one.
    """
    continued = started(algorithm)
    if continued is None or truth is None or not comparable(last.models, truth) or last.k != count(truth):
        return {}
    like = next(iter(last.models.values()))
    models = {name: rows.to(like.device, like.dtype) for name, rows in truth.items()}
    end = Snapshot(models=models, labels=torch.full_like(last.labels, -1), seed=last.seed)
    fed = open_fed()
    for snapshot in drive(continued, fed, end, about=about):
        end = snapshot
    metrics = evaluate(fed, continued, end, true_parameters=truth)
    return {"oracle_error": metrics["parameter_error"]} if "parameter_error" in metrics else {}


def on_cpu(snapshot: Snapshot) -> Snapshot:
    """A snapshot with all its tensors on the CPU."""
    changes = {name: map_tensors(Tensor.cpu, getattr(snapshot, name)) for name in ("models", "labels", "shares")}
    return replace(snapshot, **changes, carry={name: value.cpu() for name, value in snapshot.carry.items()})
