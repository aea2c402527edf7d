"""Restarts of any algorithm: the best run is kept, with its client memory, and a diverging run does not end others."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from corymb.algorithms import IFCA, Alone, FedX, Restarts
from corymb.core.client import Client, on_client
from corymb.core.driver import drive
from corymb.core.federation import Federation, TooFewReplies
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.evaluate import evaluate
from corymb.local import Descent, serve_assigned
from corymb.settings import InvalidInput
from corymb.testing.keeper import Keeper, count_visits
from tests.contracts.cases import CASES, LINE, same_bits
from tests.tiny import ENGINES, farthest

every_engine = pytest.mark.parametrize("engine", ENGINES)


@on_client
def answer(client: Client, number: float):
    return client.train.weight.sum() * 0 + number


@dataclass(frozen=True, kw_only=True)
class Patchy:
    """Two rounds that nobody can answer at the clocks in `bad`; the score is the clock at which it is asked."""

    bad: tuple[int, ...] = ()
    odd_score: float | None = None
    rounds: int = 2
    serve = serve_assigned

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        at = start or Snapshot.fresh(fed, 1)
        for _ in range(at.round, self.rounds):
            fed.clients.map(answer, math.nan if fed.clock in self.bad else 0.0)
            yield (at := at.next())

    def score(self, fed: Federation, at: Snapshot) -> float:
        return float(fed.clock) if self.odd_score is None else self.odd_score


def federation(engine="loop"):
    return CASES["FedAvg"].federation(engine)


@every_engine
def test_a_run_that_diverges_counts_as_the_worst_and_the_others_continue(engine, caplog):
    """Clocks 0 and 1, scored at 2; the second run takes its first round at 3 and fails at 4, 5 and 6."""
    algorithm = Restarts(inner=Patchy(bad=(4, 5, 6)), times=3)
    fed = federation(engine)
    got = list(drive(algorithm, fed))
    assert [at.stage for at in got] == [
        *["restart-0"] * 2,
        "scored-0",
        "restart-1",
        "scored-1",
        *["restart-2"] * 2,
        "scored-2",
    ]
    assert got[-1].notes["restart_losses"] == [2.0, None, 9.0]
    assert got[-1].notes["best_restart"] == 0
    assert farthest(got[-1].models, got[1].models) == 0
    assert "restart 1 diverged: 0 of 7 clients" in caplog.text
    for place in reversed(range(len(got))):
        rest = list(drive(algorithm, fed, got[place]))
        assert all(same_bits(a, b) for a, b in zip(rest, got[place + 1 :], strict=True))


def test_the_first_run_may_diverge():
    got = list(drive(Restarts(inner=Patchy(bad=(1, 2, 3)), times=2), federation()))
    assert [at.stage for at in got] == ["restart-0", "scored-0", *["restart-1"] * 2, "scored-1"]
    assert got[1].notes["restart_losses"] == [None]
    assert "best_restart" not in got[1].notes
    assert got[-1].notes["best_restart"] == 1
    assert farthest(got[-1].models, got[-2].models) == 0


def test_rounds_that_fail_now_and_then_are_tried_again_and_no_run_is_lost():
    got = list(drive(Restarts(inner=Patchy(bad=(1, 2, 5)), times=2), federation()))
    assert [at.stage for at in got] == [*["restart-0"] * 2, "scored-0", *["restart-1"] * 2, "scored-1"]
    assert None not in got[-1].notes["restart_losses"]


def test_if_every_run_diverges_the_error_is_raised():
    bad = tuple(clock for clock in range(40) if clock not in (0, 4, 8))
    with pytest.raises(TooFewReplies, match="0 of 7 clients gave a usable reply"):
        list(drive(Restarts(inner=Patchy(bad=bad), times=2), federation()))
    with pytest.raises(TooFewReplies, match="no restart ended with a finite training loss"):
        list(drive(Restarts(inner=Patchy(odd_score=math.nan), times=2), federation()))


def test_ifca_continues_after_a_start_from_which_it_diverges():
    """Steps so long that every run grows: one from far away beyond all numbers, those from nearby not yet."""
    fed = CASES["IFCA"].federation("loop")
    far = torch.tensor([[1e150, 1e150, 1e150]] * 2, dtype=torch.float64)
    start = Snapshot(models={"weight": far}, labels=torch.full((7,), -1))
    long = Descent(lr=2.0, steps=3)
    *_, last = drive(IFCA(k=2, rounds=3, local=long, restarts=3, repair=False), fed, start)
    assert last.notes["restart_losses"][0] is None
    assert last.notes["best_restart"] in (1, 2)


# ---- client memory


@every_engine
def test_client_memory_is_the_best_runs(engine):
    """Alone: every client keeps its own model, whose training loss identifies the run."""
    algorithm = Restarts(inner=Alone(rounds=2, local=Descent(lr=0.02)), times=3)
    best = set()
    for seed in range(4):
        fed = federation(engine)
        *_, last = drive(algorithm, fed, seed=seed)
        losses = last.notes["restart_losses"]
        assert len(set(losses)) == 3
        assert evaluate(fed, algorithm, last)["train_loss"] == pytest.approx(min(losses), rel=1e-12)
        best.add(last.notes["best_restart"])
    assert best - {2}  # or the last run's memory would do


@dataclass(frozen=True, kw_only=True)
class Visits:
    """Counts in client memory how often a client was asked."""

    rounds: int = 2
    serve = serve_assigned
    keeps_memory = True

    def run(self, fed, start=None):
        at = start or Snapshot.fresh(fed, 1)
        for _ in range(at.round, self.rounds):
            replies = fed.clients.sum(count_visits, at.models)
            yield (at := at.next(notes={"visits": replies.value.note.tolist()}))


@every_engine
def test_no_run_sees_what_another_kept(engine):
    got = list(drive(Restarts(inner=Visits(), times=3), federation(engine)))
    visits = [at.notes["visits"] for at in got if at.stage.startswith("restart")]
    assert visits == [[1.0] * 7, [2.0] * 7] * 3


@pytest.mark.parametrize(("inner", "more"), [(IFCA(k=2, rounds=2, local=LINE), 0), (Keeper(rounds=2), 2 * 2 + 1)])
def test_algorithms_that_keep_nothing_pay_nothing(inner, more):
    """Two rounds and a score for each of two runs; memory is set aside twice and cleared once."""
    fed = federation()
    calls = []
    ask = fed.ask
    fed.ask = lambda *args: calls.append(args[2].name) or ask(*args)
    fed.clients._fed = fed
    list(drive(Restarts(inner=inner, times=2), fed))
    about_memory = [name for name in calls if name.endswith((":keep_best", ":forget_run"))]
    assert len(about_memory) == (3 if more else 0)


def test_soft_shares_are_the_best_runs():
    algorithm = Restarts(inner=FedX(k=2, rounds=2, assignment="soft"), times=3)
    for seed in range(3):
        got = list(drive(algorithm, federation(), seed=seed))
        best = got[-1].notes["best_restart"]
        assert torch.equal(got[-1].shares, got[3 * best + 1].shares)


def test_restarts_inside_a_run_with_restarts_can_be_resumed():
    algorithm = Restarts(inner=IFCA(k=2, rounds=1, local=LINE, restarts=2), times=2)
    fed = federation()
    got = list(drive(algorithm, fed))
    assert len(got) == planned_rounds(algorithm) == 10
    for place in range(len(got)):
        rest = list(drive(algorithm, fed, got[place]))
        assert all(same_bits(a, b) for a, b in zip(rest, got[place + 1 :], strict=True))


def test_wrong_settings_are_refused():
    with pytest.raises(InvalidInput, match="times must be at least 1, got 0"):
        Restarts(inner=Alone(), times=0)
    with pytest.raises(InvalidInput, match="product of their times"):
        Restarts(inner=Restarts(inner=Alone()))
