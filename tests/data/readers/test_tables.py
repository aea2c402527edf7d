import numpy as np
import pytest

from corymb.data.readers import tables
from corymb.data.readers.tables import read_table


def counted(monkeypatch, name):
    """The arguments of all calls of one of the module's functions."""
    calls, whole = [], getattr(tables, name)
    monkeypatch.setattr(tables, name, lambda *given: calls.append(given) or whole(*given))
    return calls


def test_a_long_csv_is_read_and_weighed_in_blocks(tmp_path, monkeypatch):
    rows = [f"c{row // 7},{row},{row / 2}" for row in range(20_000)]
    (tmp_path / "a.csv").write_text("\n".join(["client,n,x", *rows]) + "\n")
    weighed = counted(monkeypatch, "check_size")
    table = read_table(tmp_path / "a.csv", ["client"])
    assert len(weighed) < 10
    np.testing.assert_array_equal(table.cells["n"].values, np.arange(20_000))
    np.testing.assert_array_equal(table.cells["x"].values, np.arange(20_000) / 2)
    assert table.ids["client"].tolist() == [f"c{row // 7}" for row in range(20_000)]


def test_blocks_of_long_rows_have_few_rows(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("\n".join(["x", *["1" + "0" * 30_000 + "e-30000"] * 50]) + "\n")
    weighed = counted(monkeypatch, "check_size")
    assert read_table(tmp_path / "a.csv", []).cells["x"].values.tolist() == [1.0] * 50
    assert 5 < len(weighed) < 50


def test_numbers_of_a_parquet_file_do_not_make_its_batches_small(tmp_path, monkeypatch):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    x = np.random.default_rng(0).normal(size=(20, 20_000))
    table = arrow.table({f"f{place}": column for place, column in enumerate(x)} | {"s": ["a", None] * 10_000})
    parquet.write_table(table, tmp_path / "a.parquet")
    monkeypatch.setattr(tables, "limit", lambda: 100_000_000)
    batches = counted(monkeypatch, "_parquet_values")
    read = read_table(tmp_path / "a.parquet", []).cells
    assert len(batches) <= 21 * 5  # with the bytes of numbers counted, 770 batches of 26 rows
    np.testing.assert_array_equal(read["f3"].values, x[3])
    assert read["s"].texts[:3].tolist() == ["a", "", "a"]


def test_categories_of_a_parquet_file_may_fill_their_index(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    words = [f"w{place}" for place in range(128)]
    places = arrow.array([127, None, 0], arrow.int8())
    parquet.write_table(arrow.table({"s": arrow.DictionaryArray.from_arrays(places, words)}), tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet", []).cells["s"].texts.tolist() == ["w127", "", "w0"]


def test_a_semicolon_in_the_header_counts_more_than_commas_in_quotes(tmp_path):
    (tmp_path / "a.csv").write_text('client;"air, outside, °C";"a; b"\np;1,5;2\n', encoding="utf-8")
    cells = read_table(tmp_path / "a.csv", ["client"]).cells
    assert list(cells) == ["client", "air, outside, °C", "a; b"]
    assert cells["air, outside, °C"].values.tolist() == [1.5]


MIXED = {
    "a;b\n1.234;1,5\n999;2,5\n": 1,
    "a;b\n1,5;2\n": 0,
    "a;b\n1.5;2\n": 0,
    "a,b\n1.5,x\n": 0,
    "a;b\n1,5;x\n2.5;y\n": 1,
}


@pytest.mark.parametrize(("text", "notes"), MIXED.items())
def test_decimals_with_commas_and_with_points_in_one_file_get_a_note(tmp_path, text, notes):
    (tmp_path / "a.csv").write_text(text)
    found = read_table(tmp_path / "a.csv", []).notes
    assert len(found) == notes
    assert all("if one of them separates thousands, remove it" in note for note in found)
