"""Laws that every algorithm keeps on every engine; see `cases.py` for the table of algorithms."""

import copy
import functools
import logging
import math
from dataclasses import dataclass, replace

import pytest
import torch

from corymb import algorithms
from corymb.algorithms import IFCA, FedAvg, Restarts
from corymb.algorithms.parts.then import stages
from corymb.core.driver import drive
from corymb.core.federation import Federation, Ledger, TooFewReplies
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.evaluate import evaluate
from corymb.local import Descent
from corymb.settings import InvalidInput
from tests.contracts.cases import CASES, LINE, TRUTH, Case, run, same_bits
from tests.contracts.keeper import Fragile, Keeper
from tests.tiny import DOUBLE, ENGINES, farthest

every_case = pytest.mark.parametrize("name", CASES)
every_engine = pytest.mark.parametrize("engine", ENGINES)
CLOSE = 1e-9


@functools.cache
def run_whole(name: str, engine: str) -> tuple[list[Snapshot], Ledger]:
    """The uninterrupted run; no snapshot is changed after it was yielded."""
    fed = CASES[name].federation(engine)
    kept = [(at, copy.deepcopy(at)) for at in run(CASES[name], fed, seed=1)]
    assert all(same_bits(snapshot, then) for snapshot, then in kept)
    return [snapshot for snapshot, _ in kept], fed.ledger


def whole(name: str, engine: str) -> list[Snapshot]:
    return run_whole(name, engine)[0]


def test_every_algorithm_is_in_the_table():
    known = {type(case.algorithm) for case in CASES.values()}
    public = {getattr(algorithms, name) for name in algorithms.__all__}
    assert {kind for kind in public if hasattr(kind, "run")} <= known


@every_case
@every_engine
def test_snapshots_are_in_order(name, engine):
    case, snapshots = CASES[name], whole(name, engine)
    assert [at.clock for at in snapshots] == list(range(1, len(snapshots) + 1))
    assert len(snapshots) <= planned_rounds(case.algorithm)
    for at in snapshots:
        assert at.seed == 1
        assert at.labels.shape == (len(TRUTH),)
        assert at.labels.dtype == torch.int64
        assert int(at.labels.min()) >= -1
        assert int(at.labels.max()) < at.k
        assert all(torch.isfinite(value).all() for value in at.models.values())


@every_case
def test_the_plan_is_kept(name):
    assert len(whole(name, "vectorised")) == planned_rounds(CASES[name].algorithm)


@every_case
def test_every_engine_gives_the_same_run(name):
    loop, many = whole(name, "loop"), whole(name, "vectorised")
    assert len(loop) == len(many)
    for one, other in zip(loop, many, strict=True):
        assert torch.equal(one.labels, other.labels)
        assert farthest(other.models, one.models) < CLOSE
        assert farthest(dict(other.carry), dict(one.carry)) < CLOSE
        assert (one.round, one.stage, one.clock) == (other.round, other.stage, other.clock)


@every_case
def test_every_engine_sends_the_same_bytes(name):
    ledgers = [vars(run_whole(name, engine)[1]) for engine in ENGINES]
    assert ledgers[0] == ledgers[1]
    assert ledgers[0]["bytes_up"] > 0
    assert ledgers[0]["rounds"] == planned_rounds(CASES[name].algorithm)
    assert ledgers[0]["rejected"] == []


@every_case
@every_engine
def test_the_same_seed_gives_the_same_bits_however_often_one_looks(name, engine):
    """Another engine, with evaluations between the rounds."""
    case = CASES[name]
    fed = case.federation(engine)
    got = []
    for at in run(case, fed, seed=1):
        got.append(at)
        before = copy.deepcopy(vars(fed.ledger))
        for _ in range(at.clock % 3):
            metrics = evaluate(fed, case.algorithm, at, truth=torch.tensor(TRUTH))
            assert all(math.isfinite(value) for value in metrics.values())
        view = fed.evaluation()
        view.clients.sample(3)
        view.draw("something")
        assert vars(fed.ledger) == before
    assert all(same_bits(one, other) for one, other in zip(got, whole(name, engine), strict=True))


@pytest.mark.parametrize("name", ["IFCA, restarts", *(name for name in CASES if CASES[name].remembers)])
@every_engine
def test_an_engine_that_has_run_before_gives_the_same_bits(name, engine):
    fed = CASES[name].federation(engine)
    for _ in range(2):
        again = list(run(CASES[name], fed, seed=1))
        assert all(same_bits(got, want) for got, want in zip(again, whole(name, engine), strict=True))


@pytest.mark.parametrize("name", ["FedAvg", "IFCA, gradients", "keeper", "Alone"])
def test_another_seed_is_another_run(name):
    got = list(run(CASES[name], CASES[name].federation("loop"), seed=2))
    for one, other in zip(got, whole(name, "loop"), strict=True):
        assert not same_bits(replace(one, seed=1), other)


