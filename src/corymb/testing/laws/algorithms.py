"""Laws of every algorithm on every engine."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot, ends_early, planned_rounds
from corymb.evaluate import evaluate
from corymb.testing.assertions import CLOSE, assert_same_bits, assert_same_run, farthest, same_bits
from corymb.testing.cases import TRUTH, Case, run
from corymb.testing.engines import DOUBLE, AnyEngine, Reordered, engine_maker, engine_of

SEED = 1


class WholeRun(NamedTuple):
    """The snapshots of a run, and the federation at its end, including client memory."""

    snapshots: list[Snapshot]
    fed: Federation
    ledger: dict[str, Any]
    """A copy of the federation's ledger after this run, since laws continue to use the federation."""


def whole_run(case: Case, engine: AnyEngine) -> WholeRun:
    """The uninterrupted run of a case, cached for all laws; checks that no snapshot changes after it was yielded."""
    try:
        return _whole_run(case, repr(case), engine)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _whole_run.__wrapped__(case, "", engine)  # settings that hold a list or a dict


@functools.cache
def _whole_run(case: Case, exactly: str, engine: AnyEngine) -> WholeRun:
    fed = case.federation(engine)
    kept = [(at, copy.deepcopy(at)) for at in run(case, fed, seed=SEED)]
    assert all(same_bits(snapshot, then) for snapshot, then in kept), "a snapshot was changed after it was yielded"
    return WholeRun([snapshot for snapshot, _ in kept], fed, copy.deepcopy(vars(fed.ledger)))


def whole(case: Case, engine: AnyEngine) -> list[Snapshot]:
    """The snapshots of the uninterrupted run."""
    return whole_run(case, engine).snapshots


def check_snapshots(case: Case, engine: AnyEngine) -> None:
    """Clocks increase by one, every client has a label below k, and models are finite."""
    snapshots = whole(case, engine)
    assert [at.clock for at in snapshots] == list(range(1, len(snapshots) + 1))
    assert len(snapshots) <= planned_rounds(case.algorithm)
    for at in snapshots:
        assert at.seed == SEED
        assert at.labels.shape == (len(TRUTH),)
        assert at.labels.dtype == torch.int64
        assert int(at.labels.min()) >= -1
        assert int(at.labels.max()) < at.k
        assert all(torch.isfinite(value).all() for value in at.models.values())


def check_plan(case: Case, engine: AnyEngine = "vectorised") -> None:
    """A run yields as many snapshots as planned, or fewer if it may end early."""
    check_number(case, len(whole(case, engine)))


def check_number(case: Case, rounds: int) -> None:
    """The number of rounds is the algorithm's planned one, or smaller if it may end early."""
    planned = planned_rounds(case.algorithm)
    assert rounds == planned or (ends_early(case.algorithm) and rounds < planned)


def check_same_run(case: Case, engine: AnyEngine, reference: AnyEngine = "loop") -> None:
    """An engine gives the same run as the loop: labels exactly, numbers within 1e-9."""
    assert_same_run(whole(case, engine), whole(case, reference))


def check_same_bytes(case: Case, engine: AnyEngine, reference: AnyEngine = "loop") -> None:
    """The ledger is the same on every engine, and no client is rejected."""
    got, want = (whole_run(case, name).ledger for name in (engine, reference))
    assert got == want
    assert got["bytes_up"] > 0
    check_number(case, got["rounds"])
    assert got["rejected"] == []


def check_looking_changes_nothing(case: Case, engine: AnyEngine) -> None:
    """The same seed gives the same bits on a new engine, however often snapshots are evaluated between rounds."""
    fed = case.federation(engine)
    got = []
    for at in run(case, fed, seed=SEED):
        got.append(at)
        before = copy.deepcopy(vars(fed.ledger))
        for _ in range(at.clock % 3):
            metrics = evaluate(fed, case.algorithm, at, truth=torch.tensor(TRUTH))
            assert all(math.isfinite(value) for value in metrics.values()), metrics
        view = fed.evaluation()
        view.clients.sample(3)
        view.draw("something")
        assert vars(fed.ledger) == before
    assert_same_bits(got, whole(case, engine))


def check_evaluation(case: Case, engine: AnyEngine, reference: AnyEngine = "loop") -> None:
    """Metrics of the last snapshot are the same as on the loop."""
    at = whole(case, reference)[-1]
    got, want = (
        evaluate(whole_run(case, name).fed, case.algorithm, at, truth=torch.tensor(TRUTH))
        for name in (engine, reference)
    )
    assert got.keys() == want.keys()
    assert len(got) > 3
    for name, value in want.items():
        assert abs(got[name] - value) < CLOSE, f"{name} is {got[name]}, on the loop {value}"


def check_used_engine(case: Case, engine: AnyEngine) -> None:
    """An engine that has run before gives the same bits."""
    first = whole_run(case, engine)
    assert_same_bits(list(run(case, first.fed, seed=SEED)), first.snapshots)


def check_other_seed(case: Case, engine: AnyEngine) -> None:
    """Another seed gives another run, for an algorithm that draws anything (at least its first models)."""
    got = list(run(case, case.federation(engine), seed=SEED + 1))
    for one, other in zip(got, whole(case, engine), strict=True):
        assert not same_bits(replace(one, seed=SEED), other)


def check_resume(case: Case, engine: AnyEngine, places: Sequence[int] | None = None) -> None:
    """Continuing from any snapshot (or those at `places`) gives the uninterrupted run, including client memory."""
    snapshots, used, _ = whole_run(case, engine)
    for place in reversed(range(len(snapshots)) if places is None else places):
        fed = used if case.remembers else case.federation(engine)  # must rewind the memory of the whole run
        rest = list(run(case, fed, snapshots[place], seed=99))  # ignored: the snapshot's seed is used
        assert_same_bits(rest, snapshots[place + 1 :])


def check_stop_in_a_round(case: Case, engine: AnyEngine) -> None:
    """A run that stops after a snapshot can continue on the same engine from the one before it."""
    fed = case.federation(engine)
    started: Any = run(case, fed, seed=SEED)
    first = list(itertools.islice(started, 2))  # one for an algorithm with a single round
    started.close()
    assert_same_bits(list(run(case, fed, first[0])), whole(case, engine)[1:])


def check_order_of_clients(case: Case, engine: AnyEngine, order: Sequence[int] = (4, 2, 6, 0, 5, 1, 3)) -> None:
    """The order of clients in the data changes nothing: they are ordered by name."""
    fed = Federation(engine_maker(engine)(case.objective(), case.data().at(order), DOUBLE))
    assert list(fed.names) == sorted(fed.names)
    for got, want in zip(run(case, fed, seed=SEED), whole(case, engine), strict=True):
        assert torch.equal(got.labels, want.labels)
        assert farthest(got.models, want.models) < CLOSE


def check_order_of_arrival(case: Case, engine: AnyEngine, orders: Sequence[str] = ("falling", "by chance")) -> None:
    """Parts that arrive in another order give the same run."""
    for order in orders:
        fed = Federation(Reordered(case.engine(engine), order))
        assert_same_run(list(run(case, fed, seed=SEED)), whole(case, engine))


def check_size_of_chunks(case: Case) -> None:
    """The size of a vectorised engine's chunks changes nothing beyond rounding."""
    fed = case.federation("vectorised")
    engine_of(fed).budget = 1
    for got, want in zip(run(case, fed, seed=SEED), whole(case, "vectorised"), strict=True):
        assert torch.equal(got.labels, want.labels)
        assert farthest(got.models, want.models) < CLOSE
