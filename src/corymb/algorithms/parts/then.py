"""One algorithm after another: the end of the first is the start of the second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from corymb.algorithms.parts.scoring import score_of
from corymb.core.client import ClientFn, Served
from corymb.core.federation import Federation
from corymb.core.snapshot import Algorithm, Snapshot, ends_early, planned_rounds
from corymb.settings import check_types, require
from corymb.trees import Params

Run = Callable[[Federation, Snapshot | None], Iterator[Snapshot]]


def stages(fed: Federation, start: Snapshot | None, /, **runs: Run) -> Iterator[Snapshot]:
    """Run several algorithms in a row, each started from the last one's models.

    A snapshot's `stage` is a path: `name`, or `name/stage within`.
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


@dataclass(frozen=True, kw_only=True)
class Then:
    """Two algorithms in a row. The second starts from the first one's models and labels.

    A second algorithm with `k=None` (`IFCA`, `FedX`) takes as many clusters as the first one ended with.
    """

    first: Algorithm
    second: Algorithm
    names: tuple[str, str] = ("first", "second")
    """The names of the two stages in snapshots."""

    def __post_init__(self) -> None:
        check_types(self)
        wanted = "names must be two different names without a slash"
        good = len(set(self.names)) == 2 and all(name and "/" not in name for name in self.names)
        require(good, f"{wanted}, got {self.names}.")

    @property
    def serve(self) -> ClientFn[..., Params | Served]:
        """The second algorithm's."""
        return self.second.serve

    @property
    def keeps_memory(self) -> bool:
        """Whether either of them does."""
        return any(keeps_memory(algorithm) for algorithm in (self.first, self.second))

    @property
    def ends_early(self) -> bool:
        """Whether either of them may."""
        return ends_early(self.first) or ends_early(self.second)

    @property
    def planned_rounds(self) -> int:
        """The planned rounds of both."""
        return planned_rounds(self.first) + planned_rounds(self.second)

    def score(self, fed: Federation, at: Snapshot) -> float:
        """The second algorithm's."""
        return score_of(self.second, fed, at)

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """The first algorithm, then the second."""
        first, second = self.names
        return stages(fed, start, **{first: self.first.run, second: self.second.run})


def keeps_memory(algorithm: Algorithm) -> bool:
    """Whether the algorithm's client functions write client memory."""
    return bool(getattr(algorithm, "keeps_memory", False))
