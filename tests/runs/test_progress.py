import io
import logging
import re

import pytest
import torch

from corymb.algorithms import IFCA, SRFCA, UIFCA, FedAvg
from corymb.core.engine import TimeIsUp
from corymb.core.snapshot import planned_rounds
from corymb.runs import progress
from corymb.runs.progress import RoundLine, RoundProgress, RoundTimer, log_once, readable_bytes, readable_time

ROW = {
    "clock": 1,
    "round": 1,
    "stage": "restart-0",
    "train_loss": 0.1234,
    "churn": 0.25,
    "clusters": 4,
    "asked": 80,
    "replied": 79,
    "rejected": 1,
    "bytes_down": 3000,
    "bytes_up": 1000,
    "notes": {},
    "seconds": 2.0,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_outside_a_terminal_each_round_is_a_plain_line():
    stream = io.StringIO()
    with RoundLine(3, stream) as show:
        show(ROW)
        show({**ROW, "stage": "", "train_loss": None})
    first, second = stream.getvalue().splitlines()
    facts = "replied 79/80 rejected 1  clusters 4  churn 25.0%  loss 0.1234  4.0 kB  restart-0"
    assert first == f"round 1/3  eta 4 s  {facts}"
    assert second.startswith("round 2/3  eta 2 s")
    assert second.endswith("8.0 kB")


def etas(line, stream, rows):
    """The times left that a line shows after rounds of these stages and seconds; None where it shows none."""
    for stage, seconds in rows:
        line({**ROW, "stage": stage, "seconds": seconds})
    found = [re.search(r"eta (\d+) s", text) for text in stream.getvalue().splitlines()]
    return [None if one is None else int(one[1]) for one in found]


def test_a_stage_of_one_long_round_says_nothing_about_the_other_rounds():
    stream = io.StringIO()
    line = RoundLine(34, stream, alike=False)
    comparing = [("alone", 10.0), ("one-shot", 300.0)]
    training = [("train-1", 1.0)] * 15
    again = [("refine-1", 4.0), ("train-2", 1.0)]
    assert etas(line, stream, [*comparing, *training, *again]) == [None] * 3 + [*range(30, 16, -1), 16, 15]
    line.within(RoundProgress(3, 10, 2.0))
    assert stream.getvalue().splitlines()[-1] == "round 20/34  3/10 clients, about 2 s for this round and 16 s in total"


def test_a_resumed_run_counts_on_and_its_earlier_rounds_tell_only_what_stages_are_usual():
    earlier = [{**ROW, "stage": stage, "seconds": 50.0} for stage in ("alone", "train-1", "train-1")]
    stream = io.StringIO()
    line = RoundLine(8, stream, alike=False)
    line.resume(earlier, len(earlier))
    assert etas(line, stream, [("train-2", 2.0), ("refine-2", 9.0)]) == [8, 6]
    assert stream.getvalue().startswith("round 4/8  eta 8 s  ")
    assert line.bytes == 5 * 4000
    line.within(RoundProgress(3, 10, 1.0))
    assert stream.getvalue().splitlines()[-1].startswith("round 6/8  3/10 clients, about 1 s for this round and 5 s")


def test_once_a_search_has_ended_the_rounds_left_are_known():
    """The search for k has an upper bound only, which most runs take a third of."""
    stream, line = io.StringIO(), RoundLine.of(IFCA(k="auto", rounds=4))
    line.stream, searched = stream, {**ROW, "stage": "start/weigh", "round": 0}
    rows = [searched, *({**ROW, "stage": "rounds", "round": t} for t in (1, 2))]
    for row in rows:
        line(row)
    totals = [text.split()[1] for text in stream.getvalue().splitlines()]
    assert totals == [f"1/{planned_rounds(IFCA(k='auto', rounds=4))}", "2/5", "3/5"]
    line.resume(rows, len(rows))
    assert (line.done, line.total) == (3, 5)
    assert RoundLine.of(UIFCA(k=2, settled=0.01, exchanges=2)).last is None  # two snapshots each


def test_in_a_terminal_a_resumed_run_begins_where_it_was(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with RoundLine(4, stream) as show:
        show.resume([ROW] * 3, 3)
    assert "3/4" in stream.getvalue()


def test_before_a_stage_is_known_the_time_of_a_round_is_not_that_of_all():
    stream = io.StringIO()
    RoundLine(34, stream, alike=False).within(RoundProgress(3, 10, 8.0))
    assert stream.getvalue() == "round 1/34  3/10 clients, about 8 s for this round\n"


def test_the_time_left_follows_rounds_that_have_become_faster_or_slower():
    stream = io.StringIO()
    assert etas(RoundLine(41, stream), stream, [("", 100.0), *[("", 1.0)] * 10])[-1] == 30


def test_the_time_left_includes_what_a_run_does_between_rounds(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    line = RoundLine(3, stream)
    line({**ROW, "seconds": 1.0})
    clock.now += 9.0  # an evaluation and a checkpoint besides
    line({**ROW, "seconds": 1.0})
    assert "round 2/3  eta 5 s" in stream.getvalue()


@pytest.mark.parametrize(
    ("algorithm", "total", "alike"),
    [(FedAvg(rounds=7), 7, True), (IFCA(k=2, rounds=7), 7, True), (SRFCA(threshold=1.0, rounds=7), 18, False)],
)
def test_the_line_of_an_algorithm_knows_whether_its_rounds_are_alike(algorithm, total, alike):
    line = RoundLine.of(algorithm)
    assert (line.total, line.alike) == (total, alike)


def test_in_a_terminal_there_is_one_line_that_renews_itself(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    with RoundLine(3, stream) as show:
        show(ROW)
        show(ROW)
    text = stream.getvalue()
    assert "2/3" in text
    assert "replied 79/80 rejected 1" in text
    assert "eta 2 s" in text
    assert "\x1b[3" in text  # colour


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with RoundLine(1, stream) as show:
        show(ROW)
    assert "\x1b[3" not in stream.getvalue()


def test_the_terminal_is_given_back_when_the_run_fails():
    stream = Terminal()
    with pytest.raises(KeyError), RoundLine(1, stream) as show:
        show({})
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is back


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.123, "0.12 s"), (99.4, "99 s"), (104, "104 s"), (119.9, "120 s"), (130, "2.2 min"), (6500, "108 min")],
)
def test_times_are_readable(seconds, text):
    assert readable_time(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (5e15, "5000.0 TB")])
