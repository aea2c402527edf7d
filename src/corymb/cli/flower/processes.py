"""Processes that outlive the command that starts them; each is identified by its pid and its start time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from corymb.pids import began

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Turns off Flower's telemetry, update checks and installation of apps' dependencies."""


class Process(NamedTuple):
    """A process that was started; `began` distinguishes it from a later one with the same pid."""

    name: str
    pid: int
    began: str


def quiet_environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's processes: their files are in `home`, and Flower's programs are on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path, **more}


def spawn(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path) -> Process:
    """Start a process that keeps running when this one ends."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, cwd=cwd, start_new_session=True
        )
    started.returncode = 0  # nothing waits for it: `alive` and `end` use the pid
    return Process(name, started.pid, began(started.pid))


def alive(process: Process) -> bool:
    """Whether the process still runs."""
    with suppress(ChildProcessError, OSError):
        os.waitpid(process.pid, os.WNOHANG)  # reap a child that has ended
    return bool(process.began) and began(process.pid) == process.began


def end(processes: Sequence[Process], seconds: float = 10.0) -> None:
    """Ask processes to end, and kill those that have not after `seconds`."""
    for number, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        left = [process for process in processes if alive(process)]
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        until = time.monotonic() + wait
        while any(map(alive, left)) and time.monotonic() < until:
            time.sleep(0.1)


def remember(path: Path, processes: Sequence[Process]) -> None:
    """Record the processes that were started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps([process._asdict() for process in processes], indent=1), encoding="utf-8")
    temporary.replace(path)


def remembered(path: Path) -> list[Process]:
    """The recorded processes."""
    try:
        return [Process(**process) for process in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
