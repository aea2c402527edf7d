"""Progress on stderr: one line that is updated in a terminal, a line per round elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, TextIO

from corymb.runs.history import Round, readable

WIDE = 110
_UNITS = ("B", "kB", "MB", "GB", "TB")


class RoundLine:
    """Shows the rounds of a run as they finish; `with RoundLine(total) as show: show(row)`."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total, self.done, self.bytes, self.seconds = total, 0, 0, 0.0
        self.stream = stream or sys.stderr
        self._live: Any = None
        self._task: Any = None

    def __enter__(self) -> RoundLine:
        if self.stream.isatty():
            self._live = _live_line(self.stream)
            self._task = self._live.add_task("", total=self.total, facts="")
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, row: Round) -> None:
        """Show a round's record."""
        self.done += 1
        self.bytes += row["bytes_down"] + row["bytes_up"]
        self.seconds += row["seconds"]
        if self._live is not None:
            self._live.update(self._task, completed=self.done, facts=self._facts(row))
        else:
            left = self._seconds_left()
            print(f"round {self.done}/{self.total}  eta {left:.0f} s  {self._facts(row)}", file=self.stream, flush=True)

    def expect(self, total: int) -> None:
        """Say how many rounds there are now thought to be."""
        self.total = total
        if self._live is not None:
            self._live.update(self._task, total=total)

    def _seconds_left(self) -> float:
        return self.seconds / self.done * max(0, self.total - self.done)

    def _facts(self, row: Round) -> str:
        loss = "" if row["train_loss"] is None else f"  loss {readable(row['train_loss'])}"
        stage = f"  {row['stage']}" if row["stage"] else ""
        stage += "  collapsed: regrouped" if "collapse" in row["notes"] else ""
        stage += "  diverging" if row.get("diverging") else ""
        replied = f"replied {row['replied']}/{row['asked']} rejected {row['rejected']}"
        return f"{replied}  {_clusters(row)}{loss}  {readable_bytes(self.bytes)}{stage}"


def _clusters(row: Round) -> str:
    """How many clusters there are, and how many clients, or examples, changed theirs."""
    notes = row["notes"]
    points = row.get("points") or notes.get("points")
    if points is None:
        return f"clusters {row['clusters']}  churn {row['churn']:.1%}"
    moved = f"  examples moved {notes['moved']:.1%}" if "moved" in notes else ""
    return f"clusters {sum(size > 0 for size in points)}{moved}"


def _live_line(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(file=stream)  # no colour if NO_COLOR is set
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # in a narrow terminal the end of the facts is cut off
    return Progress(
        MofNCompleteColumn(),
        *([BarColumn(bar_width=12)] if console.width >= WIDE else []),
        TimeRemainingColumn(),
        TextColumn("{task.fields[facts]}", table_column=rest),
        console=console,
        expand=True,
    )


def readable_bytes(count: float) -> str:
    """A number of bytes with three digits or so.

    >>> readable_bytes(12_345_678)
    '12.3 MB'
    """
    power = 0
    while count >= 1000 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.0f} B" if power == 0 else f"{count:.1f} {_UNITS[power]}"
