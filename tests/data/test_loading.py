"""The same numbers give the same data and the same run in every supported format."""

import csv
import gzip
import json
import re
import tempfile
from datetime import date, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import corymb
from corymb.core.pixels import as_numbers
from corymb.data import FederatedDataset, as_dataset, from_folder
from corymb.settings import InvalidInput
from corymb.testing.assertions import same_bits
from tests.runs import small


class Frame:
    """What of a polars frame is used; the test with polars itself is below."""

    def __init__(self, columns):
        self._columns, self.columns, self.shape = columns, list(columns), ()

    def __getitem__(self, name):
        return pd.Series(self._columns[name])


class HuggingFace:
    """What of a Hugging Face data set is used; the test with the real one is below."""

    def __init__(self, columns):
        self._columns, self.column_names = columns, list(columns)
        self.features = dict.fromkeys(columns)

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name):
        return list(self._columns[name])


def of_each(x, y, client):
    return {str(one): (x[client == one], y[client == one]) for one in np.unique(client)}


def columns_of(x, y, client):
    return {**{f"c{place}": x[:, place] for place in range(x.shape[1])}, "label": y, "client": client}


def write_csv(path, columns, delimiter=",", opener=open):
    with opener(path, "wt", newline="") as file:
        rows = csv.writer(file, delimiter=delimiter)
        rows.writerow(columns)
        rows.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    return path


def one_file_a_client(x, y, client, place):
    folder = Path(tempfile.mkdtemp(dir=place))
    for name, (mine, labels) in of_each(x, y, client).items():
        write_csv(folder / f"{name}.csv", {k: v for k, v in columns_of(mine, labels, client).items() if k != "client"})
    return from_folder(folder)


def npz(x, y, client, place):
    np.savez(place / "d.npz", images=x, labels=y, who=client)
    return from_folder(place / "d.npz", features="images", label="labels", client="who")


