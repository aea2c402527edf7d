"""The state of a run after a round: everything needed to continue from there, except client memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import FunctionType, ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from corymb.core.client import ClientFn, Served
from corymb.core.federation import Cohort, Federation
from corymb.keys import fold
from corymb.trees import Params, count, stack

ACCOUNT = "privacy account"
"""The entry of `carry` that every stage hands over: what private rounds have released about the clients so far."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A run after a communication round. `fingerprint`, `units`, `seed` and `clock` are stamped by the driver."""

    models: Params
    """k rows."""
    labels: Tensor
    """Each client's cluster, n; -1 for a client that has none."""
    round: int = 0
    """Rounds done in this stage."""
    stage: str = ""
    shares: Tensor | None = None
    """n k, if an algorithm assigns softly."""
    carry: Mapping[str, Tensor] = field(default_factory=dict)
    """Whatever else the algorithm needs to continue."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Information about this round for users: plain numbers, strings and lists."""
    fingerprint: str = ""
    units: str = ""
    """The fingerprint of the data that features are standardised by, which gives the models their units; empty if
    unknown."""
    seed: int = 0
    clock: int = 0

    @staticmethod
    def fresh(fed: Federation, k: int) -> Snapshot:
        """k new models, with no client assigned."""
        key = fed.key("models")
        models = stack([fed.objective.init(fold(key, j)) for j in range(k)])
        return Snapshot(models=models, labels=torch.full((len(fed.names),), -1), seed=fed.seed, clock=fed.clock)

    @property
    def k(self) -> int:
        """The number of models."""
        return count(self.models)

    @property
    def account(self) -> dict[str, Tensor]:
        """The entry of `carry` about the privacy spent so far, if any: it stays spent, whatever algorithm continues."""
        return {ACCOUNT: self.carry[ACCOUNT]} if ACCOUNT in self.carry else {}

    def next(self, *, labels: tuple[Cohort, Tensor | None] | Tensor | None = None, **changes: Any) -> Snapshot:
        """The snapshot after one more round; `labels` may name only the clients that were asked."""
        if isinstance(labels, tuple):
            cohort, rows = labels
            if rows is None:
                raise ValueError("the replies carry no labels: return Share(..., label=...) from the client function")
            labels = cohort.put(self.labels, rows)
        if labels is not None:
            changes["labels"] = labels
        return replace(self, round=self.round + 1, **changes)

    def handover(self) -> Snapshot:
        """The start of another algorithm: models and their units, labels, seed and clock stay, the rest is reset.

        The privacy that was spent on the models stays too.
        """
        return replace(self, fingerprint="", stage="", round=0, carry=self.account, notes={})


class Algorithm(Protocol):
    """Settings with a `run` loop that yields a snapshot after every communication round, in every stage.

    An algorithm whose runs are not `rounds` snapshots long also has a property `planned_rounds`, and `ends_early` if
    that is only an upper bound (`last_stage` then names the stage of its `rounds`). If its client functions write
    client memory, it has `keeps_memory = True`; if other stages follow its `rounds`, `rounds_come_last = False`.
    """

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Continue from `start`, or begin a new run if it is None."""
        ...

    @property
    def serve(self) -> ClientFn[..., Params | Served]:
        """The client function that decides what to serve: (client, models, label, share) -> a model, or several.

        `share` is the client's row of `Snapshot.shares`, None if an algorithm does not assign softly.
        """
        ...


def planned_rounds(algorithm: Algorithm) -> int:
    """The largest number of snapshots of a whole run: its `rounds`, unless the algorithm has `planned_rounds`."""
    own: int | None = getattr(algorithm, "planned_rounds", None)
    return algorithm.rounds if own is None else own  # type: ignore[attr-defined]


def ends_early(algorithm: Algorithm) -> bool:
    """Whether a run may end before its planned rounds, as a search does when it has found its result."""
    return bool(getattr(algorithm, "ends_early", False))


def packages_of(algorithm: Algorithm | type[Algorithm]) -> tuple[str, ...]:
    """The packages whose client functions an algorithm may call, for hosts that run only functions of known packages.

    These are its own package, those of the algorithms that it wraps (`Then`, `Restarts`), and those of the client
    functions that its modules import, or that are in the same module as a function or class that they import.
    """
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    homes = [base.__module__ for base in kind.__mro__ if base.__module__ not in sys.stdlib_module_names]
    modules = [sys.modules[home] for home in homes if home in sys.modules]
    homes += [fn.body.__module__ for module in modules for fn in _client_functions(module)]
    found = dict.fromkeys(home.partition(".")[0] for home in homes)
    inside: Any = () if isinstance(algorithm, type) or not is_dataclass(kind) else fields(kind)
    for value in (getattr(algorithm, one.name) for one in inside):
        found |= dict.fromkeys(packages_of(value) if hasattr(value, "run") else ())
    return tuple(found)


def _client_functions(module: ModuleType) -> Iterator[ClientFn[..., Any]]:
    """The client functions in a module, in the modules that it imports, and in those that it imports names from."""
    values = tuple(vars(module).values())
    named = {value.__module__ for value in values if isinstance(value, (FunctionType, type))}
    modules = [value for value in values if isinstance(value, ModuleType)]
    modules += [sys.modules[name] for name in sorted(named - {module.__name__}) if name in sys.modules]
    for value in (*values, *(one for imported in modules for one in tuple(vars(imported).values()))):
        if isinstance(value, ClientFn):
            yield value
