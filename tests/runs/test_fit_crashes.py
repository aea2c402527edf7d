"""A run that crashes at any operation of its store continues to the same bits."""

import itertools
import random
import tempfile
from pathlib import Path

import pytest

import corymb
from corymb.algorithms.catalogue import CATALOGUE
from corymb.runs.folder.files import read_lines
from tests.runs import crashing

IN_FULL = ("alone", pytest.param("ifca", marks=pytest.mark.soak))
ENGINES = ("loop", "vectorised")
SAMPLE = 2
PARTS = 5
"""Tests that share the points and kills of an algorithm, for the sake of machines with many cores."""


@pytest.fixture(scope="module")
def whole():
    """Runs that nothing happened to, by algorithm, rounds and engine."""
    runs = {}

    def run(name, rounds=2, engine="vectorised"):
        if (name, rounds, engine) not in runs:
            runs[name, rounds, engine] = crashing.fit(name, rounds, engine=engine)
        return runs[name, rounds, engine]

    return run


@pytest.fixture
def place():
    """A folder in memory, where there is one: a crash of the process is the same there, and a sync takes no time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def check(name, point, folder, want, **options):
    """Crash there, resume, compare; False if the run ended before."""
    if not crashing.crashed(name, folder, point, **options):
        return False
    check_going_on(name, folder, want, **options)
    return True


def check_going_on(name, folder, want, **options):
    """Go on with what a crash left, compare."""
    before = read_lines(folder / "rounds.jsonl")
    again = crashing.gone_on(name, folder, **options)
    crashing.assert_same(again, want)
    sure = max(0, len(before) - 1)  # at most one round was done again
    assert read_lines(folder / "rounds.jsonl")[:sure] == before[:sure]
    crashing.assert_same(corymb.Run.load(folder), want)


@pytest.mark.parametrize("name", IN_FULL)
def test_a_crash_at_every_point_changes_nothing(name, whole, place):
    points, folders = crashing.left_behind(name, place / "run", place / "copies")
    assert points > 40
    assert len(folders) > 25
    for folder in folders:
        check_going_on(name, folder, whole(name))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if place % 3 == 0 else [pytest.mark.soak]) for place, name in enumerate(CATALOGUE)],
)
def test_a_crash_at_some_points_changes_nothing(name, whole, place):
    points = random.Random(name).sample(range(20, 40), SAMPLE)  # a run of two rounds has more
    for point, engine in zip(points, itertools.cycle(ENGINES), strict=False):
        assert check(name, point, place / str(point), whole(name, engine=engine), engine=engine)


def kill(name, rounds, instant, folder, whole, engine="vectorised"):
    """Kill a run after a share of its duration, kill it again after resuming, then compare."""
    want = whole(name, rounds, engine)
    if crashing.killed(name, folder, instant * want.seconds, rounds, engine=engine):
        rows = read_lines(folder / "rounds.jsonl")
        assert [row["clock"] for row in rows] == list(range(1, len(rows) + 1))
    crashing.assert_same(crashing.gone_on(name, folder, rounds, engine=engine), want)


@pytest.mark.parametrize("instant", [random.Random(seed).random() for seed in range(3)])
def test_a_kill_at_any_instant_changes_nothing(instant, whole, place):
    kill("alone", 30, instant, place / "run", whole)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CATALOGUE)
def test_every_point_and_fifty_kills(name, engine, part, whole, place):
    for point in itertools.count(1 + part, PARTS):
        if not check(name, point, place / f"crash-{point}", whole(name, engine=engine), engine=engine):
            break
    for seed in range(part, 50, PARTS):
        kill(name, 30, random.Random(f"{name} {seed}").random(), place / f"kill-{seed}", whole, engine)
