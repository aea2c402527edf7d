"""Laws of sequences of runs: restarts, handover and stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from corymb.algorithms import IFCA, FedAvg, Restarts
from corymb.algorithms.parts.then import stages
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.local import Descent
from corymb.settings import InvalidInput
from corymb.testing.assertions import assert_same_bits, expect_error, farthest, same_bits
from corymb.testing.cases import CASES, LINE, Case, Learns, run
from corymb.testing.engines import AnyEngine
from corymb.testing.keeper import Keeper
from corymb.testing.laws.algorithms import whole

RESTARTS = CASES["IFCA, restarts"]
ROUGH = Descent(lr=0.1, epochs=2, batch=4, momentum=0.5)


def check_one_cluster_is_fedavg(engine: AnyEngine, learns: Learns) -> None:
    """IFCA with one cluster is FedAvg, bit for bit; the noted losses agree for full-batch steps."""
    local, participants = (LINE, None) if learns == "line" else (ROUGH, 4)
    one, other = (
        list(run(case, case.federation(engine), seed=5))
        for case in (
            Case(IFCA(k=1, rounds=3, local=local, participants=participants), learns),
            Case(FedAvg(rounds=3, local=local, participants=participants), learns),
        )
    )
    for ifca, fedavg in zip(one, other, strict=True):
        noted = [{} if local.batch else at.notes for at in (ifca, fedavg)]
        ours, theirs = (
            replace(at, fingerprint="", notes=notes) for at, notes in zip((ifca, fedavg), noted, strict=True)
        )
        assert same_bits(ours, theirs)


# ---- restarts


def check_restarts(engine: AnyEngine) -> None:
    """Restarts are independent runs, and the best run's models are kept."""
    snapshots = whole(RESTARTS, engine)
    assert [at.stage for at in snapshots] == [
        *["restart-0"] * 2,
        "scored-0",
        *["restart-1"] * 2,
        "scored-1",
        *["restart-2"] * 2,
        "scored-2",
    ]
    assert [at.round for at in snapshots if at.stage.startswith("restart")] == [1, 2] * 3
    last = snapshots[-1]
    losses, best = last.notes["restart_losses"], last.notes["best_restart"]
    assert len(losses) == 3
    assert losses[best] == min(losses)
    assert len(set(losses)) == 3  # different starts
    winner = snapshots[3 * best + 1]
    assert farthest(last.models, winner.models) == 0
    assert torch.equal(last.labels, winner.labels)
    alone = next(run(_once(RESTARTS), RESTARTS.federation(engine), seed=1))
    assert farthest(alone.models, snapshots[0].models) == 0


def _once(case: Case) -> Case:
    return case._replace(algorithm=replace(case.algorithm, restarts=1))  # type: ignore[type-var]