def jsonl(x, y, client, place):
    columns = {name: values.tolist() for name, values in columns_of(x, y, client).items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (place / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return from_folder(place / "d.jsonl")


def parquet(x, y, client, place):
    pq.write_table(pa.table(columns_of(x, y, client)), place / "d.parquet")
    return from_folder(place / "d.parquet")


def tensors(x, y):
    return TensorDataset(torch.from_numpy(x.copy()), torch.from_numpy(y.copy()))


SOURCES = {
    "arrays": lambda x, y, c, place: FederatedDataset.from_arrays(x, y, c),
    "tensors and lists": lambda x, y, c, place: FederatedDataset.from_arrays(torch.tensor(x), y.tolist(), c.tolist()),
    "tuple": lambda x, y, c, place: as_dataset((x, y, c)),
    "pandas": lambda x, y, c, place: FederatedDataset.from_dataframe(pd.DataFrame(columns_of(x, y, c))),
    "pyarrow": lambda x, y, c, place: as_dataset(pa.table(columns_of(x, y, c))),
    "another frame": lambda x, y, c, place: as_dataset(Frame(columns_of(x, y, c))),
    "dict of clients": lambda x, y, c, place: as_dataset(of_each(x, y, c)),
    "list of pairs": lambda x, y, c, place: as_dataset(list(of_each(x, y, c).values())),
    "dict of frames": lambda x, y, c, place: FederatedDataset.from_clients(
        {str(n): pd.DataFrame(columns_of(x, y, c)).drop(columns="client")[c == n] for n in np.unique(c)}
    ),
    "torch": lambda x, y, c, place: FederatedDataset.from_torch(tensors(x, y), c),
    "torch, and the rows of each client": lambda x, y, c, place: FederatedDataset.from_torch(
        tensors(x, y), {str(n): np.flatnonzero(c == n) for n in np.unique(c)}
    ),
    "torch and client ids": lambda x, y, c, place: as_dataset((tensors(x, y), c)),
    "tuple of torch": lambda x, y, c, place: as_dataset(tuple(tensors(*rows) for rows in of_each(x, y, c).values())),
    "torch, one a client": lambda x, y, c, place: as_dataset([tensors(*rows) for rows in of_each(x, y, c).values()]),
    "Hugging Face": lambda x, y, c, place: FederatedDataset.from_huggingface(HuggingFace(columns_of(x, y, c))),
    "csv": lambda x, y, c, place: from_folder(write_csv(place / "d.csv", columns_of(x, y, c))),
    "csv;": lambda x, y, c, place: from_folder(write_csv(place / "s.csv", columns_of(x, y, c), ";")),
    "tsv": lambda x, y, c, place: from_folder(write_csv(place / "d.tsv", columns_of(x, y, c), "\t")),
    "csv.gz": lambda x, y, c, place: from_folder(write_csv(place / "d.csv.gz", columns_of(x, y, c), opener=gzip.open)),
    "a csv a client": one_file_a_client,
    "jsonl": jsonl,
    "parquet": parquet,
    "npz": npz,
}


def numbered(client):
    """Clients 0, 1, ...: a list of clients has no other names."""
    return np.unique(client, return_inverse=True)[1]


def rows_of_clients():
    """(x, y, client), clients' rows between each other's."""
    order = np.random.default_rng(1).permutation(48)
    return tuple(part[order] for part in small.arrays(clients=4, rows=12))


@cache
def wanted():
    data = FederatedDataset.from_arrays(*rows_of_clients())
    return data, corymb.fit(corymb.IFCA(k=2, rounds=2), data)


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_numbers_are_the_same_data_and_the_same_run(source, tmp_path):
    data, want = wanted()
    got = SOURCES[source](*rows_of_clients(), tmp_path)
    assert got.fingerprint() == data.fingerprint()
    assert got.standardise
    run = corymb.fit(corymb.IFCA(k=2, rounds=2), got)
    assert same_bits(run.snapshot, want.snapshot)
    assert run.metrics == want.metrics
    new = rows_of_clients()[0][:5]
    assert np.array_equal(run.predict_proba(new, client="1"), want.predict_proba(new, client="1"))


TYPES = [np.float32, np.float64, np.int64, np.int16, np.uint8]


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],  # shrinking would take minutes: an example has some twenty files
)
@given(st.data())
def test_tables_of_any_type_are_the_same_in_every_format(tmp_path, data):
    kind = data.draw(st.sampled_from(TYPES))
    cell = st.integers(0, 255) if kind == np.uint8 else st.integers(-30_000, 30_000)
    if kind in (np.float32, np.float64):
        cell = st.floats(-1e6, 1e6, width=32)
    rows = data.draw(st.lists(st.lists(cell, min_size=2, max_size=2), min_size=4, max_size=12))
    x = np.array(rows, dtype=kind)
    client = numbered(np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(x), max_size=len(x)))))
    label = st.sampled_from(data.draw(st.sampled_from([[0, 1], [1, 2], [-1, 1], [0.0, 1.0], [0.5, 2.5]])))
    y = np.array(data.draw(st.lists(label, min_size=len(x), max_size=len(x))))
    want = FederatedDataset.from_arrays(x, y, client)
    for source, read in SOURCES.items():
        assert read(x, y, client, tmp_path).fingerprint() == want.fingerprint(), source


# ---- columns that are not numbers, in the formats that have columns


def mixed(rows=60):
    rng = np.random.default_rng(0)
    return {
        "age": np.where(rng.random(rows) < 0.1, np.nan, rng.uniform(20, 80, rows).round(2)),
        "smokes": rng.random(rows) < 0.4,
        "colour": np.array(["red", "green", "blue"])[rng.integers(0, 3, rows)],
        "seen": np.array([date(2024, 1, 1) + timedelta(days=int(d)) for d in rng.integers(0, 300, rows)], dtype=object),
        "label": np.array(["ill", "well"])[rng.integers(0, 2, rows)],
        "client": np.array([f"clinic-{number}" for number in rng.integers(0, 3, rows)]),
    }


def as_text(columns):
    return {
        name: np.array(["" if value != value else str(value) for value in values.tolist()])
        for name, values in columns.items()
    }


def as_json(columns, place):
    rows = zip(*({**columns, "seen": as_text(columns)["seen"]}[name].tolist() for name in columns), strict=True)
    lines = [json.dumps(dict(zip(columns, row, strict=True))).replace("NaN", "null") for row in rows]
    (place / "m.jsonl").write_text("\n".join(lines) + "\n")
    return place / "m.jsonl"


def as_parquet(columns, place):
    cells = {name: [None if value != value else value for value in values] for name, values in columns.items()}
    pq.write_table(pa.table(cells), place / "m.parquet")
    return place / "m.parquet"


def objects(columns):
    return np.stack([np.asarray(columns[name], dtype=object) for name in ("age", "smokes", "colour", "seen")], 1)


