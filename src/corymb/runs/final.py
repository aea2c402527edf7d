"""What is measured once, when a run has ended: losses for the report, calibration for new clients, the oracle error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

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
MOST_LOSSES = 2_000_000
"""Clients times models above which the losses of all models at all clients are not asked for."""


class Fits(NamedTuple):
    """How well the models of a run fit its clients."""

    losses: Tensor | None = None
    """n k: each client's training loss under each model."""
    calibration: Calibration | None = None


def model_fits(fed: Federation, at: Snapshot, served: Tensor | None = None) -> Fits:
    """Every client's loss under every model, and what losses new clients may be expected to have.

    `served` are everybody's losses under the model they are served, where they are known: of one model, that is all.
    What has been trained is not lost if this fails: it is said, and the run ends without it.
    """
    if len(fed.names) * at.k > MOST_LOSSES:
        return Fits()
    try:
        return _fits(fed, at, served)
    except (RuntimeError, MemoryError) as error:  # too little memory, or too few clients that answer
        log.warning(
            "the losses of all models at all clients could not be measured after the last round: %s. The report is "
            "without them, and `assign` cannot say that no cluster fits.",
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
    """Seconds that the end of a run is likely to take."""

    scores: float = 0.0
    fits: float = 0.0
    """For each model."""

    def seconds(self, k: int, *, scored: bool = False) -> float:
        """With k models; `scored` when their scores are known already."""
        return (0.0 if scored else self.scores) + k * self.fits


def rehearse(
    fed: Federation, at: Snapshot, score: Callable[[Federation], Tensor], *, fits: bool, enough: float
) -> Ending:
    """What the end of a run takes, from what it takes at more and more clients, of all sizes, until that is `enough`.

    `score` evaluates at the clients of a federation and gives everybody's training losses; `fits` says whether
    `model_fits` follows. Who cannot be evaluated by itself is no measure: then more are asked.
    """
    everybody, some, by_size = len(fed.clients), 1, fed.sizes.argsort(stable=True)
    fits = fits and everybody * at.k <= MOST_LOSSES
    while True:
        places = by_size[(torch.arange(some) + 0.5).mul(everybody / some).long()].sort().values
        part = fed.only(fed.clients[places])
        began = scored = time.perf_counter()
        with suppress(RuntimeError):
            losses = score(part)
            scored = time.perf_counter()
            if fits:
                _fits(part, at, losses)
        ended = time.perf_counter()
        if (ended - began >= enough and some > 1) or some == everybody:  # the first of all pays for what is done once
            times = float(fed.sizes.sum()) / max(1.0, float(part.clients.sizes.sum()))
            return Ending((scored - began) * times, (ended - scored) * times / at.k)
        some = min(everybody, 2 * some)


def oracle_error(
    algorithm: Algorithm, last: Snapshot, truth: Params | None, about: str, open_fed: Callable[[], Federation]
) -> dict[str, float]:
    """The parameter error of the same algorithm started from the true parameters, where they are known.

    `open_fed` gives the run's clients with empty memory: what this run does must not touch the other one.
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
