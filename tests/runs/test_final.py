"""What the end of a run takes is known from a few of its clients."""

import pytest
import torch

import corymb
from corymb.core.federation import Federation, NoReplies
from corymb.core.snapshot import Snapshot
from corymb.engines import VectorisedEngine
from corymb.objectives import LinearRegression
from corymb.runs import final
from corymb.runs.final import Ending, rehearse
from tests.runs import small
from tests.tiny import DOUBLE, regression

SIZES = [5, 10, 20, 40, 80, 160, 320, 640]
OBJECTIVE = LinearRegression(3, dtype=torch.float64)


@pytest.fixture
def fed():
    return Federation(VectorisedEngine(OBJECTIVE, regression(SIZES), DOUBLE))


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when told."""
    now = [0.0]
    monkeypatch.setattr(final.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(final, "_fits", lambda fed, at, losses: now.__setitem__(0, now[0] + len(fed.clients)))
    return now


def scoring(clock, asked, once=0.0):
    """An evaluation that takes a hundredth of a second an example, and some time once."""

    def score(part):
        clock[0] += float(part.clients.sizes.sum()) / 100 + (0 if asked else once)
        asked.append(len(part.clients))
        return torch.zeros(len(SIZES))

    return score


def test_more_and_more_clients_tell_what_all_of_them_take(fed, clock):
    asked, at = [], Snapshot.fresh(fed, 2)
    found = rehearse(fed, at, scoring(clock, asked, once=50.0), fits=False, enough=4.0)
    assert asked == [1, 2, 4]
    assert found == (pytest.approx(sum(SIZES) / 100), 0)
    assert found.seconds(5) == found.scores
    asked.clear()
    rehearse(fed, at, scoring(clock, asked), fits=False, enough=1e9)
    assert asked == [1, 2, 4, 8]


def test_fits_are_known_for_each_model(fed, clock):
    found = rehearse(fed, Snapshot.fresh(fed, 2), scoring(clock, []), fits=True, enough=1e9)
    assert found == (pytest.approx(sum(SIZES) / 100), len(SIZES) / 2)
    assert Ending(3.0, 2.0).seconds(4) == 11
    assert Ending(3.0, 2.0).seconds(4, scored=True) == 8


def test_clients_that_cannot_be_evaluated_alone_are_no_measure(fed, clock):
    asked = []

    def score(part):
        asked.append(len(part.clients))
        if len(part.clients) < 4:
            raise NoReplies("1 of 1 clients is bad")
        clock[0] += 3
        return torch.zeros(len(SIZES))

    assert rehearse(fed, Snapshot.fresh(fed, 1), score, fits=False, enough=2.0).scores > 3
    assert asked == [1, 2, 4]


@pytest.mark.parametrize("algorithm", ["ifca", "alone"])
def test_time_for_the_evaluation_is_kept_back(algorithm, monkeypatch):
    kept = {"rounds": 4} | ({"k": 2} if algorithm == "ifca" else {})
    algorithm = corymb.configure(algorithm, small.arrays(), **kept)
    whole = corymb.fit(algorithm, small.arrays(), max_seconds=1000)
    assert not whole.stopped
    assert whole.history[-1]["clock"] > 1
    monkeypatch.setattr("corymb.runs.session.rehearse", lambda *args, **options: Ending(999.0, 999.0))
    run = corymb.fit(algorithm, small.arrays(), max_seconds=1000)
    assert (run.stopped, len(run.history)) == ("max_seconds", 1)


def test_a_rehearsal_changes_nothing():
    algorithm = corymb.IFCA(k=2, rounds=3)
    one, other = (corymb.fit(algorithm, small.arrays(), max_seconds=limit) for limit in (None, 1000))
    assert one.metrics == other.metrics
    assert all(torch.equal(one.models[name], other.models[name]) for name in one.models)
    assert (one.ledger.bytes_up, one.ledger.asked) == (other.ledger.bytes_up, other.ledger.asked)