MIXED = {
    "arrays of objects": lambda c, place, o: FederatedDataset.from_arrays(objects(c), c["label"], c["client"], **o),
    "pandas": lambda c, place, o: FederatedDataset.from_dataframe(pd.DataFrame(c), **o),
    "pandas of its own types": lambda c, place, o: FederatedDataset.from_dataframe(
        pd.DataFrame(c).assign(
            seen=lambda d: pd.to_datetime(d["seen"]), colour=lambda d: d["colour"].astype("category")
        ),
        **o,
    ),
    "Hugging Face": lambda c, place, o: FederatedDataset.from_huggingface(HuggingFace(c), **o),
    "csv": lambda c, place, o: from_folder(write_csv(place / "m.csv", as_text(c)), **o),
    "jsonl": lambda c, place, o: from_folder(as_json(c, place), **o),
    "parquet": lambda c, place, o: from_folder(as_parquet(c, place), **o),
}


@pytest.mark.parametrize("missing", ["mean", "median", "drop"])
@pytest.mark.parametrize("source", MIXED)
def test_text_dates_and_missing_cells_are_the_same_in_every_format(source, missing, tmp_path):
    columns = mixed()
    want = FederatedDataset.from_dataframe(pd.DataFrame(columns), missing=missing)
    got = MIXED[source](columns, tmp_path, {"missing": missing})
    assert got.fingerprint() == want.fingerprint()
    assert [plan._replace(name="") for plan in got.preparation.columns] == [
        plan._replace(name="") for plan in want.preparation.columns
    ]
    assert want.feature_names == ("age", "smokes", "colour=blue", "colour=green", "colour=red", "seen")


def test_the_real_polars_package(tmp_path):
    polars = pytest.importorskip("polars")
    columns = mixed()
    frame = polars.DataFrame({name: values.tolist() for name, values in columns.items()}).with_columns(
        polars.col("age").fill_nan(None), polars.col("colour").cast(polars.Categorical)
    )
    want = FederatedDataset.from_dataframe(pd.DataFrame(columns), missing="median")
    assert FederatedDataset.from_dataframe(frame, missing="median").fingerprint() == want.fingerprint()


def test_the_real_hugging_face_package():
    datasets = pytest.importorskip("datasets")
    columns = mixed()
    cells = {name: [None if value != value else value for value in values.tolist()] for name, values in columns.items()}
    want = FederatedDataset.from_dataframe(pd.DataFrame(columns), missing="median")
    got = FederatedDataset.from_huggingface(datasets.Dataset.from_dict(cells), missing="median")
    assert got.fingerprint() == want.fingerprint()


def test_hugging_face_pictures_and_class_names():
    pictures = np.random.default_rng(0).integers(0, 256, (6, 4, 4), dtype=np.uint8)
    data = HuggingFace({"image": list(pictures), "label": [0, 1, 1, 0, 1, 0], "client": ["a", "b"] * 3})
    data.features = {"label": type("ClassLabel", (), {"names": ["cat", "dog"]})}
    made = FederatedDataset.from_huggingface(data, features="image", test=0)
    assert made.features == (1, 4, 4)
    assert made.classes == ("cat", "dog")
    assert made.train.y.tolist() == [0, 1, 1, 1, 0, 0]
    assert made.train.x.dtype == torch.uint8
    assert float(as_numbers(made.train.x).max()) <= 1


def pictures_of_clients():
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (24, 5, 4), dtype=np.uint8), np.arange(24) % 2, np.arange(24) // 2 % 4


PICTURES = {
    **{source: SOURCES[source] for source in ("arrays", "tuple", "dict of clients", "list of pairs", "torch", "npz")},
    "Hugging Face": lambda x, y, c, place: FederatedDataset.from_huggingface(
        HuggingFace({"image": list(x), "label": y.tolist(), "client": c.tolist()}), features="image"
    ),
}


@cache
def divided_before():
    x, y, client = pictures_of_clients()
    data = FederatedDataset.from_arrays(x.astype(np.float32) / np.float32(255), y, client)
    return data, corymb.fit(corymb.IFCA(k=2, rounds=2), data)


