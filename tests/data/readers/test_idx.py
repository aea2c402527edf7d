import gzip
import struct

import numpy as np
import pytest

from corymb.data.readers.idx import read_idx
from corymb.settings import InvalidInput


def idx(array):
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


ARRAY = np.arange(12, dtype=np.uint8).reshape(2, 3, 2)


def test_plain_and_gzipped(tmp_path):
    (tmp_path / "plain").write_bytes(idx(ARRAY))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(idx(ARRAY), mtime=0))
    assert (read_idx(tmp_path / "plain") == ARRAY).all()
    assert (read_idx(tmp_path / "packed.gz") == ARRAY).all()


@pytest.mark.parametrize(
    ("contents", "complaint"),
    [
        (b"", "has 0 bytes"),
        (b"\0\0\x0d\x01" + bytes(8), "begins with 00000d01"),
        (b"PK\3\4" + bytes(8), "begins with 504b0304"),
        (b"\0\0\x08\x03\0\0", "ends within its header"),
        (idx(ARRAY)[:-1], r"has 11 bytes of data where its header, \[2, 3, 2\], promises 12"),
        (idx(ARRAY) + b"!", "has 13 bytes"),
        (gzip.compress(idx(ARRAY), mtime=0)[:-9], "cannot be unpacked"),
        (gzip.compress(bytes(5000), mtime=0), "unpacks to more than 1000 bytes"),
    ],
)
def test_complaints(contents, complaint, tmp_path):
    (tmp_path / "file").write_bytes(contents)
    with pytest.raises(InvalidInput, match=complaint):
        read_idx(tmp_path / "file", most=1000)
