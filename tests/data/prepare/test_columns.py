from datetime import date

import numpy as np
import pytest

from corymb.data import FederatedDataset
from corymb.data.clients import Clients
from corymb.data.prepare.cells import as_column, joined, read_values
from corymb.data.prepare.columns import ColumnPlan, encode, learn_columns, unknown_categories
from corymb.settings import InvalidInput


def where(row):
    return f"row {row}"


def learn(table, clients=None, missing="refuse", train=None, categories=None):
    columns = {name: read_values(values, name) for name, values in table.items()}
    rows = len(next(iter(columns.values())).kinds)
    clients = clients or Clients(("a",), np.zeros(rows, int))
    train = np.arange(rows) if train is None else train
    plans, notes = learn_columns(columns, clients, train, missing, where, categories=categories or {})
    return plans, notes, encode(columns, plans, where).tolist()


def of(*sizes):
    return Clients(tuple("abcdefghijklmnopqrstuvwxyz"[: len(sizes)]), np.repeat(np.arange(len(sizes)), sizes))


def test_numbers_booleans_and_dates_are_numbers():
    table = {"n": [1, "2.5"], "b": [True, "false"], "d": ["2000-01-03", date(1999, 12, 31)]}
    plans, _, rows = learn(table)
    assert [plan.what for plan in plans] == ["number", "number", "date"]
    assert rows == [[1, 1, 2], [2.5, 0, -1]]


def test_a_time_with_a_zone_counts_in_utc():
    assert learn({"d": ["2000-01-02T01:00:00+01:00", "2000-01-02 12:00:00"]})[2] == [[1], [1.5]]


def test_categories_are_columns_and_rare_ones_go_together():
    words = ["u"] * 100 + ["v"] * 100 + ["w"]
    plans, _, rows = learn({"t": words})
    assert plans == (ColumnPlan("t", "category", None, ("u", "v", "other")),)
    assert (rows[0], rows[-1]) == ([1, 0, 0], [0, 0, 1])


def test_a_category_needs_the_votes_of_more_than_one_client_in_twenty():
    clients = of(*[10] * 20)
    words = ["u", "v"] * 100
    words[:5] = ["mine"] * 5  # 2.5 % of the rows, all of one client
    assert learn({"t": words}, clients)[0][0].categories == ("u", "v", "other")
    assert "mine" not in learn({"t": words}, of(*[20] * 10))[0][0].categories  # one of ten is still one alone
    both = learn({"t": ["u", "v", "u", "mine"] * 2}, of(4, 4))[0][0].categories
    assert both == ("mine", "u", "v")
    assert learn({"t": ["u", "v"]}, of(2))[0][0].categories == ("u", "v")  # there is nobody else


def test_an_unknown_category_is_other_or_nothing():
    table = {"t": read_values(["u", "z", None])}
    assert encode(table, [ColumnPlan("t", "category", None, ("u", "other"))], where).tolist() == [
        [1, 0],
        [0, 1],
        [0, 0],
    ]
    assert encode(table, [ColumnPlan("t", "category", None, ("u",))], where).tolist() == [[1], [0], [0]]


def test_text_without_common_categories_is_left_out_and_reported():
    plans, notes, _ = learn({"name": [f"n{i}" for i in range(300)], "x": list(range(300))})
    assert [plan.name for plan in plans] == ["x"]
    assert notes == ["column 'name' is not used: it is text without a category that is common among clients"]


@pytest.mark.parametrize(("missing", "fill"), [("mean", 22.0), ("median", 3.0)])
def test_missing_numbers_are_filled_with_statistics_of_the_training_rows(missing, fill):
    values = [1.0, 2.0, None, 3.0, 4.0, 100.0, 1e9]
    plans, notes, rows = learn({"x": values}, of(3, 4), missing, train=np.arange(6))
    assert plans[0].fill == fill
    assert rows[2] == [fill]
    assert notes == [f"column 'x': 1 missing cell is filled with the {missing}, {fill:g}"]