@dataclass(frozen=True, kw_only=True)
class NoWork:
    """A run without any work, with a score that depends on the clock."""

    losses: tuple[float, ...]
    rounds: int = 1
    serve = IFCA.serve

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        at = start or Snapshot.fresh(fed, 1)
        if at.round == 0:
            yield at.next()

    def score(self, fed: Federation, at: Snapshot) -> float:
        """The loss of the restart that the clock is at."""
        return self.losses[(fed.clock - 1) // 2]


def check_equal_restarts(engine: AnyEngine, losses: tuple[float, ...], best: int) -> None:
    """The first of equally good restarts is kept and named, and any snapshot can be resumed."""
    restarts = Restarts(inner=NoWork(losses=losses), times=len(losses))
    fed = CASES["IFCA"].federation(engine)
    got = list(drive(restarts, fed))
    assert len(got) == 2 * len(losses)
    assert got[-1].notes["restart_losses"] == list(losses)
    assert got[-1].notes["best_restart"] == best
    assert farthest(got[-1].models, got[2 * best].models) == 0
    for place in range(len(got)):
        assert_same_bits(list(drive(restarts, fed, got[place])), got[place + 1 :])


# ---- start: resume, warm start, handover


def check_snapshot_of_another_run(engine: AnyEngine) -> None:
    """A snapshot of another run is refused; one of a run that differs only in its rounds is not."""
    case = CASES["IFCA"]
    at = whole(case, engine)[0]
    fed = case.federation(engine)
    for other, about in (
        (IFCA(k=3, rounds=3, local=LINE), "tiny"),
        (IFCA(k=2, rounds=3, local=Descent(lr=0.06, steps=2)), "tiny"),
        (FedAvg(rounds=3, local=LINE), "tiny"),
        (case.algorithm, "other data"),
    ):
        with expect_error(InvalidInput, "belongs to another run"):
            next(drive(other, fed, at, about=about))
    longer = list(drive(IFCA(k=2, rounds=5, local=LINE), fed, at, about="tiny"))  # more rounds are allowed
    assert [snapshot.round for snapshot in longer] == [2, 3, 4, 5]
    assert same_bits(replace(longer[0], fingerprint=""), replace(whole(case, engine)[1], fingerprint=""))


def check_handover(engine: AnyEngine) -> None:
    """A handover starts another algorithm from the models, at the current clock."""
    at = whole(CASES["IFCA, gradients"], engine)[1].handover()
    assert (at.round, at.stage, dict(at.carry), dict(at.notes), at.fingerprint) == (0, "", {}, {}, "")
    assert (at.seed, at.clock) == (1, 2)
    case = Case(IFCA(k=3, rounds=2, local=LINE))
    fed = case.federation(engine)
    got = list(run(case, fed, at))
    assert [(s.round, s.clock, s.seed) for s in got] == [(1, 3, 1), (2, 4, 1)]
    fed.set_clock(seed=1, clock=2)
    by_hand = next(iter(case.algorithm.run(fed, at)))
    assert farthest(got[0].models, by_hand.models) == 0
    rest = list(run(case, case.federation(engine), got[0]))
    assert same_bits(rest[0], got[1])


def check_handover_to_restarts(engine: AnyEngine) -> None:
    """A handover to restarts is the start of the first of them."""
    at = whole(CASES["IFCA"], engine)[-1].handover()
    got = list(run(RESTARTS, RESTARTS.federation(engine), at))
    first = next(run(_once(RESTARTS), RESTARTS.federation(engine), at))
    assert farthest(got[0].models, first.models) == 0
    assert len(got) == 9


@dataclass(frozen=True, kw_only=True)
class Chain:
    """FedAvg, then IFCA with restarts from its model and its opposite, then the keeper."""

    serve = IFCA.serve

    @property
    def planned_rounds(self) -> int:
        """2 of FedAvg, 2 restarts of 2 rounds and a score each, 2 of the keeper."""
        return 10

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        return stages(fed, start, average=FedAvg(rounds=2, local=LINE).run, choose=self._choose, keep=self._keep)

    def _choose(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        assert start is not None
        if start.k == 1:
            start = replace(start, models={n: torch.cat([p, -p]) for n, p in start.models.items()})
        return IFCA(k=2, rounds=2, local=LINE, restarts=2).run(fed, start)

    def _keep(self, fed: Federation, start: Snapshot | None) -> Iterator[Snapshot]:
        return Keeper(rounds=2).run(fed, start)


def check_stages(engine: AnyEngine) -> None:
    """Stages follow one another and can be resumed anywhere."""
    fed = CASES["IFCA"].federation(engine)
    got = list(drive(Chain(), fed, seed=1))
    assert [at.stage for at in got] == [
        *["average"] * 2,
        *["choose/restart-0"] * 2,
        "choose/scored-0",
        *["choose/restart-1"] * 2,
        "choose/scored-1",
        *["keep"] * 2,
    ]
    assert [at.round for at in got] == [1, 2, 1, 2, 2, 1, 2, 2, 1, 2]
    for place in reversed(range(len(got))):
        assert_same_bits(list(drive(Chain(), fed, got[place])), got[place + 1 :])
