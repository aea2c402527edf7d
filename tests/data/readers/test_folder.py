import re
import sys
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from corymb.core.pixels import as_numbers
from corymb.data import from_folder
from corymb.data.readers.tables import read_table
from corymb.settings import InvalidInput

CSV = {"a": "height,age,label\n1.5,3,cat\n2.5,4,dog\n", "b": "label,age,height\ndog,5,3.5\n"}


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, content in files.items():
            path = tmp_path / name.replace("__", ".")
            if isinstance(content, str):
                path.write_text(content)
            elif isinstance(content, bytes):
                path.write_bytes(content)
            elif path.suffix == ".npz":
                np.savez(path, **content)
            else:
                pq.write_table(pa.table(content), path)
        return tmp_path

    return write


def test_one_csv_a_client(folder):
    data = from_folder(folder(a__csv=CSV["a"], b__csv=CSV["b"], **{"__DS_Store": "hidden"}), test=0)
    assert data.names == ("a", "b")
    assert data.feature_names == ("height", "age")
    assert data.train.x.tolist() == [[1.5, 3], [2.5, 4], [3.5, 5]]
    assert data.train.y.tolist() == [0, 1, 1]
    assert data.classes == ("cat", "dog")
    assert data.standardise
    assert data.name == folder().name


def test_one_table_with_a_client_column(folder):
    rows = "who,x,label,test\nb,1,0.5,0\na,2,1.5,false\nb,3,2.5,1\na,4,1,True\n"
    for data in (
        from_folder(folder(all__csv=rows) / "all.csv", client="who"),
        from_folder(folder(all__csv=rows), client="who"),
    ):
        assert data.names == ("a", "b")
        assert data.task == "regression"
        assert data.train.y.tolist() == [1.5, 0.5]
        assert data.test.x.tolist() == [[4], [3]]


def test_numbered_clients_are_in_the_order_of_their_numbers(folder):
    rows = "who,x,label\n" + "".join(f"{i},1,0\n" for i in (10, 9, 9, 100))
    assert from_folder(folder(all__csv=rows), client="who").names == ("9", "10", "100")


def test_files_are_in_the_order_of_their_numbers(folder):
    rows = "x,label\n1,0\n"
    data = from_folder(folder(site_10__csv=rows, site_9__csv=rows, site_b__csv=rows), test=0)
    assert data.names == ("site_9", "site_10", "site_b")


