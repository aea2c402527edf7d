"""Runs that crash: a forked child ends itself at a chosen write, fsync, rename or removal, or is killed."""

import hashlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

import corymb
from corymb.algorithms.catalogue import CATALOGUE
from corymb.core.federation import each
from corymb.core.snapshot import Algorithm
from corymb.data import FederatedDataset, mixed_regression_ifca
from corymb.local import Descent
from corymb.runs.defaults import configure
from corymb.runs.fit import as_dataset
from corymb.runs.run import Run
from corymb.trees import leaves
from tests.runs import small

CRASHED = 9
OPERATIONS = ("write", "fsync", "replace", "unlink")
TABLE = as_dataset(small.arrays(clients=4, rows=10), seed=0)
LINES = mixed_regression_ifca(n=12, m=20, d=3, test=4)
LOCAL = Descent(lr=0.3, steps=2)


def data(name: str) -> FederatedDataset:
    """Tiny data for an algorithm: a table that is standardised, or, as not all take classes, lines."""
    return TABLE if name in ("ifca", "alone") else LINES


def algorithm(name: str, rounds: int = 2) -> Algorithm:
    """An algorithm of the catalogue, for tiny data."""
    short = {"rounds": rounds}
    known = {
        **short,
        "local": replace(LOCAL, optimiser="adam", lr=1e-3) if name == "clustergan" else LOCAL,
        "alone": LOCAL,
        "k": 2,
        "min_panel": 2,
        "anchors": 4,
        "iterations": 2,
        "subspace_steps": 2,
        "inner": short,
        "then": short,
    }
    names = CATALOGUE[name].algorithm.__dataclass_fields__
    return configure(name, data(name), **{field: value for field, value in known.items() if field in names})


def fit(name: str, rounds: int = 2, **options) -> Run:
    """A run that touches everything: evaluated in every round, with a checkpoint in every round."""
    return corymb.fit(algorithm(name, rounds), data(name), evaluate_every=1, threads=1, **options)


def forked(work) -> int:
    """Do something in a child; the process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which here sleep
        child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:  # whatever it is, the child must not come back into the test
        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def ended(child: int) -> int:
    """The exit code of a child, when it ends."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def crash_at(point: int):
    """From now on, end the process at the given operation of the store; a write is cut in half."""
    seen = 0
    originals = {name: getattr(os, name) for name in OPERATIONS}

    def patched(name):
        def operation(*args, **options):
            nonlocal seen
            seen += 1
            if seen == point:
                if name == "write":
                    originals["write"](args[0], bytes(args[1])[: len(args[1]) // 2])
                os._exit(CRASHED)
            return originals[name](*args, **options)

        return operation

    for name in OPERATIONS:
        setattr(os, name, patched(name))


def crashed(name: str, folder: Path, point: int, rounds: int = 2, **options) -> bool:
    """Begin a run in a child that crashes at a point; whether it got there."""

    def work():
        crash_at(point)
        fit(name, rounds, out=folder, **options)

    code = ended(forked(work))
    assert code in (0, CRASHED), f"the child failed at point {point}"
    return code == CRASHED


def left_behind(name: str, folder: Path, copies: Path) -> tuple[int, list[Path]]:
    """How many operations of the store a run has, and each folder that a crash at one of them would leave.

    A crash at an operation leaves what the operations before it did, and of a write the first half. Operations before
    which nothing changed (a sync, say) leave the same, of which there is one copy.
    """
    originals = {name: getattr(os, name) for name in OPERATIONS}
    seen: dict[str, Path] = {}
    points = 0

    def keep():
        copy = copies / str(points)
        if folder.exists():
            shutil.copytree(folder, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        content = [[str(path.relative_to(copy)), hashlib.sha256(path.read_bytes()).hexdigest()] for path in files]
        seen.setdefault(json.dumps([folder.exists(), content]), copy)

    def patched(name):
        def operation(*args, **options):
            nonlocal points
            points += 1
            if name != "write":
                keep()
                return originals[name](*args, **options)
            handle, whole = args[0], bytes(args[1])
            done = originals["write"](handle, whole[: len(whole) // 2])
            keep()
            return done + originals["write"](handle, whole[done:])

        return operation

    with mock.patch.multiple(os, **{name: patched(name) for name in OPERATIONS}):
        fit(name, out=folder)
    return points, list(seen.values())


def killed(name: str, folder: Path, after: float, rounds: int, **options) -> bool:
    """Begin a run in a child and kill it after so many seconds; whether it still ran."""
    child = forked(lambda: fit(name, rounds, out=folder, **options))
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return ended(child) == -signal.SIGKILL


def gone_on(name: str, folder: Path, rounds: int = 2, **options) -> Run:
    """The run that was cut short, to its end; from its beginning, where it did not come that far."""
    if (folder / "config.toml").exists():
        return fit(name, rounds, resume=folder, **options)
    return fit(name, rounds, out=folder, **options)


def own_models(run: Run) -> list[torch.Tensor]:
    """The model that each client is served, where clients keep theirs."""
    if run.serving is None:
        return []
    fed, serve = run.serving
    return leaves(fed.clients.map(serve, run.models, each(run.snapshot.labels), None).value)


def assert_same(got: Run, want: Run) -> None:
    """Two runs are equal bit for bit: snapshot, client memory, history, ledger and metrics."""
    for name in ("round", "stage", "notes", "seed", "clock", "fingerprint"):
        assert getattr(got.snapshot, name) == getattr(want.snapshot, name), name
    trees = [
        leaves((s.models, s.labels, s.shares, dict(sorted(s.carry.items())))) for s in (got.snapshot, want.snapshot)
    ]
    assert len(trees[0]) == len(trees[1])
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(*trees, strict=True))
    if got.serving is not None:
        assert all(torch.equal(a, b) for a, b in zip(own_models(got), own_models(want), strict=True))
    assert [_untimed(row) for row in got.history] == [_untimed(row) for row in want.history]
    assert got.ledger == want.ledger
    assert got.metrics == want.metrics
    assert got.labels == want.labels
    if want.losses is not None:
        assert torch.equal(got.losses, want.losses)


def _untimed(row):
    return {key: value for key, value in json.loads(json.dumps(row)).items() if key != "seconds"}