def test_the_median_by_counting_is_the_lower_median():
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 100):
        values = np.concatenate([rng.normal(size=size) * 10.0 ** rng.integers(-20, 20, size), [0.0, -0.0]])
        fill = learn({"x": values.tolist()}, of(size, 2), "median")[0][0].fill
        assert fill == np.sort(values.astype(np.float32))[(len(values) - 1) // 2]


def test_a_column_is_what_most_clients_have_and_all_bad_ones_are_named():
    table = {"x": [1, 2, 3, 4, "low", "high"], "y": [1, None, 1, 1, 1, 1], "z": [None] * 6, "good": [1] * 6}
    with pytest.raises(InvalidInput) as caught:
        learn(table, of(2, 2, 2))
    line = str(caught.value)
    assert line.startswith(
        "3 columns cannot be used: column 'x': row 4, client 'c', is 'low' (2 such cells) where most"
    )
    assert "column 'y': 1 missing cell in row 1" in line
    assert "column 'z': it has no values" in line
    assert "good" not in line


def test_many_columns_with_missing_cells_are_one_line():
    table = {name: [1, None, 3, 4] for name in "abcd"} | {"b": [None, None, 3, 4], "good": [1] * 4}
    with pytest.raises(InvalidInput) as caught:
        learn(table, of(2, 2))
    assert str(caught.value) == (
        "4 columns cannot be used: columns 'a' (1), 'b' (2), 'c' (1), 'd' (1): missing cells, the first in row 0: "
        "use missing='median', 'mean' or 'drop' (--missing)."
    )
    said = learn(table, of(2, 2), "median")[1]
    assert said == [
        "missing cells of 4 columns are filled with each column's median: 'a' (1), 'b' (2), 'c' (1), 'd' (1)"
    ]


def test_a_type_that_no_cell_can_have_is_refused():
    with pytest.raises(InvalidInput, match="Column 'x' holds lists"):
        as_column(np.array([[1], None], dtype=object), "x")


@pytest.mark.parametrize("cells", [["50.3%", "1%"], ["$1,000.00", "$12"], ["12 €", "-3.5 €"]])
def test_signed_numbers_are_reported_as_text(cells):
    notes = learn({"rate": cells * 8, "u": [1.0, 2.0] * 8}, of(8, 8))[1]
    assert notes == [
        f"column 'rate' is read as text, but its cells look like numbers ({sorted(cells)[0]!r}): write plain numbers"
    ]
    assert learn({"rate": ["north", "5 mg"] * 8}, of(8, 8))[1] == []


@pytest.mark.parametrize(
    "cells",
    [["31/12/2024", "1/2/2024"], ["31.12.24", "01.02.24"], ["2024/12/31 10:30", "2024/1/2"], ["5-Mar-2024"] * 2],
)
def test_dates_that_are_not_iso_are_reported_as_text(cells):
    notes = learn({"day": cells * 8, "u": [1.0, 2.0] * 8}, of(8, 8))[1]
    first = sorted(cells)[0]
    assert notes == [f"column 'day' is read as text, but its cells look like dates ({first!r}): write 2024-12-31"]


def test_a_column_that_marks_test_rows_is_reported_as_a_feature():
    (note,) = learn({"split": ["train", "Test", "train", "val"] * 4, "u": [1.0, 2.0] * 8}, of(8, 8))[1]
    assert note == (
        "column 'split' ('Test', 'train', 'val') is used as a feature, not to split rows: a column 'test' (true or "
        "false) marks test rows"
    )
    assert learn({"kind": ["train", "bus"] * 8}, of(8, 8))[1] == []


def test_of_very_many_columns_the_first_are_named():
    table = {f"c{place}": [1, None, 3, 4] for place in range(100)} | {"good": [1] * 4}
    with pytest.raises(InvalidInput, match=r"100 columns cannot be used: columns 'c0' \(1\), .*, and 80 more: missing"):
        learn(table, of(2, 2))
    assert learn(table, of(2, 2), "median")[1][0].endswith("'c19' (1), and 80 more")
    text = {f"c{place}": [1, "a", 3, 4] for place in range(100)}
    with pytest.raises(InvalidInput, match=r"column 'c19': [^;]*; and 80 more\.$"):
        learn(text, of(2, 2))


def test_missing_text_is_reported():
    table = {"s": ["f", None, "f", "m", "m", "f"]}
    plans, notes, rows = learn(table, of(3, 3), "median")
    assert notes == ["missing cells of text belong to no category: 's' (1)"]
    assert rows[1] == [0.0] * len(plans[0].features)


def test_text_without_a_category_is_reported():
    cells = {"s": read_values(["a", "z", "y"]), "t": read_values(["z", None, "a"]), "n": read_values([1, 2, 3])}
    plans = [
        ColumnPlan("s", "category", None, ("a", "other")),
        ColumnPlan("t", "category", None, ("a",)),
        ColumnPlan("n", "number"),
    ]
    assert unknown_categories(cells, plans) == [
        "column 's': 2 cells ('z') are not among the run's categories and treated as 'other'",
        "column 't': 1 cell ('z') is not among the run's categories and without a category",
    ]


def test_categories_that_are_named_are_not_learned():
    table = {"t": ["u", "v", None, 3]}
    plans, notes, rows = learn(table, missing="median", categories={"t": ["w", "v", 3, "other"]})
    assert plans == (ColumnPlan("t", "category", None, ("w", "v", "3", "other")),)
    assert rows == [[0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    assert "column 't': 1 cell ('u') is of no category that was named, and taken as 'other'" in notes
    assert "left without one" in learn(table, missing="median", categories={"t": ["v"]})[1][0]
    nowhere = {"t": [None, None], "n": [1, 2]}  # as at a node that does not write it down
    assert learn(nowhere, missing="median", categories={"t": ["v"]})[2] == [[0, 1], [0, 2]]


def test_what_missing_cells_are_taken_as_may_be_named():
    table = {"n": [1, None], "d": ["2000-01-03", None], "t": ["u", None]}
    plans, notes, rows = learn(table, missing={"n": 7, "d": "2000-01-02"})
    assert [plan.fill for plan in plans] == [7, 1, None]
    assert rows == [[1, 2, 1], [7, 1, 0]]
    assert "column 'n': 1 missing cell is filled with the value that was given, 7" in notes
    with pytest.raises(InvalidInput, match="column 'd': 1 missing cell in row 1"):
        learn(table, missing={"n": 7})
    assert learn({"n": [None, None], "m": [1, 2]}, missing={"n": 7})[2] == [[7, 1], [7, 2]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"categories": {"tt": ["a"]}}, "categories names 'tt', but there is no such column. Did you mean 't'"),
        ({"categories": {"t": "ab"}}, "categories of column 't' are 'ab': wanted a list of names"),
        ({"categories": {"t": []}}, "wanted a list of names"),
        ({"categories": {"t": ["a", "a"]}}, "name 'a' twice"),
        ({"categories": {"t": ["a", ""]}}, "have an empty name"),
        ({"categories": ["t"]}, "wanted {'column'"),
        ({"missing": {"x": 1}}, "missing names 'x', but there is no such column"),
        ({"missing": {"t": "many"}}, "wanted a number"),
        ({"missing": {"t": [1]}}, "holds lists"),
    ],
)
def test_unknown_names_are_refused(options, says):
    with pytest.raises(InvalidInput, match=says):
        learn({"t": ["a", "b"]}, **options)