def test_a_csv_file_is_read_row_by_row_into_one_buffer_a_column(folder):
    """Neither rows nor columns of text are kept: text would take twenty times the array."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 10)).astype(np.float32)
    lines = [",".join(map(repr, row)) + ",1" for row in x.tolist()]
    path = folder(a__csv=",".join("abcdefghij") + ",label\n" + "\n".join(lines) + "\n") / "a.csv"
    tracemalloc.start()
    table = read_table(path, ())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(np.stack([table.cells[name].values for name in "abcdefghij"], 1), x)
    assert peak < 5 * x.nbytes


def test_parquet(folder):
    table = {"x": [1.0, 2.0, 3.0], "n": [1, 2, 3], "flag": [True, False, True], "kind": ["u", "v", "u"]}
    category = pa.array(["u", "v", "u"]).dictionary_encode()
    data = from_folder(folder(a__parquet=table, b__parquet=table | {"kind": category}), label="kind", test=0)
    assert data.feature_names == ("x", "n", "flag")
    assert data.train.x[1].tolist() == [2, 2, 0]
    assert data.classes == ("u", "v")
    assert data.sizes.tolist() == [3, 3]


def test_npz_vectors(folder):
    x = np.arange(6, dtype=np.float64).reshape(3, 2)
    mask = np.array([False, True, False])
    data = from_folder(folder(a__npz={"x": x, "y": np.array([0, 1, 2]), "test": mask}))
    assert data.standardise
    assert data.train.x.tolist() == [[0, 1], [4, 5]]
    assert data.test.y.tolist() == [1]
    assert data.classes == ("0", "1", "2")


def test_npz_with_a_client_array(folder):
    x = np.zeros((4, 2))
    arrays = {"x": x, "y": np.arange(4) / 2, "client": np.array([3, 1, 3, 1]), "site": np.array(["p", "q", "q", "q"])}
    path = folder(all__npz=arrays)
    assert from_folder(path).names == ("1", "3")
    assert from_folder(path / "all.npz").task == "regression"
    assert from_folder(path, client="site").names == ("p", "q")


@pytest.mark.parametrize(
    ("x", "shape", "top"),
    [
        (np.full((2, 5, 4), 255, dtype=np.uint8), (1, 5, 4), 1),
        (np.full((2, 5, 4, 3), 255, dtype=np.uint8), (3, 5, 4), 1),
        (np.full((2, 3, 5, 4), 51, dtype=np.uint8), (3, 5, 4), 0.2),
        (np.full((2, 5, 4), 0.5), (1, 5, 4), 0.5),
        (np.full((2, 5, 4), 255.0), (1, 5, 4), 1),
        (np.full((2, 5, 4), -3.0), (1, 5, 4), -3),
    ],
)
def test_npz_images(folder, x, shape, top):
    data = from_folder(folder(a__npz={"x": x, "y": np.array([0, 1])}), test=0)
    assert data.features == shape
    assert float(as_numbers(data.train.x).max()) == pytest.approx(top)
    assert data.train.x.dtype == (torch.uint8 if x.dtype == np.uint8 else torch.float32)
    assert not data.standardise


def test_channels_last_move_to_the_front(folder):
    x = np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3)
    data = from_folder(folder(a__npz={"x": x, "y": np.array([0])}), test=0)
    assert data.train.x[0].tolist() == x[0].transpose(2, 0, 1).tolist()


def test_a_whole_number_here_and_a_decimal_there(folder):
    data = from_folder(folder(a__csv="x,label\n1,1\n", b__csv="x,label\n1,2.5\n"), test=0)
    assert data.task == "regression"
    words = from_folder(folder(a__csv="x,label\n1,1\n", b__csv="x,label\n1,other\n"), test=0)
    assert words.classes == ("1", "other")
    mixed = folder(a__parquet={"x": [1], "label": [7]}, b__parquet={"x": [1], "label": ["other"]})
    for file in mixed.glob("*.csv"):
        file.unlink()
    assert from_folder(mixed, test=0).classes == ("7", "other")


def test_a_column_that_numbers_the_rows_is_no_feature(folder):
    rows = ",height,Unnamed: 0,label\n0,1.5,7,cat\n1,2.5,8,dog\n"
    data = from_folder(folder(a__csv=rows), test=0)
    assert data.feature_names == ("height",)
    assert [note.split(" only")[0] for note in data.notes] == ["''", "'Unnamed: 0'"]


@pytest.mark.parametrize("column", ["school", "place"])
def test_a_likely_column_of_clients_is_named(column, folder):
    rows = f"{column},x,label\n" + "".join(f"{'abc'[i % 3]},{i},{i % 2}\n" for i in range(9))
    with pytest.raises(InvalidInput, match=f"'{column}' looks like it"):
        from_folder(folder(all__csv=rows) / "all.csv")
    with pytest.raises(InvalidInput, match="its columns are 'x', 'label'"):  # neither the label nor the rows' numbers
        from_folder(folder(all__csv=re.sub(r"(?m)^(?=.)", ",", rows)) / "all.csv", label=column)


def test_features_are_those_that_are_named(folder):
    path = folder(a__csv="a,b,c,label\n1,2,3,0\n4,5,6,1\n")
    assert from_folder(path, features="c,a", test=0).train.x.tolist() == [[3, 1], [6, 4]]


def test_a_decimal_comma_goes_with_semicolons(folder):
    path = folder(a__csv="a;label\n1,5;0\n-2;1\n")
    assert from_folder(path, test=0).train.x.tolist() == [[1.5], [-2]]


def test_the_seed_decides_the_split(folder):
    rows = "x,label\n" + "".join(f"{i},{i % 2}\n" for i in range(40))
    path = folder(a__csv=rows)
    prints = [from_folder(path, seed=seed).fingerprint() for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


ONE = {"x": np.zeros((1, 2)), "y": np.zeros(1, dtype=np.int64)}
BAD = {
    "is empty: put one file": {},
    "notes.txt is a file of an unknown type": {"notes__txt": "hello", "a__csv": CSV["a"]},
    r"files of different types \(.csv, .npz\)": {"a__csv": CSV["a"], "b__npz": ONE},
    "b.csv has no rows": {"a__csv": CSV["a"], "b__csv": "height,age,label\n"},
    "The first line of b.csv is empty: it must name": {"a__csv": CSV["a"], "b__csv": ""},
    "The first line of a.csv is empty": {"a__csv": "\n" + CSV["a"]},
    "b.csv lacks 'age' and has extra 'weight', compared with a.csv": {
        "a__csv": CSV["a"],
        "b__csv": "height,weight,label\n1,2,cat\n",
    },
    "b.csv has extra 'test'": {"a__csv": CSV["a"], "b__csv": "height,age,test,label\n1,2,0,cat\n"},
    "column 'age': a.csv, row 3, client 'a', is 'old' where most clients have numbers": {
        "a__csv": "age,label\n1,cat\nold,dog\n"
    },
    "column 'age': 1 missing cell in a.csv, row 2: use missing='median'": {"a__csv": "age,b,label\n,1,cat\n2,1,cat\n"},
    "2 columns cannot be used: column 'dose': b.csv, row 2, client 'b', is 'much' .*; column 'age': 1 missing": {
        "a__csv": "age,dose,label\nNA,1,cat\n3,2,dog\n",
        "b__csv": "age,dose,label\n4,much,cat\n",
    },
    r"b.csv has no column 'label': name the .* labels, label='...' \(--label\); its columns are 'height', 'age'": {
        "a__csv": CSV["a"],
        "b__csv": "height,age\n1,2\n",
    },
    "two columns called 'age'": {"a__csv": "age,age,label\n1,2,cat\n"},
    "a.csv, row 3 has 2 cells where the header has 3": {"a__csv": "height,age,label\n1,2,cat\n1,2\n"},
    "a.csv has no feature columns": {"a__csv": "label\ncat\n"},
    "The label in a.csv, row 3 is missing": {"a__csv": "age,label\n1,cat\n2,\n"},
    "The label in b.csv, row 2 is missing": {"a__csv": "age,label\n1,1.5\n", "b__csv": "age,label\n1,n/a\n"},
    "a.csv, row 2, column 'test': 'maybe'": {"a__csv": "age,test,label\n1,maybe,cat\n"},
    "a.csv cannot be read as csv": {"a__csv": b"age,label\n\xff\xfe,1\n"},
    "Client 'a', train example 0: feature 'age' is inf": {"a__csv": "age,label\ninf,cat\n"},
    "Client 'a' has no training examples": {"a__csv": "age,test,label\n1,1,cat\n"},
    "a.npz has no array 'y': it holds 'x'": {"a__npz": {"x": np.zeros((1, 2))}},
    r"a.npz: x has 1 rows, but y is \[2\]": {"a__npz": ONE | {"y": np.zeros(2)}},
    "No column can be used as a feature": {"a__csv": "name,label\n" + "".join(f"n{i},{i % 2}\n" for i in range(300))},
    "a.npz has no rows": {"a__npz": {"x": np.zeros((0, 2)), "y": np.zeros(0)}},
    r"a.npz: x has the shape \[1\]": {"a__npz": ONE | {"x": np.zeros(1)}},
    "a.npz cannot be read as npz: write it again": {"a__npz": b"noise"},
    "a.npz cannot be read as npz.*not Python objects": {"a__npz": ONE | {"y": np.array([{}])}},
    r"b.npz has examples of shape \[3, 3\], but a.npz of \[2, 2\]": {
        "a__npz": ONE | {"x": np.zeros((1, 2, 2))},
        "b__npz": ONE | {"x": np.zeros((1, 3, 3))},
    },
    "b.npz lacks 'test'": {"a__npz": ONE | {"test": np.array([False])}, "b__npz": ONE},
    "column 'age': 1 missing cell in a.parquet, row 2": {"a__parquet": {"age": [1, None], "label": [0, 1]}},
    "a.parquet: Column 'age' holds lists.*convert or drop it": {"a__parquet": {"age": [[1, 2]], "label": [0]}},
    "a.jsonl, row 2 cannot be read as JSON": {"a__jsonl": '{"x": 1, "label": 0}\n{"x": '},
    "a.jsonl, row 1 is not an object": {"a__jsonl": "[1, 2]\n"},
    "a.csv.gz cannot be read as csv": {"a__csv__gz": b"noise"},
    "a.parquet cannot be read as parquet": {"a__parquet": b"noise"},
}


@pytest.mark.parametrize("complaint", BAD)
def test_bad_folders_are_reported_in_one_line(complaint, folder):
    with pytest.raises(InvalidInput, match=complaint) as caught:
        from_folder(folder(**BAD[complaint]))
    assert "\n" not in str(caught.value)


def test_more_complaints(folder):
    path = folder(a__csv=CSV["a"])
    (path / "sub").mkdir()
    for call, complaint in (
        (lambda: from_folder(path), "sub is a folder: only npz.* or read its pictures or texts in Python"),
        (lambda: from_folder(path / "none"), "none is not a folder"),
        (
            lambda: from_folder(path / "a.csv"),
            "a.csv is one table: name the column that holds the clients, client='...' \\(--client\\)",
        ),
        (lambda: from_folder(path / "a.csv", client="who"), "a.csv has no column 'who'"),
        (
            lambda: from_folder(path / "a.csv", client="age", task="regression"),
            "is the text 'cat': regression needs numbers",
        ),
        (lambda: from_folder(path / "a.csv", client="age", label="kind"), "a.csv has no column 'kind'"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            call()


def test_parquet_without_pyarrow(folder, monkeypatch):
    path = folder(a__parquet={"x": [1], "label": [0]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InvalidInput, match=r"pip install 'corymb\[tables\]'"):
        from_folder(path)


def test_nothing_is_unpickled(folder, tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    path = folder(a__npz=ONE | {"y": np.array([Trap()])})
    with pytest.raises(InvalidInput):
        from_folder(path)
    assert not (tmp_path / "sprung").exists()


def test_a_damaged_npz(folder):
    path = folder(a__npz=ONE) / "a.npz"
    contents = bytearray(path.read_bytes())
    contents[200] ^= 255
    path.write_bytes(contents)
    with pytest.raises(InvalidInput, match=r"a.npz cannot be read as npz \(.*\): write it again"):
        from_folder(path)


def test_blank_lines_at_the_end_are_no_rows(folder):
    assert from_folder(folder(a__csv=CSV["a"] + "\n\n"), test=0).sizes.tolist() == [2]
    with pytest.raises(InvalidInput, match="row 3 has 0 cells"):
        from_folder(folder(a__csv="x,label\n1,0\n\n2,1\n"))


def test_a_folder_can_lack_classes_that_others_have(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "".join(f"{i},no\n" for i in range(10)))
    data = from_folder(tmp_path, label="y", classes=["yes", "no"])
    assert data.classes == ("yes", "no")
    assert set(data.train.y.tolist()) == {1}
    with pytest.raises(InvalidInput, match="'no'"):
        from_folder(tmp_path, label="y", classes=["yes", "maybe"])


def test_arrays_that_are_not_used_are_named(folder):
    arrays = {"x": np.ones((2, 3)), "y": np.array([0, 1])}
    assert from_folder(folder(a__npz=arrays), test=0).notes == ()
    data = from_folder(folder(a__npz=arrays | {"x_test": np.ones((2, 3)), "y_test": np.array([0, 1])}), test=0)
    assert data.notes == ("arrays not used: 'x_test', 'y_test'",)


def test_a_single_file_of_an_unknown_type_is_rejected(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"t\.json is of an unknown type: only npz, csv, .* can be read\.$"):
        from_folder(tmp_path / "t.json")
