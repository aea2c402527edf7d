"""Read idx files, the format in which MNIST and its relatives are published."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from corymb.data.features import Array
from corymb.settings import InvalidInput, require

_UBYTE = 0x08


def read_idx(path: str | Path, most: int = 2**30) -> Array:
    """Read an idx file, gzipped or not, as an array in the shape given by its header; at most `most` bytes."""
    return parse_idx(gunzip(Path(path), most), str(path))


def gunzip(path: Path, most: int) -> bytes:
    """Read a file, gunzipped if it is gzipped, but never more than `most` bytes."""
    import gzip
    import zlib

    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            contents = file.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidInput(
            f"{path} cannot be unpacked ({error}): it is truncated or damaged; download it again."
        ) from None
    require(len(contents) <= most, f"{path} unpacks to more than {most} bytes: it is not the expected file.")
    return contents


def parse_idx(contents: bytes, name: str) -> Array:
    """Parse the contents of an idx file; `name` is for error messages."""
    require(len(contents) >= 4, f"{name} has {len(contents)} bytes: an idx file has a header of at least 4.")
    zero, kind, ndim = struct.unpack_from(">HBB", contents)
    require(
        zero == 0 and kind == _UBYTE and 1 <= ndim <= 4,
        f"{name} begins with {contents[:4].hex()}: wanted 00000801 to 00000804, an idx file of unsigned bytes.",
    )
    start = 4 + 4 * ndim
    require(len(contents) >= start, f"{name} ends within its header: it is truncated; download it again.")
    shape = struct.unpack_from(f">{ndim}I", contents, 4)
    size = math.prod(shape)
    require(
        len(contents) == start + size,
        f"{name} has {len(contents) - start} bytes of data where its header, {list(shape)}, promises {size}: "
        "download it again.",
    )
    return np.frombuffer(contents, dtype=np.uint8, offset=start).reshape(shape)
