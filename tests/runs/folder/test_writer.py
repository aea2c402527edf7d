"""Files that survive a crash, client memory on disk, and which checkpoints stay."""

import json
import threading

import numpy as np
import pytest
import torch

import corymb
from corymb.core.client import Slot
from corymb.core.engine import Version
from corymb.engines.memory import MemoryStore
from corymb.runs.folder import checkpoints, writer
from corymb.runs.folder.checkpoints import Manifest, Refused, to_keep
from corymb.runs.folder.files import Lines, Lock, Writer, read_lines, write_file
from corymb.runs.folder.layout import TEMPORARY, check_free, new_folder
from corymb.runs.folder.memory_log import FolderJournal, files_of
from corymb.runs.stopping import Stopper
from corymb.settings import InvalidInput
from tests.runs import small

CPU = torch.device("cpu")
EVERY = {"train": 3, "test": 3}


def manifest(clock, score=None):
    return Manifest(run="r", clock=clock, rounds=clock, audit=0, parts={}, score=score)


def test_the_last_two_and_the_best_are_kept():
    assert to_keep([manifest(1, 0.9), manifest(2, 0.5), manifest(3), manifest(4, 0.9)]) == {1, 3, 4}
    assert to_keep([manifest(1), manifest(2), manifest(3)]) == {2, 3}
    assert to_keep([manifest(7)]) == {7}


def test_a_manifest_round_trips_unless_it_was_modified():
    one = manifest(3, 0.5)
    assert Manifest.from_bytes(one.to_bytes()) == one
    for damaged in (b"", one.to_bytes()[:-5], b"[]", one.to_bytes().replace(b'"clock": 3', b'"clock": 4')):
        with pytest.raises(Refused):
            Manifest.from_bytes(damaged)
    newer = json.dumps({**json.loads(one.to_bytes()), "format": 99}).encode()
    with pytest.raises(Refused, match="has format 99"):
        Manifest.from_bytes(newer)


def test_a_tensor_that_is_carried_on_is_packed_and_hashed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "LARGE", 1)
    packed, whole = [], writer.take_apart
    monkeypatch.setattr(writer, "take_apart", lambda *given: packed.append(whole(*given)) or packed[-1])
    algorithm = corymb.SRFCA(rounds=3, threshold=1.0, refinements=1)
    run = corymb.fit(algorithm, small.arrays(), out=tmp_path / "run", until="rounds")
    names = [name for pieces in packed for name in pieces]
    assert names.count("rest") == len(run.history)
    assert names.count("carry/known") == names.count("carry/members") == 1
    last = Manifest.from_bytes(max((tmp_path / "run" / "checkpoints").glob("*.json")).read_bytes())
    assert "carry/known" in last.parts
    _, snapshot = checkpoints.read_checkpoint(tmp_path / "run" / "checkpoints", last.clock, last.run, last.rounds)
    assert torch.equal(snapshot.carry["known"], run.snapshot.carry["known"])


def test_a_tensor_that_was_changed_in_place_is_packed_again():
    tensor = torch.zeros(3)
    held = writer.Carried.of(tensor, "sha")
    assert held.holds(tensor)
    assert not held.holds(tensor.clone())
    assert not held.holds(None)
    tensor.add_(1)
    assert not held.holds(tensor)


def test_a_tensor_that_numpy_could_have_changed_is_packed_again():
    """Torch's count of changes does not see NumPy's."""
    tensor = torch.zeros(3)
    held, shared = writer.Carried.of(tensor, "sha"), tensor.numpy()
    shared[0] = 1
    assert tensor._version == held.version
    assert not held.holds(tensor)
    array = np.zeros(3)
    tensor = torch.from_numpy(array)
    assert not writer.Carried.of(tensor, "sha").holds(tensor)
    assert not writer.Carried.of(tensor[1:], "sha").holds(tensor[1:])


@pytest.mark.parametrize("distance", ["losses", "l2"])
def test_a_resumed_run_also_packs_what_is_carried_on_once(distance, tmp_path, monkeypatch):
    def stop(row):
        raise corymb.StopRun

    monkeypatch.setattr(checkpoints, "LARGE", 1)
    algorithm = corymb.SRFCA(rounds=3, threshold=1e9, refinements=1, distance=distance)
    where = tmp_path / "run"
    rounds = iter(range(3))  # after clients were compared
    corymb.fit(
        algorithm, small.arrays(), out=where, until="rounds", callbacks=[lambda row: next(rounds) == 2 and stop(row)]
    )
    packed, whole = [], writer.take_apart
    monkeypatch.setattr(writer, "take_apart", lambda *given: packed.append(whole(*given)) or packed[-1])
    run = corymb.fit(algorithm, small.arrays(), resume=where)
    assert len(run.history) - 3 == len(packed) == 3
    assert [name for pieces in packed for name in pieces].count("carry/known") == 1


def test_lines_are_read_to_the_last_full_one(tmp_path):
    lines = Lines(tmp_path / "a.jsonl")
    lines.keep([{"a": 1}])
    lines.append([{"a": 2}, {"a": 3}])
    lines.sync()
    lines.close()
    assert lines.count == 3
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"a": 4')
    assert read_lines(tmp_path / "a.jsonl") == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert read_lines(tmp_path / "nothing") == []