@every_case
@every_engine
def test_continuing_from_any_snapshot_is_the_uninterrupted_run(name, engine):
    case, snapshots = CASES[name], whole(name, engine)
    fed = case.federation(engine)
    if case.remembers:
        list(run(case, fed, seed=1))  # memory of the whole run, to be rewound
    for place in reversed(range(len(snapshots))):
        fed = fed if case.remembers else case.federation(engine)
        rest = list(run(case, fed, snapshots[place], seed=99))  # the seed is the snapshot's
        assert len(rest) == len(snapshots) - place - 1
        assert all(same_bits(got, want) for got, want in zip(rest, snapshots[place + 1 :], strict=True))


@pytest.mark.parametrize("name", ["IFCA, restarts", *(name for name in CASES if CASES[name].remembers)])
@every_engine
def test_stopping_in_the_middle_of_a_round_and_going_on_changes_nothing(name, engine):
    """A run is left after a snapshot, and the same engine goes on from the one before it."""
    case, snapshots = CASES[name], whole(name, engine)
    fed = case.federation(engine)
    started = run(case, fed, seed=1)
    first = [next(started) for _ in range(2)]
    started.close()
    rest = list(run(case, fed, first[0]))
    assert all(same_bits(got, want) for got, want in zip(rest, snapshots[1:], strict=True))


@every_case
def test_the_order_in_which_clients_are_given_changes_nothing(name):
    """Clients stand in the order of their names on every engine."""
    case, order, engine = CASES[name], [4, 2, 6, 0, 5, 1, 3], "vectorised"
    fed = Federation(ENGINES[engine](case.objective(), case.data().at(order), DOUBLE))
    for got, want in zip(run(case, fed, seed=1), whole(name, engine), strict=True):
        assert torch.equal(got.labels, want.labels)
        assert farthest(got.models, want.models) == 0


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].learns == "classes" or CASES[name].remembers])
def test_the_size_of_chunks_changes_nothing_beyond_rounding(name):
    case = CASES[name]
    fed = case.federation("vectorised")
    fed.__dict__["_engine"].budget = 1
    for got, want in zip(run(case, fed, seed=1), whole(name, "vectorised"), strict=True):
        assert torch.equal(got.labels, want.labels)
        assert farthest(got.models, want.models) < CLOSE


# ---- IFCA and FedAvg


@every_engine
@pytest.mark.parametrize(
    ("learns", "local", "participants"),
    [("line", LINE, None), ("classes", Descent(lr=0.1, epochs=2, batch=4, momentum=0.5), 4)],
)
def test_ifca_with_one_cluster_is_fedavg(engine, learns, local, participants):
    one, other = (
        list(run(case, case.federation(engine), seed=5))
        for case in (
            Case(IFCA(k=1, rounds=3, local=local, participants=participants), learns),
            Case(FedAvg(rounds=3, local=local, participants=participants), learns),
        )
    )
    for ifca, fedavg in zip(one, other, strict=True):
        assert same_bits(replace(ifca, fingerprint=""), replace(fedavg, fingerprint=""))


