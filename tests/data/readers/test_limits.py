import gzip
import resource
import tracemalloc
import zipfile

import numpy as np
import pytest

from corymb.data.files import from_folder
from corymb.data.readers.tables import read_table
from corymb.settings import InvalidInput


def packed_zeros(folder, rows=400_000):
    """An npz file of a few hundred kB that holds a thousand times as much."""
    np.savez_compressed(
        folder / "zeros.npz", x=np.zeros((rows, 100), dtype=np.float32), y=np.zeros(rows, dtype=np.int8)
    )


def test_zeros_that_are_packed_small_are_refused_before_they_are_read(tmp_path):
    packed_zeros(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        InvalidInput, match=r"zeros.npz would take 160 MB in memory, more than the limit of 100 MB .* read_limit"
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
    with pytest.raises(InvalidInput, match="unpacks to more than the limit of 10 kB"):
        from_folder(tmp_path / "rows.csv.gz", read_limit=10_000)


def test_one_line_without_an_end_is_refused(tmp_path):
    with gzip.open(tmp_path / "rows.csv.gz", "wb") as file:
        for _ in range(50):
            file.write(b"a" * 1_000_000)
    with pytest.raises(InvalidInput, match=r"rows.csv.gz, line 1 has more than 78,125 characters: .* read_limit"):
        from_folder(tmp_path / "rows.csv.gz", read_limit=5_000_000)


def refused(path, text, limit, match):
    """That reading a packed file is refused, and how many kB it took until then."""
    with gzip.open(path, "wt") as file:
        file.writelines(text)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=match):
            from_folder(path, client="c", label="y", read_limit=limit)
        return tracemalloc.get_traced_memory()[1] / 1000
    finally:
        tracemalloc.stop()


LIMIT = 1_000_000
BOMBS = {
    "cells of text": (".csv", lambda: ["c,a,y\n", *["c,w,0\n"] * 40_000]),
    "short numbers": (
        ".csv",
        lambda: ["c,y," + ",".join(f"f{i}" for i in range(200)) + "\n", *["1," * 201 + "1\n"] * 900],
    ),
    "very many columns": (".csv", lambda: [",".join(f"f{i}" for i in range(3_000)), "\n"]),
    "a row that never ends": (".csv", lambda: ["c,a,y\n", *['"a\n",'] * 200_000]),
    "one long line": (".jsonl", lambda: ['{"a": [', *["[],"] * 100_000, "[]]}\n"]),
    "rows of nested lists": (".jsonl", lambda: ['{"a": [[],[],[],[]]}\n'] * 8_000),
    "another column in every row": (".jsonl", lambda: [f'{{"f{i}": 1}}\n' for i in range(1_000)]),
    "rows of text": (".jsonl", lambda: ['{"c": "aaaaaaaaaaaa", "y": 1.5}\n'] * 20_000),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_parsed_text_counts_towards_the_limit(tmp_path, kind):
    suffix, text = BOMBS[kind]
    took = refused(tmp_path / f"rows{suffix}.gz", text(), LIMIT, "read_limit")
    assert took < 3 * LIMIT / 1000


def test_a_parquet_file_that_is_packed_small_is_refused(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = 200_000
    zeros, words = arrow.array(np.zeros(rows)), arrow.array(["w" * 1000] * rows)
    for name, column in (("zeros", zeros), ("words", words)):
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(arrow.table({"c": zeros, "y": zeros, "a": column}), path)
        assert path.stat().st_size < 60_000
        before = arrow.total_allocated_bytes()
        with pytest.raises(InvalidInput, match=f"{name}.parquet would take .* read_limit"):
            from_folder(path, client="c", label="y", read_limit=4_000_000 if name == "zeros" else 10_000_000)
        assert arrow.total_allocated_bytes() - before < 20_000_000


def test_words_that_a_parquet_file_holds_once_are_kept_once(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    places = arrow.array([0, 1, None, 0] * 5_000, arrow.int32())
    words = arrow.DictionaryArray.from_arrays(places, ["v" * 1000, "w"])
    parquet.write_table(arrow.table({"a": words}), tmp_path / "a.parquet")
    tracemalloc.start()
    column = read_table(tmp_path / "a.parquet", []).cells["a"]
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    assert column.texts[:4].tolist() == ["v" * 1000, "w", "", "v" * 1000]


def test_one_long_name_does_not_take_as_much_in_every_row(tmp_path):
    (tmp_path / "rows.csv").write_text("client,a,label\n" + "w" * 100_000 + ",1,0\n" + "c,1,0\n" * 10_000)
    with pytest.raises(InvalidInput, match="A client's name has 100,000 characters: wanted at most 1,000"):
        from_folder(tmp_path / "rows.csv")


def test_a_header_that_is_packed_small_is_refused_before_it_is_unpacked(tmp_path):
    npy = b"\x93NUMPY\x02\x00" + (200_000_000).to_bytes(4, "little") + b" " * 20_000_000
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=r"x.npy has a header of 200000000 bytes"):
            from_folder(tmp_path / "a.npz", read_limit=10_000_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_wide_and_long_tables_are_read_as_before(tmp_path):
    names = [f"f{i}" for i in range(2_000)]
    for client in "ab":
        with gzip.open(tmp_path / f"{client}.csv.gz", "wt") as file:
            file.write(",".join([*names, "label"]) + "\n")
            file.writelines(",".join(["0.5"] * 2_000 + [str(i % 2)]) + "\n" for i in range(12))
    assert len(from_folder(tmp_path, read_limit=20_000_000)) == 2