def test_a_file_is_whole_or_not_there(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_file(tmp_path / "nowhere" / "a", b"x")
    write_file(tmp_path / "a", b"x")
    write_file(tmp_path / "a", b"y" * 100)
    assert (tmp_path / "a").read_bytes() == b"y" * 100
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_errors_in_the_writer_thread_are_raised_at_the_next_call():
    writer = Writer()
    writer.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        writer.submit(lambda: None)
    writer.close()


def test_a_lock_is_for_one(tmp_path):
    lock = Lock(tmp_path / "lock")
    with pytest.raises(InvalidInput, match="Another process"):
        Lock(tmp_path / "lock")
    lock.release()
    Lock(tmp_path / "lock").release()


def test_folders_are_numbered(tmp_path):
    assert [new_folder(tmp_path / "runs", "a").name for _ in range(3)] == ["a-1", "a-2", "a-3"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    with pytest.raises(InvalidInput, match="not empty"):
        check_free(tmp_path / "mine")


def test_a_stop_waits_until_a_round_is_saved():
    stopper, done = Stopper(), []

    def save():
        with stopper.shielded():
            stopper._asked_to_stop(2, None)
            done.append("saved")

    with pytest.raises(KeyboardInterrupt):
        save()
    assert done == ["saved"]
    with pytest.raises(KeyboardInterrupt):
        stopper._asked_to_stop(2, None)
    thread = threading.Thread(target=lambda: done.append(stopper.listening().__enter__()))
    thread.start()
    thread.join()
    assert done == ["saved", None]


# ---- client memory


def memory(n=4):
    sizes = torch.full((n,), 3)
    return MemoryStore({"train": sizes, "test": sizes})


def put(store, clock, ids, value, name="a", along=None):
    rows = torch.full((len(ids), 3 if along else 2), float(value))
    store.write(
        Version(clock, 1), torch.tensor(ids), {name: Slot({"w": rows}, torch.ones(len(ids), dtype=torch.bool), along)}
    )


def everything(store):
    slots = store.read(torch.arange(4), EVERY)
    return {name: (slot.value["w"].tolist(), slot.present.tolist(), slot.along) for name, slot in slots.items()}


def commit(store, journal, clock, keep=()):
    journal.commit(clock, {clock, *keep}, *store.export())
    store.forget_before(clock)
    for path, data in journal.hand_over():
        path.write_bytes(data)


def again(journal, clock):
    store = memory()
    store.restore(Version(clock, 0), journal.read(clock), CPU)
    return store


def test_memory_is_restored_from_its_journal_at_every_kept_clock(tmp_path):
    store, journal, wanted = memory(), FolderJournal(tmp_path), {}
    writes = [([0, 1, 2, 3], 1.0), ([2], 2.0), ([0], 3.0), ([], 0.0), ([0, 1, 2, 3], 4.0), ([1], 5.0)]
    for clock, (ids, value) in enumerate(writes, 1):
        if ids:
            put(store, clock - 1, ids, value)
            put(store, clock - 1, ids, -value, "b", along="train")
        commit(store, journal, clock, keep=range(10))
        wanted[clock] = everything(store)
    for clock, want in wanted.items():
        assert everything(again(journal, clock)) == want
    assert [len(journal.chains[clock]) for clock in wanted] == [1, 2, 3, 3, 1, 2]  # all rows again when it pays
    assert files_of([journal.chains[6]]) == {"00000005.safetensors", "00000006.safetensors"}


def test_restored_memory_can_be_written_again(tmp_path):
    store, journal = memory(), FolderJournal(tmp_path)
    put(store, 0, [0, 1], 1)
    commit(store, journal, 1)
    put(store, 1, [1, 2], 2)
    commit(store, journal, 2, keep={1})
    other = again(journal, 1)
    put(other, 1, [1, 2], 2)
    assert everything(other) == everything(store)
    other.forget_after(Version(1, 0))
    assert everything(other) == everything(again(journal, 1))
    put(other, 1, [1, 2], 2)
    commit(other, journal, 2, keep={1})
    assert everything(again(journal, 2)) == everything(store)


def test_writes_of_a_broken_round_are_not_exported(tmp_path):
    store, journal = memory(), FolderJournal(tmp_path)
    put(store, 0, [0, 1, 2, 3], 1)
    commit(store, journal, 1)
    put(store, 1, [0], 9)
    put(store, 1, [0], 9, "new")
    store.forget_after(Version(1, 0))
    commit(store, journal, 2)
    assert everything(again(journal, 2)) == everything(store)
    assert "new" not in everything(again(journal, 2))


def test_a_link_in_the_place_of_what_is_being_written_is_not_followed(tmp_path):
    """A run folder from another machine may hold links; their targets must not be written."""
    other = tmp_path / "other"
    other.write_text("keep")
    (tmp_path / f"rounds.jsonl{TEMPORARY}").symlink_to(other)
    write_file(tmp_path / "rounds.jsonl", b"new")
    assert other.read_text() == "keep"
    assert (tmp_path / "rounds.jsonl").read_bytes() == b"new"
    assert not (tmp_path / "rounds.jsonl").is_symlink()