@every_engine
def test_restarts_are_independent_and_the_best_is_kept(engine):
    case = CASES["IFCA, restarts"]
    snapshots = whole("IFCA, restarts", engine)
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
    assert len(set(losses)) == 3  # other starts
    winner = snapshots[3 * best + 1]
    assert farthest(last.models, winner.models) == 0
    assert torch.equal(last.labels, winner.labels)
    alone = next(run(Case(replace(case.algorithm, restarts=1)), case.federation(engine), seed=1))
    assert farthest(alone.models, snapshots[0].models) == 0


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """A run of no work at all, with a score that depends on when it was asked."""

    losses: tuple[float, ...]
    rounds: int = 1
    serve = IFCA.serve

    def run(self, fed, start=None):
        at = start or Snapshot.fresh(fed, 1)
        if at.round == 0:
            yield at.next()

    def score(self, fed, at):
        return self.losses[(fed.clock - 1) // 2]


@pytest.mark.parametrize(("losses", "best"), [((1.0, 1.0, 1.0), 0), ((3.0, 2.0, 2.0), 1), ((3.0, 4.0, 2.0), 2)])
def test_of_equal_restarts_the_first_is_kept_and_named(losses, best):
    restarts = Restarts(inner=Scripted(losses=losses), times=3)
    fed = CASES["IFCA"].federation("loop")
    got = list(drive(restarts, fed))
    assert len(got) == 6
    assert got[-1].notes["restart_losses"] == list(losses)
    assert got[-1].notes["best_restart"] == best
    assert farthest(got[-1].models, got[2 * best].models) == 0
    for place in range(6):
        rest = list(drive(restarts, fed, got[place]))
        assert all(same_bits(a, b) for a, b in zip(rest, got[place + 1 :], strict=True))


# ---- start: resume, warm start, hand-over


@every_engine
def test_a_snapshot_of_another_run_is_refused(engine):
    case = CASES["IFCA"]
    at = whole("IFCA", engine)[0]
    fed = case.federation(engine)
    for other, about in (
        (IFCA(k=3, rounds=3, local=LINE), "tiny"),
        (IFCA(k=2, rounds=3, local=Descent(lr=0.06, steps=2)), "tiny"),
        (FedAvg(rounds=3, local=LINE), "tiny"),
        (case.algorithm, "other data"),
    ):
        with pytest.raises(InvalidInput, match="belongs to another run"):
            next(drive(other, fed, at, about=about))
    longer = list(drive(IFCA(k=2, rounds=5, local=LINE), fed, at, about="tiny"))  # more rounds are no other run
    assert [snapshot.round for snapshot in longer] == [2, 3, 4, 5]
    assert same_bits(replace(longer[0], fingerprint=""), replace(whole("IFCA", engine)[1], fingerprint=""))


@every_engine
def test_a_handover_begins_another_algorithm_from_the_models(engine):
    at = whole("IFCA, gradients", engine)[1].handover()
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


@every_engine
def test_a_handover_to_restarts_is_the_first_of_them(engine):
    at = whole("IFCA", engine)[-1].handover()
    case = CASES["IFCA, restarts"]
    got = list(run(case, case.federation(engine), at))
    first = next(run(Case(replace(case.algorithm, restarts=1)), case.federation(engine), at))
    assert farthest(got[0].models, first.models) == 0
    assert len(got) == 9


@dataclass(frozen=True, kw_only=True)
class Chain:
    """FedAvg, then IFCA with restarts from its model and its opposite, then the keeper."""

    serve = IFCA.serve

    def run(self, fed, start=None):
        return stages(fed, start, average=FedAvg(rounds=2, local=LINE).run, choose=self._choose, keep=self._keep)

    def _choose(self, fed, start):
        if start.k == 1:
            start = replace(start, models={n: torch.cat([p, -p]) for n, p in start.models.items()})
        return IFCA(k=2, rounds=2, local=LINE, restarts=2).run(fed, start)

    def _keep(self, fed, start):
        return Keeper(rounds=2).run(fed, start)


@every_engine
def test_stages_follow_one_another_and_can_be_resumed_anywhere(engine):
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
        rest = list(drive(Chain(), fed, got[place]))
        assert all(same_bits(a, b) for a, b in zip(rest, got[place + 1 :], strict=True))


# ---- too few replies


@every_engine
def test_an_abandoned_round_is_tried_again_with_the_clock_moved_on(engine, caplog):
    case = Case(Fragile(rounds=4, bad=(1, 4, 5)))
    fed = case.federation(engine)
    with caplog.at_level(logging.WARNING, logger="corymb.core.driver"):
        got = list(run(case, fed, seed=1))
    assert [at.clock for at in got] == [1, 3, 4, 7]
    assert [at.round for at in got] == [1, 2, 3, 4]
    assert [at.notes["visits"][0] for at in got] == [1, 2, 3, 4]  # a round that does not count leaves no memory
    assert len({at.notes["draw"] for at in got}) == 4
    assert len([record for record in caplog.records if "abandoned" in record.getMessage()]) == 3
    assert fed.ledger.rounds == 4
    assert len(fed.ledger.rejected) == 3 * len(TRUTH)
    for place in reversed(range(4)):
        rest = list(run(case, fed, got[place]))
        assert all(same_bits(a, b) for a, b in zip(rest, got[place + 1 :], strict=True))


@every_engine
def test_a_first_round_may_be_abandoned(engine):
    case = Case(Fragile(rounds=2, bad=(0, 1)))
    assert [at.clock for at in run(case, case.federation(engine))] == [3, 4]


@every_engine
def test_three_abandoned_rounds_in_a_row_end_the_run(engine):
    case = Case(Fragile(rounds=4, bad=(1, 2, 3)))
    fed = case.federation(engine)
    snapshots = run(case, fed)
    assert next(snapshots).clock == 1
    with pytest.raises(TooFewReplies, match="0 of 7 clients gave a usable reply, wanted 1"):
        next(snapshots)
    ends_well = Case(Fragile(rounds=4, bad=(1, 2)))
    assert len(list(run(ends_well, ends_well.federation(engine)))) == 4


@every_engine
def test_min_replies_is_what_counts_as_a_round(engine):
    case = Case(FedAvg(rounds=1, local=LINE, participants=3))
    for wanted, enough in ((3, True), (7, True), (1, True)):  # nobody can ask for more than were asked
        fed = case.federation(engine, min_replies=wanted)
        assert len(list(run(case, fed))) == enough
    with pytest.raises(InvalidInput, match="min_replies"):
        case.federation(engine, min_replies=0)
