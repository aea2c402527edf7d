"""Keeps processes running: one that ends is restarted. `python -m …supervise STATE NAME COMMAND …`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from corymb.cli.flower.processes import Process, alive, end, quiet_environment, remember, remembered
from corymb.pids import began

RESTART = 2.0
STEADY = 60.0
"""Seconds before a process that has ended is restarted: doubled each time, up to the second number."""
CHECK_SECONDS = 10.0
"""Seconds between checks whether running processes are `hopeless`."""
RECORD = "processes.json"


def keep_running(
    commands: dict[str, Sequence[str]],
    state: Path,
    hopeless: Callable[[bool], str] = lambda ended: "",
    **environment_too: str,
) -> str:
    """Run processes until signalled to end, restarting those that end; returns why if restarting is `hopeless`.

    `hopeless` is called with whether a process has ended: each time one has, and every `CHECK_SECONDS`.
    """
    end(remembered(state / RECORD))  # left by a supervisor that was killed
    stopped = threading.Event()
    _on_signals(lambda: stopped.set())
    environment = quiet_environment(state / "flower", PYTHONPATH=os.pathsep.join(_importable()), **environment_too)
    running: dict[str, subprocess.Popen[bytes]] = {}
    problem, next_check = "", time.monotonic() + CHECK_SECONDS
    waits, started, due = dict.fromkeys(commands, RESTART), dict[str, float](), dict[str, float]()
    while not stopped.is_set():
        for name, command in commands.items():
            now, process = time.monotonic(), running.get(name)
            if process is not None and process.poll() is None:
                if now - started[name] > STEADY:
                    waits[name] = RESTART  # it has run long enough to count as healthy
                continue
            if process is not None and name not in due:
                if problem := hopeless(True):
                    stopped.set()
                    break
                print(f"{name} ended with {process.returncode}: it is started again in {waits[name]:.0f} s", flush=True)
                due[name], waits[name] = now + waits[name], min(STEADY, waits[name] * 2)
            if now >= due.get(name, 0.0):
                # in a group of their own: Ctrl-C in a terminal is for this process, which ends them in order
                running[name] = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=0)
                started[name] = now
                due.pop(name, None)
                remember(state / RECORD, [_known(n, p) for n, p in running.items()])
        if not stopped.wait(0.5) and time.monotonic() >= next_check:
            next_check = time.monotonic() + CHECK_SECONDS
            if problem := hopeless(False):
                break
    end([known for n, p in running.items() if alive(known := _known(n, p))])
    for process in running.values():
        process.poll()  # `end` has already waited for its pid
    return problem


def _known(name: str, process: subprocess.Popen[bytes]) -> Process:
    return Process(name, process.pid, began(process.pid))


def _importable() -> list[str]:
    """The import path for child processes: this process's own, with the working folder first for the user's modules."""
    return [os.getcwd(), *(path for path in sys.path if path and Path(path).is_dir())]


def _on_signals(stop: Callable[[], None]) -> None:
    def handle(number: int, frame: FrameType | None) -> Any:
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores that its terminal was closed
        signal.signal(signal.SIGHUP, handle)


if __name__ == "__main__":
    keep_running({sys.argv[2]: sys.argv[3:]}, Path(sys.argv[1]))
