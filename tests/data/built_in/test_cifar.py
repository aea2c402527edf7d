"""Archives in the published formats, made here."""

import gzip
import hashlib
import io
import pickle  # noqa: TID251 - to see that what we write is one
import struct
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from corymb.data.built_in import cifar
from corymb.data.fetching.home import DataUnavailable, cache_folder
from corymb.settings import InvalidInput

RNG = np.random.default_rng(0)
BATCHES = {name: (RNG.integers(0, 256, (2, 3072), dtype=np.uint8), RNG.integers(0, 10, 2)) for name in cifar._BATCHES}


def short(text):
    """A string as Python 2 pickled it."""
    return b"U" + bytes([len(text)]) + text.encode()


def python_2_pickle(x, y):
    """A batch, opcode by opcode: what `cPickle.dump(batch, file, 2)` of Python 2 wrote, memo puts left out."""
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in y.tolist()) + b"e"
    dtype = b"cnumpy\ndtype\n" + short("u1") + b"K\x00K\x01\x87R" + b"(K\x03" + short("|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + short("b") + b"\x87R"
    state = b"(K\x01" + b"M" + struct.pack("<H", len(x)) + b"M" + struct.pack("<H", 3072) + b"\x86" + dtype + b"\x89"
    state += b"T" + struct.pack("<i", x.nbytes) + x.tobytes() + b"tb"
    return b"\x80\x02}(" + short("data") + array + state + short("labels") + labels + b"u."


def archive(files):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return held.getvalue()


def binary():
    rows = {name: np.column_stack([y.astype(np.uint8), x]).tobytes() for name, (x, y) in BATCHES.items()}
    return archive({f"{name}.bin": data for name, data in rows.items()} | {"readme.html": b"see there"})


def python():
    return archive({name: python_2_pickle(x, y) for name, (x, y) in BATCHES.items()} | {"batches.meta": b"no matter"})


def right(images):
    x = np.concatenate([BATCHES[name][0] for name in cifar._BATCHES[:5]]).reshape(-1, 3, 32, 32)
    y = np.concatenate([BATCHES[name][1] for name in cifar._BATCHES[:5]])
    wanted = (x, y, BATCHES["test_batch"][0].reshape(-1, 3, 32, 32), BATCHES["test_batch"][1])
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(images, wanted, strict=True))


def test_the_pickle_of_these_tests_is_valid():
    x, y = BATCHES["test_batch"]
    batch = pickle.loads(python_2_pickle(x, y), encoding="bytes")  # noqa: S301 - ours
    assert np.array_equal(batch[b"data"], x)
    assert batch[b"labels"] == y.tolist()


def test_both_archives_hold_the_same():
    assert right(cifar.read_binary(binary()))
    assert right(cifar.read_python(python()))


def test_the_python_archive_is_read_in_place(monkeypatch, tmp_path):
    monkeypatch.setenv("CORYMB_CACHE", str(tmp_path))
    contents = python()
    digest = hashlib.md5(contents, usedforsecurity=False).hexdigest()
    home = replace(cifar.CIFAR10, mirrors=(), instead=(cifar.PYTHON._replace(digest=digest),))
    with pytest.raises(DataUnavailable, match=r"cifar-10-binary\.tar\.gz is not in"):
        cifar.read_published(home)
    (cache_folder() / "cifar10" / cifar.PYTHON.name).write_bytes(contents)
    assert right(cifar.read_published(home))


def test_packed_differences(tmp_path):
    for packed, name in zip(cifar._PACKED, cifar._BATCHES, strict=True):
        x, y = BATCHES[name]
        less = x.reshape(-1, 3, 32, 32).copy()
        less[:, 0] -= less[:, 1]
        less[:, 2] -= less[:, 1]
        twice = np.diff(np.diff(less, axis=2, prepend=np.uint8(0)), axis=3, prepend=np.uint8(0))
        np.savez(tmp_path / f"{packed}.npz", res=twice.astype(np.uint8), y=y)
    assert right(cifar.read_packed(tmp_path / "train_1.npz"))


def test_complaints():
    whole = python()
    for contents, read, complaint in (
        (b"noise", cifar.read_binary, "cannot be unpacked"),
        (gzip.compress(b"noise"), cifar.read_binary, "cannot be unpacked"),
        (whole, cifar.read_binary, "has no data_batch_1.bin, data_batch_2.bin"),
        (archive({f"{name}.bin": b"12" for name in BATCHES}), cifar.read_binary, "2 bytes: wanted rows of 3073"),
        (archive({name: b"\x80\x02}." for name in BATCHES}), cifar.read_python, "holds data float64"),
        (archive({name: b"\x80\x02]." for name in BATCHES}), cifar.read_python, "does not hold a dictionary"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            read(contents)
