import tracemalloc
from datetime import timedelta

import numpy as np
import pytest

from corymb.data.prepare.cells import ColumnBuilder, Kind, as_column, joined, read_values

CELLS = {
    "numbers": (["1", " 2.5", "-3e2", "10", "inf"], [1, 2.5, -300, 10, np.inf], [Kind.NUMBER] * 5, ""),
    "codes with underscores": (["1_0", "10"], [np.nan, 10], [Kind.TEXT, Kind.NUMBER], ""),
    "a number that is missing": (["1", "nan", "2"], [1, np.nan, 2], [Kind.NUMBER, Kind.MISSING, Kind.NUMBER], ""),
    "codes": (["0", "0.5", "10", " 007 ", "08"], [0, 0.5, 10, 7, 8], [Kind.NUMBER] * 5, "007"),
    "codes after a text": (["a", "07"], [np.nan, 7], [Kind.TEXT, Kind.NUMBER], "07"),
    "a quoted line end": (["\n01\n", "0\n"], [1, 0], [Kind.NUMBER] * 2, "01"),
    "all kinds": (
        ["1", "", "true", "2000-01-02", "b"],
        [1, np.nan, 1, 1, np.nan],
        [Kind.NUMBER, Kind.MISSING, Kind.TRUTH, Kind.DATE, Kind.TEXT],
        "",
    ),
}


@pytest.mark.parametrize(("cells", "values", "kinds", "padded"), CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_cells_are_read_alike_in_blocks_of_any_size(cells, values, kinds, padded, at_once):
    builder = ColumnBuilder()
    for start in range(0, len(cells), at_once):
        builder.extend(cells[start : start + at_once])
    column = builder.column()
    np.testing.assert_array_equal(column.values, values)
    assert column.kinds.tolist() == kinds
    assert column.padded == padded


def test_texts_are_at_their_rows_also_after_numbers_and_before_them():
    column = read_values([1, "a", 2, None, "b", 3])
    assert column.texts.tolist() == ["", "a", "", "", "b", ""]
    assert joined([read_values([1, 2]), column]).texts.tolist() == ["", "", "", "a", "", "", "b", ""]
    assert column.take(np.array([4, 0])).texts.tolist() == ["b", ""]
    assert len(read_values([1, 2]).texts) == 0


def test_cells_as_python_values():
    assert read_values(["1", "", "a", True, 2.5]).as_objects().tolist() == [1.0, None, "a", "true", 2.5]
    assert all(type(cell) is float for cell in read_values([1, 2]).as_objects())


@pytest.mark.parametrize("unit", ["ns", "us", "s"])
def test_durations_are_days_in_every_unit(unit):
    lengths = np.array([36 * 3600, 0, "NaT"], "timedelta64[s]").astype(f"timedelta64[{unit}]")
    of_cells = np.empty(3, dtype=object)
    of_cells[:] = list(lengths)
    for column in (as_column(lengths), as_column(of_cells), read_values([timedelta(days=1.5), timedelta(0), None])):
        np.testing.assert_array_equal(column.values, [1.5, 0, np.nan])
        assert column.kinds.tolist() == [Kind.NUMBER, Kind.NUMBER, Kind.MISSING]


def test_a_moment_in_nanoseconds_is_a_date_also_on_its_own():
    assert read_values([np.datetime64("2000-01-02T12:00", "ns")]).values.tolist() == [1.5]


def test_dates_are_named_without_a_time_where_they_have_none():
    column = read_values(["2024-03-01", "2024-03-01T06:00"])
    assert [column.text(0), column.text(1)] == ["2024-03-01", "2024-03-01 06:00:00"]


DECIMALS = {"1,5": 1.5, "-,25": -0.25, "+3,": 3.0, "1,5E-03": 0.0015, "1,²": None, "+-1,2": None, "1,234,5": None}


@pytest.mark.parametrize(("cell", "value"), DECIMALS.items())
def test_decimal_commas(cell, value):
    builder = ColumnBuilder(comma=True)
    builder.extend([cell])
    column = builder.column()
    assert column.kinds.tolist() == [Kind.TEXT if value is None else Kind.NUMBER]
    assert value is None or column.values.tolist() == [value]


def test_each_distinct_text_of_a_block_is_read_once(monkeypatch):
    read, whole = [], ColumnBuilder._read_word
    monkeypatch.setattr(ColumnBuilder, "_read_word", lambda self, word: read.append(word) or whole(self, word))
    column = read_values(["b", "a", "b"] * 3000)
    assert read == ["b", "a"]
    assert column.texts[:3].tolist() == ["b", "a", "b"]


def test_a_text_in_many_rows_takes_a_few_bytes_in_each():
    held = []
    for kind in ("name", "word"):  # Python's own table of texts grows now and then, but not twice in a row
        cells = [f"a {kind} of some length {row // 10}" for row in range(50_000)]
        tracemalloc.start()
        column = read_values(cells)
        held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(column.kinds) == len(cells)
    assert min(held) / len(cells) < 40  # a dict of texts by row took 100 or more
