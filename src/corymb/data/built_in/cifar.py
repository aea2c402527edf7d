"""CIFAR-10 (Krizhevsky 2009): the published archives, or six npz files.

The binary archive is the one that is downloaded. The Python one, whose batches are pickles, is also read if it is in
the cache, without unpickling it (`corymb.data.readers.inert`).
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from corymb.data.built_in.mnist import Images
from corymb.data.built_in.packed import read_arrays
from corymb.data.features import Array
from corymb.data.fetching.home import Home, Published
from corymb.data.readers.inert import read_inert
from corymb.settings import InvalidInput, require

BINARY = Published("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530", "md5")
PYTHON = Published("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a", "md5")

CIFAR10 = Home(
    name="cifar10",
    packed=("cifar10/train_1.npz",),
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    files=(BINARY,),
    instead=(PYTHON,),
    licence="none stated (Krizhevsky 2009)",
)

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
_PACKED = ("train_1", "train_2", "train_3", "train_4", "train_5", "test")
_MOST = 2**26  # bytes of one batch
Batch = tuple[Array, Array]


def read_published(home: Home) -> Images:
    """Read either archive from the cache, or download the binary one."""
    python = None if (home.folder / BINARY.name).is_file() else home.cached(home.instead[0])
    if python is not None:
        return read_python(python.contents)
    (binary,) = home.obtain()
    return read_binary(binary.contents)


def read_binary(contents: bytes) -> Images:
    """The archive `cifar-10-binary.tar.gz`."""
    return _read_archive(contents, ".bin", _binary_batch)


def read_python(contents: bytes) -> Images:
    """The archive `cifar-10-python.tar.gz`."""
    return _read_archive(contents, "", _python_batch)


def read_packed(path: Path) -> Images:
    """Read six npz files, the first at `path`: second differences of pixels, with green taken off red and blue."""
    return _joined([_packed_batch(path.with_name(f"{name}.npz")) for name in _PACKED])


def _read_archive(contents: bytes, suffix: str, read: Callable[[bytes, str], Batch]) -> Images:
    """The six batches of an archive, each read by `read`; nothing is unpacked to disk."""
    members = _members(contents, {f"{batch}{suffix}" for batch in _BATCHES})
    return _joined([read(members[name], name) for name in (f"{batch}{suffix}" for batch in _BATCHES)])


def _members(contents: bytes, wanted: set[str]) -> Mapping[str, bytes]:
    """The wanted files of an archive, by their names without folders."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(contents), mode="r:gz") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                file = archive.extractfile(member) if name in wanted and member.isfile() else None
                if file is not None:
                    require(member.size <= _MOST, f"{name} has {member.size} bytes: it is not a batch of CIFAR-10.")
                    found[name] = file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InvalidInput(f"The archive of CIFAR-10 cannot be unpacked ({error}): download it again.") from None
    missing = ", ".join(sorted(wanted - set(found)))
    require(not missing, f"The archive of CIFAR-10 has no {missing}: download it again.")
    return found


def _binary_batch(contents: bytes, name: str) -> Batch:
    """Parse rows of a label and the pixels, one byte each."""
    whole = len(contents) > 0 and len(contents) % (1 + _PIXELS) == 0
    require(whole, f"{name} has {len(contents)} bytes: wanted rows of {1 + _PIXELS}; download it again.")
    rows = np.frombuffer(contents, np.uint8).reshape(-1, 1 + _PIXELS)
    return rows[:, 1:].reshape(-1, *_SHAPE), rows[:, 0]


def _python_batch(contents: bytes, name: str) -> Batch:
    """Parse a dictionary of `data` and `labels`; its keys are text or, from Python 2, bytes."""
    batch = read_inert(contents, name)
    require(isinstance(batch, dict), f"{name} does not hold a dictionary: download it again.")
    named = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    x, y = np.asarray(named.get("data", ())), np.asarray(named.get("labels", ()))
    right = x.dtype == np.uint8 and x.shape == (len(y), _PIXELS)
    require(
        right, f"{name} holds data {x.dtype} {list(x.shape)}: wanted uint8 [{len(y)}, {_PIXELS}]; download it again."
    )
    return x.reshape(-1, *_SHAPE), y.astype(np.uint8)


def _packed_batch(path: Path) -> Batch:
    differences, y = read_arrays(path, "res", "y")
    right = differences.dtype == np.uint8 and differences.shape == (len(y), *_SHAPE)
    require(right, f"{path} holds {differences.dtype} {list(differences.shape)}: wanted uint8 [{len(y)}, 3, 32, 32].")
    x = np.cumsum(np.cumsum(differences, 3, dtype=np.uint8), 2, dtype=np.uint8)
    x[:, 0] += x[:, 1]
    x[:, 2] += x[:, 1]
    return x, y


def _joined(batches: list[Batch]) -> Images:
    """Join five training batches and a test batch."""
    x, y = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
    x_test, y_test = batches[-1]
    require(
        int(max(y.max(), y_test.max())) < 10, "A label of CIFAR-10 is not one of its ten classes: download it again."
    )
    return Images(x, y, np.ascontiguousarray(x_test), np.ascontiguousarray(y_test))
