"""Progress on stderr (one updated line in a terminal, else a line per round), and the time limit within a round."""

from __future__ import annotations

import logging
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, TextIO, TypeVar

import torch

from corymb.core.engine import TimeIsUp
from corymb.core.federation import Federation
from corymb.core.snapshot import Algorithm, ends_early, planned_rounds
from corymb.runs.history import Round, readable

T = TypeVar("T")
EVERY = 5.0
"""Seconds between progress updates within a round."""
GRACE = 2.0
"""A round expected to finish within this many seconds may do so after the time limit."""
RECENT = 10
"""The time left is estimated from this many of the latest rounds."""

WIDE = 110
_TIMES = ((3600.0, "h"), (60.0, "min"))
_UNITS = ("B", "kB", "MB", "GB", "TB")


@contextmanager
def log_once() -> Iterator[None]:
    """Log each message only once during several runs on the same data."""
    seen: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in seen
        seen.add(text)
        return new

    logger = logging.getLogger("corymb.runs.session")
    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


class LastStage(NamedTuple):
    """The last stage of an algorithm that may end early."""

    stage: str
    rounds: int


class RoundLine:
    """Shows the rounds of a run as they finish; `with RoundLine(total) as show: show(row)`."""

    def __init__(
        self, total: int, stream: TextIO | None = None, *, alike: bool = True, last: LastStage | None = None
    ) -> None:
        """`alike`: whether all rounds do the same work, so that the first tells how long the others take.

        `last`: the stage from which on the number of rounds is known, if `total` is only an upper bound.
        """
        self.total, self.done, self.bytes, self.alike, self.last = total, 0, 0, alike, last
        self._took, self._shown_at = list[tuple[str, float]](), math.inf  # the kind of every round, and its seconds
        self._earlier = Counter[str]()  # kinds of rounds that were done before
        self.stream = stream or sys.stderr
        self._live: Any = None
        self._task: Any = None

    @staticmethod
    def of(algorithm: Algorithm) -> RoundLine:
        """The line of a run of this algorithm."""
        total, rounds = planned_rounds(algorithm), getattr(algorithm, "rounds", None)
        last, stage = None, getattr(algorithm, "last_stage", None)
        if ends_early(algorithm) and stage is not None and rounds is not None:
            one_more: Algorithm = replace(algorithm, rounds=rounds + 1)  # type: ignore[type-var]
            last = LastStage(stage, rounds) if planned_rounds(one_more) == total + 1 else None
        return RoundLine(total, alike=total == rounds, last=last)

    def __enter__(self) -> RoundLine:
        if self.stream.isatty():
            self._live = _live_line(self.stream)
            self._task = self._live.add_task("", total=self.total, facts="", left="")
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def resume(self, history: Sequence[Round], done: int) -> None:
        """Count on from the rounds of a resumed run, of which `done` are among those planned.

        Their seconds say nothing about those to come: they may be another machine's.
        """
        self.done, self._earlier = done, Counter(_kind(row) for row in history)
        self.bytes = sum(row["bytes_down"] + row["bytes_up"] for row in history)
        self._count_the_last(history[-1:])
        if self._live is not None:
            self._live.update(self._task, completed=done)

    def __call__(self, row: Round) -> None:
        """Show a round's record."""
        self.done += 1
        self._count_the_last([row])
        self.bytes += row["bytes_down"] + row["bytes_up"]
        now = time.perf_counter()  # a round's own seconds leave out its evaluation and its checkpoint
        self._took.append((_kind(row), max(row["seconds"], now - self._shown_at)))
        self._shown_at = now
        pace = self._seconds_per_round()
        left = None if pace is None else pace * max(0, self.total - self.done)
        if self._live is not None:
            text = "" if left is None else f"eta {readable_time(left)}"
            self._live.update(self._task, completed=self.done, facts=self._facts(row), left=text)
        else:
            text = "" if left is None else f"  eta {left:.0f} s"
            print(f"round {self.done}/{self.total}{text}  {self._facts(row)}", file=self.stream, flush=True)

    def within(self, progress: RoundProgress) -> None:
        """Show the progress within an unfinished round."""
        facts = f"{progress.done}/{progress.asked} clients"
        if progress.seconds is not None:
            pace = progress.seconds if self.alike else self._seconds_per_round()
            facts += f", about {readable_time(progress.seconds)} {'per' if self.alike else 'for this'} round"
            if pace is not None:
                left = progress.seconds + pace * max(0, self.total - self.done - 1)
                facts += f" and {readable_time(left)} in total"
        if self._live is not None:
            self._live.update(self._task, facts=facts)
        else:
            print(f"round {self.done + 1}/{self.total}  {facts}", file=self.stream, flush=True)

    def evaluating(self, progress: RoundProgress) -> None:
        """Show the progress of the final evaluation."""
        facts = f"{progress.done}/{progress.asked} clients"
        facts += "" if progress.seconds is None else f", about {readable_time(progress.seconds)}"
        if self._live is not None:
            self._live.update(self._task, facts=f"evaluation: {facts}")
        else:
            print(f"evaluation  {facts}", file=self.stream, flush=True)

    def expect(self, total: int) -> None:
        """Update the expected number of rounds."""
        self.total = total
        if self._live is not None:
            self._live.update(self._task, total=total)

    def _count_the_last(self, rows: Sequence[Round]) -> None:
        """Expect as many rounds as are left once the last stage has begun: a search before it may have been short."""
        for row in rows:
            if self.last is not None and row["stage"] == self.last.stage:
                self.expect(self.done + self.last.rounds - row["round"])

    def _seconds_per_round(self) -> float | None:
        """The mean duration of the latest rounds; None if unknown.

        If rounds differ, those of a stage that has had only one are left out: most such stages have no other, and
        often take far longer, as when SR-FCA compares all clients.
        """
        times = self._earlier + Counter(kind for kind, _ in self._took)
        usual = [seconds for kind, seconds in self._took if self.alike or not kind or times[kind] > 1][-RECENT:]
        return sum(usual) / len(usual) if usual else None

    def _facts(self, row: Round) -> str:
        loss = "" if row["train_loss"] is None else f"  loss {readable(row['train_loss'])}"
        stage = f"  {row['stage']}" if row["stage"] else ""
        stage += "  collapsed: regrouped" if "collapse" in row["notes"] else ""
        stage += "  diverging" if row.get("diverging") else ""
        replied = f"replied {row['replied']}/{row['asked']} rejected {row['rejected']}"
        return f"{replied}  {_clusters(row)}{loss}  {readable_bytes(self.bytes)}{stage}"


