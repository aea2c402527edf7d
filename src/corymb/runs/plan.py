"""The plan of a run: its clients, its algorithm, its settings, and where clients compute."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from corymb.core.driver import LAST_STAGES
from corymb.core.engine import Engine, Journal
from corymb.core.federation import Federation
from corymb.core.objective import Objective
from corymb.core.snapshot import Algorithm, Snapshot, planned_rounds
from corymb.data import FederatedDataset
from corymb.engines import LoopEngine, Placement, VectorisedEngine
from corymb.faults import inject, read_faults
from corymb.local import Descent
from corymb.objectives.null import NullObjective
from corymb.objectives.partial import PartialObjective
from corymb.runs.defaults import name_of
from corymb.runs.folder.environment import versions
from corymb.runs.learners import Model
from corymb.runs.own.metrics import Metric
from corymb.runs.serving import served_by
from corymb.runs.settings import DataOptions, RunSettings, names
from corymb.runs.standardise.objective import Standard
from corymb.settings import InvalidInput, require, to_dict
from corymb.trees import Params

log = logging.getLogger(__name__)
FORKED = (
    "this process was forked, and torch's threads do not survive that: the run uses one thread. For more, start "
    "processes by spawn."
)
_forked: list[int] = []
"""This process, if it was forked from one that had imported this module."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forked.append(os.getpid()))


def placement_for(settings: RunSettings) -> Placement:
    """The device and precision of the clients' arithmetic; of several devices the first, which holds the results."""
    devices, precision = [_device(name) for name in settings.device.split(",")], settings.precision
    device = devices[0]
    require(
        not (device == "mps" and precision == "float64"),
        "MPS does not support float64: use another precision, or device='cpu'.",
    )
    dtype = torch.float64 if precision == "float64" else torch.float32
    return Placement(device, dtype, mixed=precision == "bfloat16", tf32=precision == "tf32")


def _device(name: str) -> str:
    available = available_devices()
    if name == "auto":
        return available[-1]
    kind = name.partition(":")[0]
    require(kind in available, f"Device {name!r} is not available here: this machine has {', '.join(available)}.")
    number, gpus = int(name.partition(":")[2] or 0), torch.cuda.device_count() if kind == "cuda" else 1
    exists = kind != "cuda" or number < gpus
    require(exists, f"Device {name!r} is not available here: this machine has {gpus} GPU(s), starting at cuda:0.")
    return name


def available_devices() -> list[str]:
    """The devices of this machine, the fastest last."""
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return ["cpu", *mps, *(["cuda"] if torch.cuda.is_available() else [])]


@contextmanager
def threads_set(threads: int | None) -> Iterator[None]:
    """Set the number of torch's CPU threads, and restore it afterwards.

    It is one in a forked process, where an operation on several would wait forever for those of the parent.
    """
    before = torch.get_num_threads()
    wanted = before if threads is None else threads
    if _forked and wanted > 1:
        log.warning(FORKED)
        wanted = 1
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_engine(data: FederatedDataset, settings: RunSettings, placement: Placement) -> Engine:
    """An engine in this process that holds the data; it has no objective until `Engine.open`."""
    nothing = NullObjective(placement.device, placement.dtype)
    if settings.engine == "loop":
        none = settings.kernel is None
        require(none, "The loop engine has no kernels: leave out kernel, or use engine='vectorised'.")
        return LoopEngine(nothing, data, placement)
    budget = None if settings.memory == "auto" else settings.memory
    if "," in settings.device:
        from corymb.engines.sharded import ShardedEngine  # most runs have one device, and need not load it

        places = [replace(placement, device=name) for name in settings.device.split(",")]
        return ShardedEngine(nothing, data, places, memory=budget, kernel=settings.kernel)
    return VectorisedEngine(nothing, data, placement, memory=budget, kernel=settings.kernel)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run, on which clients and how. The data themselves stay behind the engine."""

    algorithm: Algorithm
    engine: Engine
    """The clients with their data; its own objective is not used."""
    model: Model | None
    settings: RunSettings
    placement: Placement
    data_name: str
    data_options: DataOptions = DataOptions()  # noqa: RUF009 - frozen
    truth: Tensor | None = None
    """The true clusters and parameters, known in simulations only."""
    true_parameters: Params | None = None
    max_seconds: float | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """User-defined metrics, by name."""
    standard: Standard | None = None
    """The standardisation of a run that is continued; None computes it."""
    live_clock: int | None = None
    """The clock of a run that continues with its live clients: they keep its objective and their memory as of then."""
    own: bool = False
    """Whether the engine was made for this run alone."""
    run: str = ""
    """The id of a run that is resumed, by which remote hosts identify its session."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """Additional entries for `record` in the run's config."""

    def __post_init__(self) -> None:
        limit = self.max_seconds
        known = limit is None or (isinstance(limit, (int, float)) and limit >= 0)
        require(known, f"max_seconds must be a non-negative number, got {limit!r}.")
        least, clients = self.settings.min_replies, len(self.engine.names)
        require(
            least <= clients, f"min_replies={least} exceeds the number of clients ({clients}): no round could count."
        )

    def close(self) -> None:
        """Close the engine after the run, if it was made for this run alone."""
        if self.own and hasattr(self.engine, "close"):
            self.engine.close()

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> Engine:
        """The same clients and examples, with an objective and empty client memory.

        Remote hosts that know the session by its name resume it with their clients' memory.
        """
        if self.live_clock is not None:
            return self.engine
        opened = self.engine.open(placed(objective, self.placement), journal, session)
        faults = self.settings.faults
        return opened if faults is None else inject(opened, read_faults(faults), self.settings.seed)

    def federate(self, engine: Engine) -> Federation:
        """A federation of the clients behind an engine."""
        fed = Federation(engine, min_replies=self.settings.min_replies, guard=self.settings.guard)
        if self.live_clock is not None:
            fed.rewind(self.live_clock)  # without a clock, the federation would clear its clients' memory
        return fed