@pytest.mark.parametrize("options", [{"categories": {"0": ["a"]}}, {"missing": {"0": 1}}])
def test_pictures_have_no_columns_to_name(options):
    with pytest.raises(InvalidInput, match="names columns of a table, and examples with 3 axes have none"):
        FederatedDataset.from_arrays(np.zeros((2, 3, 4, 4), np.float32), [0, 1], ["a", "b"], test=0, **options)


def test_columns_without_names_are_named_by_their_number():
    x = np.array([["u", "1"], ["v", ""]], dtype=object)
    options = {"categories": {"0": ["v", "other"]}, "missing": {"1": 5}}
    data = FederatedDataset.from_arrays(x, [0, 1], ["a", "a"], test=0, **options)
    assert data.train.x.tolist() == [[0, 1, 1], [1, 0, 5]]


def test_codes_with_leading_zeros_get_a_note():
    table = {"plz": ["12", " 00123", "00456"], "size": ["0", "0.5", "10"], "icd": ["A1", "A1", "001"], "n": [0, 1, 2]}
    _, notes, rows = learn(table)
    assert notes == [
        "column 'plz': '00123' has leading zeros and is read as a number: if it is a code, add a letter in front "
        "('c00123')",
        "column 'icd': '001' has leading zeros and is treated as the number: if it is a code, add a letter in front "
        "('c001')",
    ]
    assert rows[1][0] == 123


def test_leading_zeros_stay_known_when_columns_are_joined():
    column = joined([read_values(["7", "8"]), read_values(["07"])])
    assert (column.padded, column.take(np.array([0, 1])).padded) == ("07", "07")


def test_a_number_that_is_not_a_category_gets_a_note():
    plans = [ColumnPlan("s", "category", None, ("1", "a"))]
    said = ["column 's': 1 cell ('7') is not among the run's categories and without a category"]
    assert unknown_categories({"s": read_values(["a", "1", "7", None])}, plans) == said
