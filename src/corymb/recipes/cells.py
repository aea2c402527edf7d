"""Runs many small experiments once each and saves their results: the cells of a paper's tables.

A cell is a name such as `setting/method/seed`; a function `work(name)` runs it and returns plain values. Its result is
one JSON file in a folder, written atomically, so that an interrupted reproduction can be continued: cells with a file
are read, not run again. A cell that fails is logged and not saved; the others continue. Several processes may work in
the same folder: each claims the cell that it runs, and the others skip it.
"""

from __future__ import annotations

import importlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from corymb.data.fetching.home import DataUnavailable
from corymb.runs.run import Run
from corymb.settings import first_line, require

log = logging.getLogger(__name__)
Work = Callable[[str], dict[str, Any]]


class Cells(NamedTuple):
    """The outcome of the requested cells."""

    results: dict[str, Any]
    """The result of each cell, in the order requested."""
    failed: dict[str, str]
    """The error of each cell that failed."""
    left: list[str]
    """Cells that were out of time, or that another process is running."""


class CellsFailed(OSError):
    """Raised if cells failed; the message is one line with the reason of the first."""


def run_cells(
    work: str,
    names: Sequence[str],
    folder: Path,
    *,
    workers: int = 1,
    seconds: float | None = None,
    needs: Callable[[str], str] = lambda name: "",
) -> Cells:
    """Run the cells that are not in `folder` yet, in this order.

    `work` is the import path of the function, `module:name`, since cells run in worker processes with one thread each
    (with one worker and no time limit, in this process). After `seconds` no cell is started, and unfinished ones are
    terminated. `needs` gives the name of the data set that a cell needs: if it is unavailable, all cells that need it
    fail for the same reason without another attempt to obtain it.
    """
    require(len(set(names)) == len(names), "Two cells have the same name: names must differ.")
    require(workers >= 1, f"workers must be at least 1, got {workers}.")
    require(seconds is None or seconds == seconds, f"seconds must be a number, got {seconds}.")
    folder.mkdir(parents=True, exist_ok=True)
    found = {name: value for name in names if (value := read_cell(folder, name)) is not None}
    todo = [name for name in names if name not in found]
    if todo:
        tempfile.TemporaryFile(dir=folder).close()  # a read-only folder fails now, not after hours of work
    failed: dict[str, str] = {}
    missing: dict[str, str] = {}

    def runnable() -> Iterator[str]:
        """Cells to start, chosen lazily: by then the data of some may be known to be unavailable."""
        for name in todo:
            if needs(name) in missing:
                failed[name] = missing[needs(name)]
            else:
                yield name

    for name, value in _begun(work, runnable(), folder, workers, seconds):
        if isinstance(value, BaseException):
            failed[name] = (
                str(value) if isinstance(value, DataUnavailable) else first_line(value)
            )  # its message is complete
            data = needs(name) if isinstance(value, DataUnavailable) else ""
            if data in missing:  # already reported by a cell that ran at the same time
                continue
            others = [other for other in todo if data and needs(other) == data and other != name]
            missing |= {data: failed[name]} if data else {}
            same = f" The other {len(others)} cells that need {data} are skipped." if others else ""
            log.warning("cell %s failed: %s%s", name, failed[name], same)
        elif value is None:
            log.warning("cell %s is skipped: another process is running it", name)
            continue
        else:
            found[name] = cell_result(value)
        print(f"{len(found)}/{len(names)}  {name}", file=sys.stderr, flush=True)
    for name in names:  # cells that another process has finished meanwhile
        if name not in found and name not in failed and (value := read_cell(folder, name)) is not None:
            found[name] = value
    return Cells(
        {name: found[name] for name in names if name in found},
        failed,
        [name for name in names if name not in found and name not in failed],
    )


Done = Iterator[tuple[str, Any]]


def _begun(work: str, names: Iterator[str], folder: Path, workers: int, seconds: float | None) -> Done:
    """Yield the result of every cell as it ends. A time limit needs processes, so that cells can be terminated."""
    if workers == 1 and seconds is None:
        return _one_by_one(work, names, folder)
    return _in_processes(work, names, folder, workers, None if seconds is None else time.monotonic() + seconds)