class RoundProgress(NamedTuple):
    """The progress within a round."""

    done: int
    asked: int
    """Clients selected for the current call."""
    seconds: float | None
    """The estimated duration of the round; None if unknown."""

    @property
    def estimate(self) -> str:
        """The estimated duration as the beginning of a sentence; empty if unknown."""
        return "" if self.seconds is None else f"a round takes about {readable_time(self.seconds)}: "


class RoundTimer:
    """Tracks the time within a round: ends the round when the time is up, and reports its progress now and then.

    Engines in this process report the clients that they start; with remote engines the time is only checked between
    rounds. A round that is nearly done is not stopped.
    """

    def __init__(self, limit: float | None, report: Callable[[RoundProgress], None] | None) -> None:
        self.limit, self.report = limit, report
        self.began = self.reported = time.perf_counter()
        self.sizes, self.work = torch.empty(0), torch.ones_like
        self.active = self.in_process = False
        self.calls = self.rounds = 0
        """Calls to clients in the current round, and rounds so far."""
        self._begin_call(0)
        self.remote: Any = None

    def watch(self, fed: Federation, engine: Any) -> None:
        """Observe a federation and its engine, if the engine is in this process."""
        fed.asking, self.sizes = self._begin_call, fed.sizes
        while not hasattr(engine, "host") and hasattr(engine, "engine"):
            engine = engine.engine
        self.in_process, self.remote = hasattr(engine, "host"), engine if hasattr(engine, "traffic") else None
        if self.in_process:
            engine.host.on_begin = self._begin_clients
        if hasattr(engine, "kernels"):
            engine.kernels.watch.report, self.work = self._step, engine.kernels.watch.work

    def timed(self, rounds: Iterator[T]) -> Iterator[T]:
        """Iterate over rounds, checking the time only within them, not while they are evaluated and saved."""
        while True:
            self.active, self.calls = True, 0
            try:
                one = next(rounds)
            except StopIteration:
                return
            finally:
                self.active = False
            self.rounds += 1
            yield one

    @contextmanager
    def evaluating(self, report: Callable[[RoundProgress], None] | None) -> Iterator[None]:
        """Report the progress of the final evaluation, which has no time limit."""
        self.report, self.limit, self.active, self.reported = report, None, True, time.perf_counter()
        try:
            yield
        finally:
            self.active = False

    @property
    def progress(self) -> RoundProgress:
        """The progress of the current call to clients; a round has one or a few."""
        spent, share = time.perf_counter() - self.asked_at, self._share()
        done = len(self.answered) + int(self._part_done() * len(self.at_work))
        return RoundProgress(min(self.asked, done), self.asked, spent / share if share else None)

    def _share(self) -> float:
        """The share of the current call's work that is done, weighted: clients with few examples come first."""
        work = self.work(self.sizes.double())
        done = float(work[self.answered].sum()) + self._part_done() * float(work[self.at_work].sum())
        return min(1.0, done / max(float(work.mean()) * self.asked, 1e-9))

    def _part_done(self) -> float:
        """The fraction of work done by the clients that are running.

        The number of descents per client is known once the first clients have answered; until then it is taken as one.
        """
        return (self.descents + self.part) / max(self.expected, self.descents + (self.part > 0), 1)

    def _begin_call(self, clients: int) -> None:
        self.calls += self.active
        self.asked, self.asked_at = clients, time.perf_counter()
        self.checked = self.asked_at
        self.answered, self.at_work = list[int](), list[int]()
        self.expected, self.descents, self.part = 0, 0, 0.0

    def _begin_clients(self, clients: Sequence[int]) -> None:
        self.answered += self.at_work
        self.expected, self.descents, self.part, self.at_work = self.descents, 0, 0.0, []
        self._check_time()
        self.at_work = list(clients)

    def _step(self, part: float) -> None:
        """Record that a fraction of a descent is done; 0 stands for work that is not a descent."""
        if part == 1:
            self.descents, self.part = self.descents + 1, 0.0
        elif part:
            self.part = part
        self._check_time()

    def _check_time(self) -> None:
        now = time.perf_counter()
        pace, self.checked = now - self.checked, now
        if not self.active or len(self.answered) >= self.asked:
            return
        # If more than half of another step would lie beyond the limit, stopping now is closer to the limit.
        if self.limit is not None and (late := now + pace / 2 - self.began - self.limit) > 0:
            share = self._share()
            left = (now - self.asked_at) * (1 / share - 1) if share else late
            if left > GRACE:
                raise TimeIsUp
        if self.report is not None and now - max(self.reported, self.asked_at) > EVERY:
            self.reported = now
            self.report(self.progress)