def config_of(plan: Plan, engine: Engine, *, model: str, seed: int, fingerprint: str) -> dict[str, Any]:
    """The settings of a run, in a form that can be run again, with further facts under `record`."""
    used = engine.describe()
    # If a setting leaves the choice to the engine, its choice is recorded, since resuming has to follow it. The kernel
    # is not such a choice: it follows from the model, and is recorded as a fact under `record`.
    chosen = {name: used[name] for name in names(RunSettings) if name in used and name not in ("engine", "kernel")}
    return {
        "data": plan.data_name,
        "algorithm": name_of(plan.algorithm),
        "model": model,
        **to_dict(plan.settings),
        **chosen,
        "seed": seed,
        **plan.data_options.given(),
        **to_dict(plan.algorithm),
        "record": {
            **{name: used[name] for name in ("engine", "kernel", "chunk") if name in used},
            "learns": engine.objective.describe(),
            "served": served_by(plan.algorithm),
            "data": fingerprint,
            "clients": len(engine.names),
            "versions": versions(),
            **plan.record,
        },
    }


def rounds_in(settings: Mapping[str, Any]) -> int | None:
    """The rounds of the last stage of an algorithm, from its settings or a run's config; None if it has none."""
    if "rounds" in settings:
        rounds = settings["rounds"]
        whole = isinstance(rounds, int) and not isinstance(rounds, bool)
        require(whole, f"rounds must be an integer, got {rounds!r}.")
        return int(rounds)
    return next((rounds_in(settings[name]) for name in LAST_STAGES if isinstance(settings.get(name), Mapping)), None)


def with_rounds(settings: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """The settings of an algorithm, or a run's config, with the number of rounds that `rounds_in` finds replaced."""
    if "rounds" in settings:
        return {**settings, "rounds": rounds}
    name = next(name for name in LAST_STAGES if isinstance(settings.get(name), Mapping))
    return {**settings, name: with_rounds(settings[name], rounds)}


def check_longer(algorithm: Algorithm, before: int, now: int, end: Snapshot | None, *, early: bool = False) -> None:
    """Refuse to extend a run whose rounds are followed by other stages: more rounds would make it a different run.

    `end` is the last snapshot of a finished run. `early` means that it took fewer rounds than planned, because it
    converged or an earlier stage was shorter.
    """
    shorter = with_fewer(algorithm, before)
    one_for_one = planned_rounds(algorithm) - planned_rounds(shorter) == now - before
    ends_there = end is None or ((early or end.round == before) and _rounds_come_last(algorithm))
    require(
        one_for_one and ends_there,
        f"This run cannot be extended from {before} to {now} rounds: other stages follow them (restarts, refinements), "
        "so more rounds would make a different run. Start a new one.",
    )


def other_stages(algorithm: Algorithm, rounds: object) -> str:
    """A note for the user if a run may take more than the `rounds` requested; else empty.

    >>> from corymb.algorithms import IFCA
    >>> other_stages(IFCA(k=2, rounds=5), 5)
    ''
    >>> other_stages(IFCA(k=2, rounds=5, restarts=3), 5)
    'rounds = 5 applies to one stage of the algorithm: all stages together may take up to 18'
    """
    most = planned_rounds(algorithm)
    if not isinstance(rounds, int) or most <= rounds:
        return ""
    return f"rounds = {rounds} applies to one stage of the algorithm: all stages together may take up to {most}"


def _rounds_come_last(algorithm: Any) -> bool:
    """Whether no stage follows the rounds that `rounds_in` finds; an algorithm may declare otherwise."""
    name = next((name for name in LAST_STAGES if hasattr(algorithm, name)), "")
    if hasattr(algorithm, "rounds") or not name:
        return bool(getattr(algorithm, "rounds_come_last", True))
    return _rounds_come_last(getattr(algorithm, name))


def with_fewer(algorithm: Any, rounds: int) -> Any:
    """The algorithm with the number of rounds that `rounds_in` finds replaced."""
    names = {field.name for field in fields(algorithm)}
    if "rounds" in names:
        return replace(algorithm, rounds=rounds)
    name = next(name for name in LAST_STAGES if name in names)
    return replace(algorithm, **{name: with_fewer(getattr(algorithm, name), rounds)})


def whitens(algorithm: Any) -> bool:
    """Whether an algorithm uses whitened descent in any of its settings."""
    if isinstance(algorithm, Descent):
        return algorithm.whiten
    return is_dataclass(algorithm) and any(whitens(getattr(algorithm, field.name)) for field in fields(algorithm))


def placed(objective: Objective, placement: Placement) -> Objective:
    """An objective on the run's device and in its precision."""
    if isinstance(objective, PartialObjective) and not objective.movable and placement != Placement():
        raise InvalidInput(f"{objective.name} has no to(device, dtype): it only runs on device='cpu' with float32.")
    return objective.to(placement.device, placement.dtype)


def placed_snapshot(snapshot: Snapshot, placement: Placement) -> Snapshot:
    """A snapshot with its models on the run's device and in its precision; labels and counts stay on the CPU."""

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(placement.device, placement.dtype)

    floats = (torch.float32, torch.float64) if placement.dtype == torch.float64 else (torch.float32,)
    return replace(
        snapshot,
        models={name: move(value) for name, value in snapshot.models.items()},
        shares=None if snapshot.shares is None else move(snapshot.shares),
        carry={name: move(v) if v.dtype in floats else v for name, v in snapshot.carry.items()},
    )