def _one_by_one(work: str, names: Iterator[str], folder: Path) -> Done:
    for name in names:
        try:
            yield name, attempt(work, name, folder)
        except Exception as error:  # a failing cell must not end the others
            yield name, error


def _in_processes(work: str, names: Iterator[str], folder: Path, workers: int, end: float | None) -> Done:
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin, initargs=(os.getpid(), workers))
    running: dict[Future[Any], str] = {}
    try:
        while True:
            while len(running) < workers and (end is None or time.monotonic() < end):
                if (name := next(names, None)) is None:
                    break
                try:
                    with _interrupts_ignored():
                        running[pool.submit(attempt, work, name, folder)] = name
                except BrokenProcessPool as error:  # a worker was killed
                    yield name, error
            if not running:
                return
            left = None if end is None else max(0.0, end - time.monotonic())
            done, _ = wait(running, timeout=left, return_when=FIRST_COMPLETED)
            if not done:
                return
            for one in done:
                yield running.pop(one), one.exception() or one.result()
    finally:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=not running, cancel_futures=True)
        for process in processes if running else []:  # out of time: the cell starts over in the next run
            process.terminate()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Block SIGINT in processes started meanwhile: a terminal sends Ctrl-C to all, but only the parent handles it."""
    if not hasattr(signal, "pthread_sigmask"):  # not Unix
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(parent: int, workers: int) -> None:
    """Initialise a worker: one thread if there are several workers, and exit when the parent process is gone."""
    if workers > 1:
        torch.set_num_threads(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def attempt(work: str, name: str, folder: Path) -> dict[str, Any] | None:
    """Run a cell and save its result; None if another process is running it."""
    with _claimed(folder, name) as mine:
        if not mine:
            return None
        result = read_cell(folder, name)  # another process may have been faster
        return write_cell(folder, name, timed(work, name)) if result is None else {"result": result}


@contextmanager
def _claimed(folder: Path, name: str) -> Iterator[bool]:
    """Claim a cell; False if another process holds it. A claim is a file lock, so it ends with its process."""
    try:
        import fcntl
    except ImportError:  # not Unix: two processes may run the same cell, and the last result is kept
        yield True
        return
    place = place_of(folder, name).with_suffix(".claim")
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            place.unlink(missing_ok=True)


def timed(work: str, name: str) -> dict[str, Any]:
    """Run a cell; returns its result with its name and duration."""
    module, _, function = work.partition(":")
    began = time.monotonic()
    result = getattr(importlib.import_module(module), function)(name)
    return {"cell": name, "seconds": round(time.monotonic() - began, 2), "result": result}


def whole(run: Run) -> Run:
    """Return the run, or raise KeyboardInterrupt if it was interrupted: a partial run is not a cell's result."""
    if run.stopped == "interrupted":
        raise KeyboardInterrupt
    return run


def device_name() -> str:
    """The device that a cell runs on, as recorded in its result."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def place_of(folder: Path, name: str) -> Path:
    """The file of a cell."""
    parts = name.split("/")
    good = all(part and part not in (".", "..") and "\\" not in part for part in parts)
    require(good, f"{name!r} is not a valid name for a cell: use non-empty parts separated by slashes.")
    return folder.joinpath(*parts[:-1]) / f"{parts[-1]}.json"


def read_cell(folder: Path, name: str) -> Any:
    """The result of a cell; None if it has not been run or its file is corrupt, which is logged."""
    place = place_of(folder, name)
    if not place.is_file():
        return None
    try:
        return cell_result(json.loads(place.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError):
        log.warning("%s is corrupt; the cell counts as not run", place)
        return None


def cell_result(kept: dict[str, Any]) -> Any:
    """The result in a cell's file, with its duration added if the result names a device and has no duration itself."""
    result = kept["result"]
    return {"seconds": kept["seconds"], **result} if "device" in result and "seconds" in kept else result


def write_cell(folder: Path, name: str, value: dict[str, Any]) -> dict[str, Any]:
    """Save a cell's result atomically; returns it as saved (rounded)."""
    kept: dict[str, Any] = rounded(value)
    place = place_of(folder, name)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8", suffix=".part") as file:
        file.write(json.dumps(kept, ensure_ascii=False) + "\n")
    os.replace(file.name, place)
    return kept


def rounded(value: Any) -> Any:
    """Round every float to six significant digits, to keep files small."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