def _kind(row: Round) -> str:
    """The stage of a round without numbers: all restarts are of one kind."""
    return re.sub(r"\d+", "", row["stage"])


def readable_time(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> readable_time(8.24), readable_time(114), readable_time(400), readable_time(9000)
    ('8.2 s', '114 s', '6.7 min', '2.5 h')
    """
    size, unit = next(((size, unit) for size, unit in _TIMES if seconds >= 2 * size), (1.0, "s"))
    count = seconds / size
    return f"{count:.2g} {unit}" if count < 99.5 else f"{count:.0f} {unit}"


def _clusters(row: Round) -> str:
    """The number of clusters, and the share of clients or examples that changed cluster."""
    notes = row["notes"]
    points = row.get("points") or notes.get("points")
    if points is None:
        return f"clusters {row['clusters']}  churn {row['churn']:.1%}"
    moved = f"  examples moved {notes['moved']:.1%}" if "moved" in notes else ""
    return f"clusters {sum(size > 0 for size in points)}{moved}"


def _live_line(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(file=stream)  # no colour if NO_COLOR is set
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # a narrow terminal truncates the facts
    return Progress(
        MofNCompleteColumn(),
        *([BarColumn(bar_width=12)] if console.width >= WIDE else []),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[facts]}", table_column=rest),
        console=console,
        expand=True,
    )


def readable_bytes(count: float) -> str:
    """Format a number of bytes with about three digits.

    >>> readable_bytes(12_345_678)
    '12.3 MB'
    """
    power = 0
    while count >= 1000 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.0f} B" if power == 0 else f"{count:.1f} {_UNITS[power]}"