@pytest.mark.parametrize("source", PICTURES)
def test_bytes_stay_bytes_and_give_the_results_of_numbers(source, tmp_path):
    before, want = divided_before()
    got = PICTURES[source](*pictures_of_clients(), tmp_path)
    assert (before.train.x.dtype, got.train.x.dtype, got.test.x.dtype) == (torch.float32, torch.uint8, torch.uint8)
    assert got.fingerprint() == before.fingerprint()
    run = corymb.fit(corymb.IFCA(k=2, rounds=2), got)
    assert same_bits(run.snapshot, want.snapshot)
    assert run.metrics == want.metrics
    new = pictures_of_clients()[0][:3]
    assert np.array_equal(
        run.predict_proba(new, client="1"), want.predict_proba(new.astype(np.float32) / np.float32(255), client="1")
    )


WRONG = {
    "a number": (3, "The data are a int: wanted a FederatedDataset"),
    "two arrays": ((np.zeros((2, 2)), [0, 1]), r"Got a tuple of 2: wanted three arrays, \(x, y, client\)"),
    "a list of numbers": ([1, 2], r"Client '0' has a int: wanted a pair \(x, y\)"),
    "a list of triples": ([(1, 2, 3)], "Client '0' has a tuple of 3: wanted a pair"),
    "nobody": ([], "There are no clients"),
    "a frame without clients": (
        pd.DataFrame({"school": ["a", "a", "b", "b"], "x": [1.0, 2, 3, 4], "label": [0, 1, 0, 1]}),
        r"name the column that holds the clients, client='...'; 'school' looks like it",
    ),
    "a torch data set": (TensorDataset(torch.zeros(2, 2), torch.zeros(2)), "does not name its clients"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_other_kinds_of_data_are_refused_in_one_line(kind):
    data, complaint = WRONG[kind]
    with pytest.raises(InvalidInput, match=complaint) as caught:
        corymb.fit(corymb.FedAvg(rounds=1), data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", SOURCES)
def test_examples_without_features_are_refused_in_every_format(source, tmp_path):
    x, y, client = rows_of_clients()
    with pytest.raises(InvalidInput, match=r"has shape \[0\], which has no features|no feature columns"):
        SOURCES[source](x[:, :0], y, numbered(client), tmp_path)


@pytest.mark.parametrize("empty", [np.zeros((4, 0), object), np.zeros((4, 3, 0)), np.zeros((4, 0), int)])
def test_arrays_of_other_types_without_features_are_refused(empty):
    with pytest.raises(InvalidInput, match="which has no features"):
        FederatedDataset.from_arrays(empty, [0, 1, 0, 1], [0, 0, 1, 1])


@pytest.mark.parametrize("other", ["e\u0301", "\uff45\u0301"])
def test_client_names_that_look_the_same_are_reported_as_two(other, tmp_path):
    rows = "".join(f"{name},{i},{i % 2}\n" for i in range(4) for name in ("\u00e9", other, "b"))
    (tmp_path / "rows.csv").write_text("client,a,label\n" + rows, encoding="utf-8")
    data = from_folder(tmp_path / "rows.csv")
    assert len(data) == 3
    (note,) = [note for note in data.notes if "look the same" in note]
    assert "'\\xe9'" in note
    assert note.isascii()
    (tmp_path / "plain.csv").write_text("client,a,label\n" + rows.replace(other, "d"), encoding="utf-8")
    assert not from_folder(tmp_path / "plain.csv").notes


@pytest.mark.parametrize("other", ["store 7", "Store  7", "STORE 7 "])
def test_two_spellings_of_a_client_are_reported_as_two_clients(other):
    x, y = np.arange(12.0)[:, None], [0, 1] * 6
    data = FederatedDataset.from_arrays(x, y, ["Store 7", other, "Store 70"] * 4)
    (note,) = data.notes
    assert "differ only in capitals, blanks or leading zeros and count as two" in note
    assert len(data) == 3
    assert "'0007' and '7'" in FederatedDataset.from_arrays(x, y, ["0007", "7", "70"] * 4).notes[0]
    assert FederatedDataset.from_arrays(x, y, ["7", "70", "700"] * 4).notes == ()


def test_numeric_categories_are_reported_as_numbers():
    frame = pd.DataFrame({"client": [0, 1] * 6, "ward": pd.Categorical([1, 2, 3] * 4), "label": list("ab") * 6})
    data = FederatedDataset.from_dataframe(frame)
    assert data.feature_names == ("ward",)
    assert data.notes == (
        "column 'ward' is categorical, but read as numbers: write its categories as words ('c1') to have a feature "
        "for each",
    )
    words = frame.assign(ward=frame.ward.map("w{}".format), client=frame.client.astype("category"))
    assert FederatedDataset.from_dataframe(words).notes == ()


LONG = 2**62 + np.arange(12) % 3
"""Ids as they are made by clocks and counters: floats hold whole numbers only up to 2**53."""


@pytest.mark.parametrize(
    "source", sorted(set(SOURCES) - {"dict of clients", "list of pairs", "torch, one a client", "tuple of torch"})
)
def test_clients_whose_ids_are_long_numbers_stay_apart(source, tmp_path):
    x, y = np.arange(24.0).reshape(12, 2), np.arange(12) % 2
    assert SOURCES[source](x, y, LONG, tmp_path).names == tuple(str(one) for one in np.unique(LONG))


def test_ids_that_were_rounded_on_the_way_are_refused():
    frame = pd.DataFrame({"a": [1.0, 2.0], "label": [0, 1], "client": [4.6e18, None]})
    with pytest.raises(InvalidInput, match=r"Column 'client' of clients holds decimal numbers such as 4.6e\+18, too"):
        FederatedDataset.from_dataframe(frame, missing="drop")


def test_only_the_column_of_clients_is_read_as_text(monkeypatch):
    """Of every column it would take a minute where there are thousands."""
    asked = []
    monkeypatch.setattr("corymb.data.readers.tables.ids_of", lambda values, name: asked.append(name) or values)
    x, y, client = rows_of_clients()
    for source in ("pandas", "Hugging Face"):
        SOURCES[source](x, y, client.astype(np.str_), None)
    assert asked == ["client", "client"]


def test_hugging_face_pictures_by_the_usual_names_and_their_test_rows():
    pictures = np.random.default_rng(0).integers(0, 256, (6, 4, 4), dtype=np.uint8)
    columns = {"image": list(pictures), "label": [0, 1, 1, 0, 1, 0], "client": ["a", "b"] * 3}
    assert as_dataset(HuggingFace(columns)).features == (1, 4, 4)
    marked = as_dataset(HuggingFace({**columns, "test": [False, False, True, True, False, False]}))
    assert marked.test.x[:, 0].tolist() == pictures[[2, 3]].tolist()


NO_COLUMNS = {
    "a column twice": (dict(client="who", label="who"), "'who' is given as the column of both clients and labels"),
    "a label as a feature": (dict(client="who", features=["a", "label"]), "'label' is given as a feature, but it"),
    "a series": (dict(client=pd.Series(["a", "b"])), "client is a Series: wanted the name of a column"),
    "a share": (dict(client="who", test="a"), "test='a' is not a share of the examples"),
}


@pytest.mark.parametrize(("options", "line"), NO_COLUMNS.values(), ids=NO_COLUMNS)
def test_impossible_column_options_are_refused_in_one_line(options, line):
    frame = pd.DataFrame({"a": [1.0, 2.0], "label": [0, 1], "who": ["a", "b"]})
    with pytest.raises(InvalidInput, match=line):
        FederatedDataset.from_dataframe(frame, **options)


def test_columns_that_are_no_columns_are_refused_in_one_line():
    frame = pd.DataFrame({"a": [1.0, 2.0], "label": [0, 1], "client": ["a", "b"]})
    for one, line in (
        (frame.set_index("client"), "'client' is the index of the data frame, and no column: use frame.reset_index()"),
        (frame.set_index(["a", "label"]), "'label' is the index of the data frame"),
        (frame.rename(columns={"a": "label"}), "The data frame has two columns called 'label': rename one"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(line)):
            FederatedDataset.from_dataframe(one)
    lazy = type("LazyFrame", (), {"collect": lambda self: frame, "columns": property(lambda self: 1 / 0)})()
    with pytest.raises(InvalidInput, match=r"Got a LazyFrame: .*; call its collect\(\)"):
        FederatedDataset.from_dataframe(lazy)  # of polars, which warns if it is asked for its columns


def test_clients_are_never_dropped_or_merged_silently():
    some = ([[1.0], [2.0]], [0, 1])
    with pytest.raises(InvalidInput, match="Client 'b' has no rows"):
        FederatedDataset.from_clients({"a": some, "b": (np.ones((0, 1)), [])})
    with pytest.raises(InvalidInput, match="Two clients are called '1'"):
        FederatedDataset.from_clients({1: some, "1": some})
