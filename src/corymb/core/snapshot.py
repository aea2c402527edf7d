"""What a run is at a moment: all that going on from there needs, client memory aside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from corymb.core.client import ClientFn, Served
from corymb.core.federation import Cohort, Federation
from corymb.keys import fold
from corymb.trees import Params, count, stack


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A run after a communication round. `fingerprint`, `seed` and `clock` are stamped by the driver."""

    models: Params
    """k rows."""
    labels: Tensor
    """Each client's cluster, n; -1 for a client that has none."""
    round: int = 0
    """Rounds done in this stage."""
    stage: str = ""
    shares: Tensor | None = None
    """n k, where an algorithm assigns softly."""
    carry: Mapping[str, Tensor] = field(default_factory=dict)
    """Whatever else the algorithm needs to go on."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What people may want to know of this round: plain numbers, strings and lists."""
    fingerprint: str = ""
    seed: int = 0
    clock: int = 0

    @staticmethod
    def fresh(fed: Federation, k: int) -> Snapshot:
        """k new models, nobody assigned."""
        key = fed.key("models")
        models = stack([fed.objective.init(fold(key, j)) for j in range(k)])
        return Snapshot(models=models, labels=torch.full((len(fed.names),), -1), seed=fed.seed, clock=fed.clock)

    @property
    def k(self) -> int:
        """How many models there are."""
        return count(self.models)

    def next(self, *, labels: tuple[Cohort, Tensor | None] | Tensor | None = None, **changes: Any) -> Snapshot:
        """The snapshot after one more round; `labels` may name only the clients that were asked."""
        if isinstance(labels, tuple):
            cohort, rows = labels
            if rows is None:
                raise ValueError("the replies carry no labels: return Share(..., label=...) from the client function")
            new = self.labels.clone()
            new[cohort.ids] = rows.to(new)
            labels = new
        if labels is not None:
            changes["labels"] = labels
        return replace(self, round=self.round + 1, **changes)

    def handover(self) -> Snapshot:
        """The start of another algorithm: models, labels, seed and clock stay, the rest begins anew."""
        return replace(self, fingerprint="", stage="", round=0, carry={}, notes={})


class Algorithm(Protocol):
    """Settings with a loop of their own: yields a snapshot after every communication round, in every stage."""

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Go on from `start`, or begin."""
        ...

    @property
    def serve(self) -> ClientFn[..., Params | Served]:
        """The client function that says what a client is served: (client, models, label, share) -> a model, or several.

        `share` is the client's row of `Snapshot.shares`, None where an algorithm does not assign softly.
        """
        ...

    @property
    def planned_rounds(self) -> int:
        """How many snapshots a whole run yields at most."""
        ...


Run = Callable[[Federation, Snapshot | None], Iterator[Snapshot]]


def stages(fed: Federation, start: Snapshot | None, /, **runs: Run) -> Iterator[Snapshot]:
    """One algorithm after another, each started from the last one's models; `stage` says which one is at work.

    A snapshot's stage is a path: `name` or `name/stage within`.
    """
    names = list(runs)
    current, _, within = start.stage.partition("/") if start else (names[0], "", "")
    at = None if start is None else replace(start, stage=within)
    for place in range(names.index(current) if current in names else 0, len(names)):
        name = names[place]
        last = at
        for inner in runs[name](fed, at):
            last = inner
            yield replace(inner, stage=f"{name}/{inner.stage}" if inner.stage else name)
        at = None if last is None else last.handover()


def best_of(
    restarts: int, once: Run, score: Callable[[Federation, Snapshot], float], fed: Federation, start: Snapshot | None
) -> Iterator[Snapshot]:
    """Independent runs one after another; after each a round that scores it, and the lowest score so far is kept.

    The last snapshot holds the best run's models and labels; its notes name every run's score.
    """
    if restarts == 1:
        yield from once(fed, start)
        return
    place, _, within = start.stage.partition("/") if start else ("", "", "")
    kind, _, number = place.partition("-")
    first = int(number or 0) + (kind == "scored")
    kept = start.carry if start else {}
    at = replace(start, stage=within, carry=_without(start.carry)) if start and kind == "restart" else None
    if start is not None and not kind:  # handed over: the first run starts there, the others afresh
        at = start
    for run in range(first, restarts):
        for inner in once(fed, at):
            at = inner
            stage = f"restart-{run}/{at.stage}" if at.stage else f"restart-{run}"
            yield replace(at, stage=stage, carry={**at.carry, **_best(kept)})
        if at is None:
            raise ValueError("a run of no rounds cannot be scored")
        before, loss = _losses(kept), score(fed, at)
        losses = [*before, loss]
        if not before or loss < min(before):
            kept = {f"best/models/{name}": value for name, value in at.models.items()} | {"best/labels": at.labels}
        kept = {**_best(kept), "best/losses": torch.tensor(losses, dtype=torch.float64)}
        models = {name.removeprefix("best/models/"): kept[name] for name in kept if name.startswith("best/models/")}
        notes = {**at.notes, "restart_losses": losses, "best_restart": losses.index(min(losses))}
        yield replace(at, stage=f"scored-{run}", models=models, labels=kept["best/labels"], carry=kept, notes=notes)
        at = None


def _best(carry: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in carry.items() if name.startswith("best/")}


def _without(carry: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in carry.items() if not name.startswith("best/")}


def _losses(carry: Mapping[str, Tensor]) -> list[float]:
    return carry["best/losses"].tolist() if "best/losses" in carry else []