def test_bytes_are_readable(count, text):
    assert readable_bytes(count) == text


def test_a_growing_loss_is_shown_in_the_progress_line():
    line = RoundLine(1)
    assert "diverging" in line._facts({**ROW, "diverging": True})
    assert "diverging" not in line._facts(ROW)


def test_a_repair_is_shown_in_the_progress_line():
    line = RoundLine(1)
    assert "regrouped" in line._facts({**ROW, "notes": {"collapse": {}}})
    assert "regrouped" not in line._facts(ROW)


class Clock:
    """A clock that advances on request."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(progress.time, "perf_counter", lambda: self.now)


class Fed:
    asking, sizes = None, torch.full((100,), 20)


class Engine:
    """Asks a hundred clients, ten of them at a time, and each ten take three seconds."""

    def __init__(self, clock, host=None):
        self.clock, self.host = clock, host or type("Host", (), {"on_begin": None})()

    def rounds(self, fed, number):
        for _ in range(number):
            fed.asking(100)
            for first in range(0, 100, 10):
                self.host.on_begin(range(first, first + 10))
                self.clock.now += 3
            yield "round"


def test_a_long_round_reports_progress_and_the_estimated_total_time(monkeypatch):
    clock, fed, stream = Clock(monkeypatch), Fed(), io.StringIO()
    engine, line = Engine(clock), RoundLine(40, stream)
    timer = RoundTimer(None, line.within)
    timer.watch(fed, type("Around", (), {"engine": engine})())
    assert list(timer.timed(engine.rounds(fed, 1))) == ["round"]
    first, *more = stream.getvalue().splitlines()
    assert first == "round 1/40  20/100 clients, about 30 s per round and 20 min in total"
    assert len(more) == 3  # every six seconds, which are two steps here


def test_time_that_is_up_ends_a_round_unless_it_is_nearly_done(monkeypatch):
    clock, fed = Clock(monkeypatch), Fed()
    engine, timer = Engine(clock), RoundTimer(37.0, None)
    timer.watch(fed, engine)
    with pytest.raises(TimeIsUp):
        list(timer.timed(engine.rounds(fed, 3)))
    assert (timer.rounds, timer.progress.done, clock.now) == (1, 20, 136.0)  # 139 would be farther from 137
    clock.now, near = 100.0, RoundTimer(30.0, None)
    near.watch(fed, engine)
    monkeypatch.setattr(progress, "GRACE", 3.5)
    assert list(near.timed(engine.rounds(fed, 1))) == ["round"]  # time is up with the last ten clients


class Slow:
    """Two clients, one with three times the examples of the other, whose every step takes four seconds an example."""

    def __init__(self, clock):
        self.clock, self.host = clock, type("Host", (), {"on_begin": None})()
        watch = type("Watch", (), {"work": staticmethod(torch.clone), "report": None})()
        self.kernels = type("Kernels", (), {"watch": watch})()

    def rounds(self, fed):
        fed.asking(2)
        for client, size in enumerate(fed.sizes.tolist()):
            self.host.on_begin([client])
            for step in range(10):
                self.kernels.watch.report(step / 10)
                self.clock.now += 4 * size
            self.kernels.watch.report(1)
        yield "round"


def slow(clock, limit, stream):
    """A round of two clients with much work."""
    fed, engine = type("Two", (), {"asking": None, "sizes": torch.tensor([1, 3])})(), Slow(clock)
    timer = RoundTimer(limit, RoundLine(1, stream).within)
    timer.watch(fed, engine)
    return timer, timer.timed(engine.rounds(fed))


def test_a_slow_clients_progress_is_reported_step_by_step(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    list(slow(clock, None, stream)[1])
    lines = stream.getvalue().splitlines()
    assert clock.now == 260
    assert lines[0] == "round 1/1  0/2 clients, about 2.7 min per round and 2.7 min in total"
    assert len(lines) >= 10


def test_time_that_is_up_inside_one_clients_work_ends_the_round(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    timer, rounds = slow(clock, 17.0, stream)
    with pytest.raises(TimeIsUp):
        list(rounds)
    assert clock.now == 116
    assert timer.progress == (0, 2, pytest.approx(160))
    assert timer.progress.estimate == "a round takes about 2.7 min: "


def test_before_anything_is_known_of_the_rest_time_that_is_up_ends_the_round(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    timer, _ = slow(clock, 1.0, stream)
    timer.active, timer.asked = True, 2
    clock.now += 2
    timer._step(0)
    clock.now += 2
    with pytest.raises(TimeIsUp):
        timer._step(0)


def test_a_long_evaluation_reports_progress(monkeypatch):
    clock, fed, stream = Clock(monkeypatch), Fed(), io.StringIO()
    engine, timer = Engine(clock), RoundTimer(1.0, None)
    timer.watch(fed, engine)
    line = RoundLine(1, stream)
    line.evaluating(RoundProgress(0, 100, None))
    with timer.evaluating(line.evaluating):
        list(engine.rounds(fed, 1))
    assert stream.getvalue().splitlines()[:2] == ["evaluation  0/100 clients", "evaluation  20/100 clients, about 30 s"]
    terminal = Terminal()
    with RoundLine(1, terminal) as live:
        live.evaluating(RoundProgress(3, 100, 8.0))
    assert "evaluation: 3/100 clients, about 8 s" in terminal.getvalue()


def test_evaluation_is_not_cut_short(monkeypatch):
    clock, fed = Clock(monkeypatch), Fed()
    engine, timer = Engine(clock), RoundTimer(1.0, None)
    timer.watch(fed, engine)
    assert list(engine.rounds(fed, 2)) == ["round", "round"]  # not inside `timed`


def test_several_runs_say_what_the_data_are_like_once(caplog):
    log = logging.getLogger("corymb.runs.session")
    with log_once():
        for trial in range(3):
            log.warning("client %r is odd", "a")
            log.warning("trial %d", trial)
    log.warning("client %r is odd", "a")
    assert [record.getMessage() for record in caplog.records] == [
        "client 'a' is odd",
        "trial 0",
        "trial 1",
        "trial 2",
        "client 'a' is odd",
    ]
