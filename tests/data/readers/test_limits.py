import gzip
import resource

import numpy as np
import pytest

from corymb.data.files import from_folder
from corymb.settings import InvalidInput


def packed_zeros(folder, rows=2_000_000):
    """An npz file of a few hundred kB that holds a thousand times as much."""
    np.savez_compressed(
        folder / "zeros.npz", x=np.zeros((rows, 100), dtype=np.float32), y=np.zeros(rows, dtype=np.int8)
    )


def test_zeros_that_are_packed_small_are_refused_before_they_are_read(tmp_path):
    packed_zeros(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        InvalidInput, match=r"zeros.npz would take 802 MB in memory, more than the 100 MB .* read_limit"
    ):
        from_folder(tmp_path, read_limit=100_000_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 20_000  # kB


def test_arrays_that_nobody_asked_for_are_not_read(tmp_path):
    for name in ("a", "b"):
        np.savez_compressed(
            tmp_path / f"{name}.npz", x=np.arange(20.0).reshape(10, 2), y=np.arange(10) % 2, other=np.zeros(10_000_000)
        )
    assert len(from_folder(tmp_path, read_limit=10_000)) == 2


def test_text_that_is_packed_small_is_refused_while_it_is_read(tmp_path):
    with gzip.open(tmp_path / "rows.csv.gz", "wt") as file:
        file.write("client,a,label\n" + "c1,1,0\n" * 100_000)
    with pytest.raises(InvalidInput, match="unpacks to more than the 10 kB"):
        from_folder(tmp_path / "rows.csv.gz", read_limit=10_000)


def test_one_line_without_an_end_is_refused(tmp_path):
    with gzip.open(tmp_path / "rows.csv.gz", "wb") as file:
        for _ in range(50):
            file.write(b"a" * 1_000_000)
    with pytest.raises(InvalidInput, match="unpacks to more than"):
        from_folder(tmp_path / "rows.csv.gz", read_limit=5_000_000)
