"""Progress of downloads on stderr: a bar in a terminal, otherwise one line per data set."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class DownloadProgress:
    """Shows the downloads of one data set, from the first on: `with DownloadProgress(name, files) as progress: ...`."""

    def __init__(self, name: str, files: int) -> None:
        self.name, self.files = name, files
        self._live: Any = None
        self._task: Any = None
        self._announced = False

    def __enter__(self) -> DownloadProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, url: str, start: int, total: int | None) -> None:
        """Start a file of `total` bytes, or resume it after `start` bytes."""
        file = url.rsplit("/", 1)[-1]
        if self._live is None and not sys.stderr.isatty():
            if not self._announced or start:
                what = self.name if self.files == 1 else f"{self.name} ({self.files} files)"
                size = "" if total is None else f", {file}: {megabytes(total)}"
                resumed = f", resuming at {megabytes(start)}" if start else ""
                say(f"downloading {what} from {url.rpartition('/')[0]}/{size}{resumed}")
            self._announced = True
            return
        if self._live is None:
            self._live = _bars()
            self._live.start()
        if self._task is not None:
            self._live.remove_task(self._task)
        self._task = self._live.add_task(f"{self.name}: {file}", total=total, completed=start)

    def advance(self, received: int) -> None:
        """Add received bytes."""
        if self._live is not None:
            self._live.advance(self._task, received)


def _bars() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(file=sys.stderr)
    return Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True)


def megabytes(count: int) -> str:
    """Format a number of bytes in MB or kB."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def say(line: str) -> None:
    """Print a line to stderr."""
    print(line, file=sys.stderr, flush=True)
