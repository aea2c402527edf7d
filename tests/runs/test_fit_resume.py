"""Resuming a run: what is used, what is refused, and what is not touched."""

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import corymb
from corymb.cli.app import main
from corymb.core.snapshot import Snapshot
from corymb.data import digits
from corymb.local import Descent
from corymb.runs.folder.checkpoints import clocks_in, manifest_path, read_checkpoint
from corymb.runs.folder.files import read_lines
from corymb.runs.folder.writer import CheckpointInfo, RunStore
from corymb.settings import InvalidInput
from tests.runs import crashing

ROUNDS = 6
COMMAND = [sys.executable, "-m", "corymb"]
SOURCE = Path(corymb.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def whole():
    return crashing.fit("alone", ROUNDS)


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory):
    """A run that came to its fourth round and then was cut off, with what it kept."""
    folder = tmp_path_factory.mktemp("cut-off") / "run"

    def show(row):
        if row["clock"] == 4:
            raise MemoryError

    with pytest.raises(MemoryError):
        crashing.fit("alone", ROUNDS, out=folder, progress=show)
    return folder


@pytest.fixture
def stopped(cut_off, tmp_path):
    """A separate copy of such a run, to resume or to damage."""
    return shutil.copytree(cut_off, tmp_path / "run")


def parts_of(folder, clock):
    manifest = json.loads(manifest_path(folder / "checkpoints", clock).read_text())
    return [folder / "checkpoints" / f"{sha}.safetensors" for sha in manifest["parts"].values()]


def memory_of(folder, clock):
    manifest = json.loads(manifest_path(folder / "checkpoints", clock).read_text())
    return [folder / "memory" / name for name, _ in manifest["memory"]]


def test_a_run_continues_from_its_last_round(stopped, whole):
    rows = []
    crashing.assert_same(crashing.fit("alone", ROUNDS, resume=stopped, progress=rows.append), whole)
    assert [row["clock"] for row in rows] == [5, 6]


def test_the_last_two_checkpoints_stay_and_the_best(stopped):
    scores = [row["metrics"]["test_accuracy"] for row in read_lines(stopped / "rounds.jsonl")]
    best = scores.index(max(scores)) + 1
    assert clocks_in(stopped / "checkpoints") == sorted({3, 4, best}, reverse=True)
    wanted = {path for clock in {3, 4, best} for path in parts_of(stopped, clock)}
    assert set((stopped / "checkpoints").glob("*.safetensors")) == wanted


