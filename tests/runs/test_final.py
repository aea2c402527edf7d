"""The duration of the end of a run is estimated from a few of its clients."""

from types import SimpleNamespace

import pytest
import torch

import corymb
from corymb.core.federation import Federation, NoReplies
from corymb.core.snapshot import Snapshot
from corymb.engines import VectorisedEngine, node
from corymb.engines.remote import Answer
from corymb.objectives import LinearRegression
from corymb.runs import final
from corymb.runs.final import Ending, estimate_ending
from corymb.testing.remote import InProcess, joined, nodes_of
from tests.runs import small
from tests.tiny import DOUBLE, regression

SIZES = [5, 10, 20, 40, 80, 160, 320, 640]
OBJECTIVE = LinearRegression(3, dtype=torch.float64)


@pytest.fixture
def fed():
    return Federation(VectorisedEngine(OBJECTIVE, regression(SIZES), DOUBLE))


@pytest.fixture
def time_stands_still(monkeypatch):
    """A clock that advances on request."""
    now = [0.0]
    monkeypatch.setattr(final.time, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def clock(time_stands_still, monkeypatch):
    """The same, and the losses of all models take a second a client."""
    now = time_stands_still
    monkeypatch.setattr(final, "_fits", lambda fed, at, losses: now.__setitem__(0, now[0] + len(fed.clients)))
    return now


def scoring(clock, asked, once=0.0):
    """An evaluation that takes a hundredth of a second an example, and some time once."""

    def score(part):
        clock[0] += float(part.clients.sizes.sum()) / 100 + (0 if asked else once)
        asked.append(len(part.clients))
        return torch.zeros(len(SIZES))

    return score


def test_growing_samples_predict_the_time_of_all_clients(fed, clock):
    asked, at = [], Snapshot.fresh(fed, 2)
    found = estimate_ending(fed, at, scoring(clock, asked, once=50.0), fits=False, long_enough=4.0)
    assert asked == [1, 2, 4]
    assert found == (pytest.approx(sum(SIZES) / 100), 0, 0)
    assert found.seconds(5) == found.scores
    asked.clear()
    estimate_ending(fed, at, scoring(clock, asked), fits=False, long_enough=1e9)
    assert asked == [1, 2, 4, 8]


def test_fits_are_known_for_each_model(fed, clock):
    found = estimate_ending(fed, Snapshot.fresh(fed, 2), scoring(clock, []), fits=True, long_enough=1e9)
    assert found == (pytest.approx(sum(SIZES) / 100), len(SIZES) / 2, 0)
    assert Ending(3.0, 2.0).seconds(4) == 11
    assert Ending(3.0, 2.0).seconds(4, scored=True) == 8
    assert Ending(3.0, 2.0, 1.0).seconds(4, scored=True) == 9


def test_clients_that_cannot_be_evaluated_alone_are_no_measure(fed, clock):
    asked = []

    def score(part):
        asked.append(len(part.clients))
        if len(part.clients) < 4:
            raise NoReplies("1 of 1 clients is bad")
        clock[0] += 3
        return torch.zeros(len(SIZES))

    assert estimate_ending(fed, Snapshot.fresh(fed, 1), score, fits=False, long_enough=2.0).scores > 3
    assert asked == [1, 2, 4]


@pytest.mark.parametrize("algorithm", ["ifca", "alone"])
def test_time_for_the_evaluation_is_kept_back(algorithm, monkeypatch):
    kept = {"rounds": 4} | ({"k": 2} if algorithm == "ifca" else {})
    algorithm = corymb.configure(algorithm, small.arrays(), **kept)
    whole = corymb.fit(algorithm, small.arrays(), max_seconds=1000)
    assert not whole.stopped
    assert whole.history[-1]["clock"] > 1
    monkeypatch.setattr("corymb.runs.session.estimate_ending", lambda *args, **options: Ending(999.0, 999.0))
    run = corymb.fit(algorithm, small.arrays(), max_seconds=1000)
    assert (run.stopped, len(run.history)) == ("max_seconds", 1)


def test_estimating_the_final_evaluation_changes_nothing():
    algorithm = corymb.IFCA(k=2, rounds=3)
    one, other = (corymb.fit(algorithm, small.arrays(), max_seconds=limit) for limit in (None, 1000))
    assert one.metrics == other.metrics
    assert all(torch.equal(one.models[name], other.models[name]) for name in one.models)
    assert (one.ledger.bytes_up, one.ledger.asked) == (other.ledger.bytes_up, other.ledger.asked)


class Elsewhere:
    """Two hosts, one with the small clients and one with the large; an example takes the second twice as long."""

    hosts = ["near"] * 6 + ["far"] * 2
    PACES, MESSAGES = {"near": 0.01, "far": 0.02}, 3.0

    def __init__(self, clock):
        self.clock, self.traffic, self.asked = clock, SimpleNamespace(computed={"near": 7.0}), []

    def ask(self, part, *others):
        computed = dict.fromkeys(self.hosts, 0.0)
        for client, size in zip(part.clients.ids.tolist(), part.clients.sizes.tolist(), strict=True):
            computed[self.hosts[client]] += size * self.PACES[self.hosts[client]]
        for host, seconds in computed.items():
            self.traffic.computed[host] = self.traffic.computed.get(host, 0.0) + seconds
        self.clock[0] += self.MESSAGES + max(computed.values())  # hosts work at the same time
        self.asked.append(len(part.clients))
        return torch.zeros(len(SIZES))


def test_remote_hosts_work_in_parallel_and_message_time_is_not_scaled(fed, clock, monkeypatch):
    hosts = Elsewhere(clock)
    monkeypatch.setattr(final, "_fits", lambda part, at, losses: hosts.ask(part))
    found = estimate_ending(fed, Snapshot.fresh(fed, 2), hosts.ask, fits=True, long_enough=1.0, remote=hosts)
    work = sum(SIZES[6:]) * 0.02
    assert hosts.asked == [2, 2]  # asked once: messages alone were enough of a measure
    assert found == (pytest.approx(3 + work), pytest.approx(work / 2), pytest.approx(3))


def test_a_failed_remote_sample_is_not_a_measurement(fed, clock):
    hosts = Elsewhere(clock)

    def score(part):
        hosts.ask(part)
        if len(part.clients) < 4:
            raise NoReplies("1 of 1 clients is bad")
        return torch.zeros(len(SIZES))

    estimate_ending(fed, Snapshot.fresh(fed, 1), score, fits=False, long_enough=1.0, remote=hosts)
    assert hosts.asked == [2, 4]


class AtOnce(InProcess):
    """Nodes that answer at the same time, as those on machines of their own do, by a clock that advances on request."""

    def exchange(self, messages, give_up):
        began, answers, ends = self.clock[0], [], []
        for name, message in messages.items():
            self.clock[0] = began
            answers.append(Answer(name, self.nodes[name](message)))
            ends.append(self.clock[0])
        self.clock[0] = max(ends)
        yield from answers


def slow_nodes(monkeypatch, clock, an_evaluation, first=0.1):
    """Three nodes with four clients each, whose evaluation takes some seconds a client.

    The first round takes `first` seconds, the others a tenth.
    """

    def run(engine, call, ids):
        clock[0] += an_evaluation * len(ids) if call.readonly else first if call.version.clock == 0 else 0.1
        return real(engine, call, ids)

    real = node._run
    monkeypatch.setattr(node, "_run", run)
    nodes = AtOnce({name: one.answer for name, one in nodes_of(OBJECTIVE, regression([20] * 12), DOUBLE).items()})
    nodes.clock = clock
    return joined(nodes, OBJECTIVE)


@pytest.mark.parametrize("first", [0.1, 1.2])
def test_time_for_the_evaluation_is_kept_back_where_nodes_do_it(monkeypatch, time_stands_still, first):
    engine = slow_nodes(monkeypatch, time_stands_still, 0.15, first)  # three calls of four clients at each node: 1.8 s
    run = corymb.fit(corymb.FedAvg(rounds=1000), engine, max_seconds=4)
    assert run.stopped == "max_seconds"
    assert len(run.history) > 5
    assert time_stands_still[0] < 5  # 5.8 where nothing is kept back


class FarAway(InProcess):
    """Nodes whose messages take two seconds of a clock that advances on request."""

    def exchange(self, messages, give_up):
        self.clock[0] += 2.0
        yield from super().exchange(messages, give_up)


def test_time_is_kept_back_for_the_messages_of_an_evaluation_without_sending_them_twice(time_stands_still):
    clock, ends = time_stands_still, []
    nodes = FarAway({name: one.answer for name, one in nodes_of(OBJECTIVE, regression([20] * 12), DOUBLE).items()})
    nodes.clock = clock
    run = corymb.fit(
        corymb.FedAvg(rounds=1000), joined(nodes, OBJECTIVE), max_seconds=12, progress=lambda row: ends.append(clock[0])
    )
    assert (run.stopped, len(run.history)) == ("max_seconds", 3)
    assert clock[0] - ends[0] == 10  # after a first round of two seconds: two more, labels, scores and calibration


def test_a_remote_round_far_beyond_the_time_limit_is_not_started(monkeypatch, time_stands_still):
    monkeypatch.setattr("corymb.runs.session.estimate_ending", lambda *args, **options: Ending())
    engine, seconds = slow_nodes(monkeypatch, time_stands_still, 0.0), []
    algorithm = SlowRounds(rounds=9)
    object.__setattr__(algorithm, "clock", time_stands_still)
    corymb.fit(algorithm, engine, max_seconds=1.9, progress=lambda row: seconds.append(row["seconds"]))
    assert len(seconds) <= 2  # the third would end after 2.3 s


class SlowRounds(corymb.FedAvg):
    """Rounds of three quarters of a second."""

    def run(self, fed, start=None):
        for at in super().run(fed, start):
            self.clock[0] += 0.65
            yield at


def test_a_remote_run_with_time_to_spare_is_not_sampled(monkeypatch, time_stands_still):
    def never(*args, **options):
        raise AssertionError("messages for nothing")

    monkeypatch.setattr("corymb.runs.session.estimate_ending", never)
    run = corymb.fit(corymb.FedAvg(rounds=2), slow_nodes(monkeypatch, time_stands_still, 0.0), max_seconds=100)
    assert not run.stopped