DAMAGES = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("what", ["manifest", "part", "memory"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_used(damage, what, stopped, whole, caplog):
    paths = {
        "manifest": manifest_path(stopped / "checkpoints", 4),
        "part": parts_of(stopped, 4)[0],
        "memory": memory_of(stopped, 4)[-1],
    }
    damage(paths[what])
    rows = []
    crashing.assert_same(crashing.fit("alone", ROUNDS, resume=stopped, progress=rows.append), whole)
    assert rows[0]["clock"] == 4
    noticed = 0 if what == "manifest" and damage is DAMAGES["missing"] else 1
    assert caplog.text.count("trying the previous one") == noticed
    assert [event["what"] for event in read_lines(stopped / "audit.jsonl")] == ["refused"] * noticed


def test_an_edited_manifest_is_refused(stopped, whole, caplog):
    path = manifest_path(stopped / "checkpoints", 4)
    path.write_text(path.read_text().replace('"rounds": 4', '"rounds": 3'))
    crashing.assert_same(crashing.fit("alone", ROUNDS, resume=stopped), whole)
    assert "manifest was changed" in caplog.text


def test_a_checkpoint_of_another_run_is_refused(stopped, whole, tmp_path, caplog):
    other = tmp_path / "other"
    crashing.fit("alone", ROUNDS, out=other, seed=1)
    for path in (other / "checkpoints").iterdir():
        (stopped / "checkpoints" / path.name).write_bytes(path.read_bytes())
    for path in (other / "memory").iterdir():
        (stopped / "memory" / path.name).write_bytes(path.read_bytes())
    crashing.assert_same(crashing.fit("alone", ROUNDS, resume=stopped), whole)
    assert "belongs to another run" in caplog.text


def test_a_run_without_a_checkpoint_that_can_be_used_is_refused(stopped):
    for path in (stopped / "checkpoints").glob("*.json"):
        path.write_text("{}")
    with pytest.raises(InvalidInput, match="no usable checkpoint"):
        crashing.fit("alone", ROUNDS, resume=stopped)


def test_other_settings_and_other_data_are_refused(stopped):
    with pytest.raises(InvalidInput, match="another run"):
        corymb.fit(corymb.Alone(rounds=ROUNDS, local=Descent(lr=0.2)), crashing.data("alone"), resume=stopped)
    with pytest.raises(InvalidInput, match=r"The data are not those that the run in .* began with: give the same"):
        corymb.fit(crashing.algorithm("alone", ROUNDS), digits(clients=4, train=6, test=2), resume=stopped)
    with pytest.raises(InvalidInput, match="do not give `out` or `start`"):
        crashing.fit("alone", ROUNDS, resume=stopped, out=stopped)
    with pytest.raises(InvalidInput, match="not a folder"):
        crashing.fit("alone", ROUNDS, resume=stopped / "nothing")
    with pytest.raises(InvalidInput, match=r"no config\.toml"):
        crashing.fit("alone", ROUNDS, resume=stopped / "memory")


def test_recorded_settings_that_change_bits_are_used(tmp_path):
    options = {"memory": 4000, "precision": "float64", "kernel": "serial", "seed": 3, "checkpoint_every": 2}
    want = crashing.fit("ifca", 5, **options)
    with pytest.raises(ZeroDivisionError):
        crashing.fit("ifca", 5, out=tmp_path / "run", progress=lambda row: 1 // (4 - row["clock"]), **options)
    assert clocks_in(tmp_path / "run" / "checkpoints")[0] == 4
    again = crashing.fit("ifca", 5, resume=tmp_path / "run")
    crashing.assert_same(again, want)
    assert {**again.config, "record": 0} == {**want.config, "record": 0}


def test_another_kernel_than_the_runs_is_refused(stopped, monkeypatch):
    monkeypatch.setattr(
        "corymb.engines.vectorised.engine.VectorisedEngine.describe", lambda self: {"engine": "vectorised"}
    )
    with pytest.raises(InvalidInput, match="cannot be resumed exactly"):
        crashing.fit("alone", ROUNDS, resume=stopped)


def test_two_processes_on_one_folder_are_one_too_many(stopped):
    store = RunStore(stopped)
    store.reopen()
    child = crashing.forked(lambda: os._exit(_refused(stopped)))
    assert crashing.ended(child) == 42
    store.close()


def _refused(folder):
    try:
        crashing.fit("alone", ROUNDS, resume=folder)
    except InvalidInput as problem:
        return 42 if "Another process" in str(problem) else 1
    return 1


def test_a_full_disk_loses_nothing(tmp_path, whole, monkeypatch):
    folder, original = tmp_path / "run", os.write

    def full(handle, data):
        if len(read_lines(folder / "rounds.jsonl")) >= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(handle, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"The disk is full: .* Earlier rounds are saved"):
            crashing.fit("alone", ROUNDS, out=folder)
    assert not list(folder.rglob("*.new"))
    assert len(corymb.Run.load(folder).history) >= 2
    crashing.assert_same(crashing.fit("alone", ROUNDS, resume=folder), whole)


def test_a_killed_run_can_be_loaded(stopped):
    run = corymb.Run.load(stopped)
    assert run.stopped == "killed"
    assert [row["clock"] for row in run.history] == [1, 2, 3, 4]
    assert run.metrics == run.history[-1]["metrics"]
    with (stopped / "rounds.jsonl").open("ab") as file:
        file.write(b'{"clock": 5, "rou')
    assert len(corymb.Run.load(stopped).history) == 4


def test_a_given_start_is_the_first_checkpoint(tmp_path):
    first = crashing.fit("ifca", 2)
    want = crashing.fit("ifca", 4, start=first.snapshot)
    child = crashing.forked(lambda: _begin_and_die(first.snapshot, tmp_path / "run"))
    assert crashing.ended(child) == crashing.CRASHED
    crashing.assert_same(crashing.fit("ifca", 4, resume=tmp_path / "run"), want)


def _begin_and_die(snapshot, folder):
    crashing.fit("ifca", 4, start=snapshot, out=folder, progress=lambda row: os._exit(crashing.CRASHED))


def test_large_parts_that_stay_are_stored_once(tmp_path):
    store, big = RunStore(tmp_path), torch.arange(30_000.0)
    store.create({}, "a run")
    for clock in (1, 2):
        models = {"a": torch.full((2, 30_000), float(clock))}
        at = Snapshot(models=models, labels=torch.zeros(3, dtype=torch.int64), carry={"best": big, "t": big[:clock]})
        store.checkpoint(replace(at, clock=clock), CheckpointInfo({}, {}, 0.0, None, {}))
    store.close()
    assert len(list((tmp_path / "checkpoints").glob("*.safetensors"))) == 5  # twice the rest and models, once the best
    _, again = read_checkpoint(tmp_path / "checkpoints", 2, "a run", 0)
    assert torch.equal(again.carry["best"], big)
    assert torch.equal(again.models["a"], models["a"])


def test_memory_that_nobody_keeps_does_not_grow():
    run = crashing.fit("alone", ROUNDS)
    fed, _ = run.serving
    assert not fed._engine.host.memory._undo


# ---- the command line


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


LINE = "digits ifca --k 2 --rounds 3 --threads 1 -q --json"


def run_json(line, capsys):
    assert main(shlex.split(line)) == 0
    return json.loads(capsys.readouterr().out)


def test_runs_are_numbered_and_never_overwritten(here, capsys):
    folders = [run_json(f"run {LINE}", capsys)["folder"] for _ in range(2)]
    assert folders == ["runs/digits-ifca-1", "runs/digits-ifca-2"]
    assert main(shlex.split(f"run {LINE} --out {folders[0]}")) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_finished_run_prints_its_result_again(here, capsys):
    first = run_json(f"run {LINE} --out mine", capsys)
    again = run_json("resume mine --json", capsys)
    assert again == first


def test_a_failed_beginning_leaves_no_folder(here, capsys):
    assert main(shlex.split("run digits ifca --k 2 --model cnn -q")) == 2
    assert not list((here / "runs").iterdir())


LONGER = "digits fedavg --rounds 30 --threads 1 --evaluate_every 0"


@pytest.fixture(scope="module")
def unasked(tmp_path_factory):
    """The folder of the longer run that was not stopped."""
    folder = tmp_path_factory.mktemp("unasked") / "whole"
    assert main([*shlex.split(f"run {LONGER} -q --out"), str(folder)]) == 0
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_stopped_run_is_saved_and_suggests_how_to_resume(number, here, unasked, capsys):
    command = [*COMMAND, "run", *LONGER.split(), "--out", "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        for _ in range(3):
            process.stderr.readline()
        process.send_signal(number)
        output = process.stderr.read()
        assert process.wait() == 130, output
    assert "corymb resume run" in output
    assert main(["resume", "run", "--json", "-q"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert "stopped" not in got
    run, want = (corymb.Run.load(folder) for folder in ("run", unasked))
    assert got["labels"] == want.labels
    assert got["metrics"] == want.metrics
    assert all(torch.equal(run.models[name], want.models[name]) for name in want.models)


def test_max_seconds_stops_and_the_rest_can_follow(here, capsys):
    want = run_json(f"run {LINE} --out whole", capsys)
    stopped = run_json(f"run {LINE} --out run --max_seconds 0", capsys)
    assert stopped["stopped"] == "max_seconds"
    got = run_json("resume run -q --json", capsys)
    assert {**got, "seconds": 0, "folder": 0} == {**want, "seconds": 0, "folder": 0}


def test_a_run_begun_in_python_is_resumed_there(stopped, capsys):
    assert main(["resume", str(stopped), "-q"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["fedavg", "alone", "cfl", "fedsoft", "one-shot", "oracle", "one-shot-ifca"])
def test_a_run_that_has_ended_continues_as_if_it_had_been_planned_longer(name, tmp_path):
    crashing.fit(name, 2, out=tmp_path / "run")
    longer = crashing.fit(name, 5, resume=tmp_path / "run")
    crashing.assert_same(longer, crashing.fit(name, 5, out=tmp_path / "whole"))
    one, other = (tomllib.loads((tmp_path / name / "config.toml").read_text()) for name in ("run", "whole"))
    assert one == other
    assert corymb.Run.load(tmp_path / "run").history == longer.history


def test_a_run_that_was_stopped_continues_longer_too(stopped):
    crashing.assert_same(crashing.fit("alone", 9, resume=stopped), crashing.fit("alone", 9))


def test_a_run_killed_while_it_continues_longer_continues_to_its_new_end(tmp_path):
    crashing.fit("alone", 2, out=tmp_path / "run")

    def show(row):
        if row["clock"] == 4:
            raise MemoryError

    with pytest.raises(MemoryError):
        crashing.fit("alone", 6, resume=tmp_path / "run", progress=show)
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["rounds"] == 6
    assert corymb.Run.load(tmp_path / "run").stopped == "killed"
    crashing.assert_same(crashing.fit("alone", 6, resume=tmp_path / "run"), crashing.fit("alone", 6))


@pytest.mark.parametrize(
    "algorithm",
    [corymb.IFCA(k=2, rounds=2, restarts=2), corymb.SRFCA(rounds=2), corymb.SRFCA(rounds=1, refinements=1)],
)
def test_a_run_whose_rounds_are_not_its_last_is_not_made_longer(algorithm, tmp_path):
    before = corymb.fit(algorithm, crashing.TABLE, out=tmp_path / "run")
    with pytest.raises(InvalidInput, match=f"cannot be extended from {algorithm.rounds} to 4 rounds"):
        corymb.fit(replace(algorithm, rounds=4), crashing.TABLE, resume=tmp_path / "run")
    assert corymb.Run.load(tmp_path / "run").to_dict() == before.to_dict() | {
        "config": json.loads(json.dumps(before.config))
    }


def test_the_resume_command_can_extend_a_run(here, capsys):
    for name, rounds in (("run", 2), ("whole", 4)):
        line = f"run digits ifca --k 2 --no-repair --rounds {rounds} --threads 1 -q --json --out {name}"
        want = run_json(line, capsys)
    got = run_json("resume run --rounds 4 -q --json", capsys)
    assert {**got, "seconds": 0, "folder": 0} == {**want, "seconds": 0, "folder": 0}
    assert run_json("resume run --rounds 4 -q --json", capsys) == got
    assert main(["resume", "run", "--rounds", "3"]) == 2
    assert "already has 4 planned" in capsys.readouterr().err


def test_the_rounds_of_the_last_stage_are_those_that_grow(here, capsys):
    run_json("run digits oracle --inner.rounds 2 -q --json --out run", capsys)
    assert run_json("resume run --rounds 3 -q --json", capsys)["config"]["inner"]["rounds"] == 3
    run_json("run digits local-kmeans --k 2 -q --json --out means", capsys)
    assert main(["resume", "means", "--rounds", "3"]) == 2
    assert "has no setting for rounds" in capsys.readouterr().err


def test_time_that_is_up_inside_the_first_round_is_one_line(monkeypatch):
    monkeypatch.setattr("corymb.runs.progress.GRACE", -1.0)
    data = corymb.datasets.digits(clients=8, train=20, test=10)
    with pytest.raises(InvalidInput, match=r"max_seconds=1e-09 expired in the first round, after 0 of 8 clients; give"):
        corymb.fit(corymb.FedAvg(rounds=2), data, engine="loop", max_seconds=1e-9)


def test_no_time_at_all_is_one_round_however_slow(monkeypatch):
    monkeypatch.setattr("corymb.runs.progress.GRACE", -1.0)
    data = corymb.datasets.digits(clients=8, train=20, test=10)
    run = corymb.fit(corymb.FedAvg(rounds=2), data, engine="loop", max_seconds=0)
    assert (run.stopped, len(run.history)) == ("max_seconds", 1)
