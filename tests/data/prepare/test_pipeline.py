"""The data pipeline end to end, on realistic data: missing cells, small clients, and what a run stores of it."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest

import corymb
from corymb.cli.app import main
from corymb.data import FederatedDataset
from corymb.settings import InvalidInput

HEADER = "site,age,colour,seen,label\n"


def rows(count=60, seed=0):
    rng = np.random.default_rng(seed)
    for number in range(count):
        age, colour = rng.uniform(20, 80), "rgb"[rng.integers(3)]
        text = "" if number % 7 == 3 else f"{age:.1f}"
        yield f"s{number % 4},{text},{colour},2024-01-{1 + number % 28:02d},{'old' if age > 50 else 'young'}\n"


def test_new_examples_go_through_what_the_run_learned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(HEADER + "".join(rows()))
    line = "run t.csv ifca --k 2 --rounds 2 --client site --missing median --test 0 -q --json --out run"
    assert main(shlex.split(line)) == 0
    assert json.loads(capsys.readouterr().out)["config"]["missing"] == "median"
    run = corymb.Run.load("run")
    plans = {plan.name: plan for plan in run.schema.preparation.columns}
    assert plans["colour"].categories == ("b", "g", "r")
    new = "colour,seen,age,note\nr,2024-03-01,,x\nviolet,2024-03-02,33.5,y\n"
    (tmp_path / "new.csv").write_text(new)
    assert main(shlex.split("predict run new.csv --cluster 0 --json")) == 0
    found = json.loads(capsys.readouterr().out)
    days = [8826.0, 8827.0]  # since 2000
    encoded = np.array([[plans["age"].fill, 0, 0, 1, days[0]], [33.5, 0, 0, 0, days[1]]], dtype=np.float32)
    assert np.allclose(found["probabilities"], run.predict_proba(encoded, cluster=0))
    frame = pd.DataFrame({"age": [None, 33.5], "colour": ["r", "violet"], "seen": ["2024-03-01", "2024-03-02"]})
    assert run.predict(frame, cluster=0).tolist() == found["predictions"]
    assert set(found["predictions"]) <= {"old", "young"}
    (tmp_path / "mine.csv").write_text(HEADER.replace("site,", "") + "".join(row.partition(",")[2] for row in rows(8)))
    assert main(shlex.split("assign run mine.csv --json")) == 0
    assert json.loads(capsys.readouterr().out)["nearest"] in (0, 1)


def test_a_run_on_prepared_data_is_resumed_and_other_data_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(HEADER + "".join(rows()))
    line = "run t.csv fedavg --rounds 4 --client site --missing mean -q --json --out run --max_seconds 0"
    main(shlex.split(line))
    capsys.readouterr()
    assert main(shlex.split("resume run -q --json")) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["missing"], config["client"]) == ("mean", "site")
    main(shlex.split(line.replace("--out run", "--out other")))
    (tmp_path / "t.csv").write_text(HEADER + "".join(rows(seed=1)))
    capsys.readouterr()
    assert main(shlex.split("resume other -q")) == 2


def test_drop_leaves_out_rows_and_reports_it():
    x = np.array([[1.0, 2], [np.nan, 3], [4, 5], [6, np.nan], [7, 8]])
    data = FederatedDataset.from_arrays(x, [0, 1, 0, 1, 1], ["a", "a", "a", "b", "c"], missing="drop", test=0)
    assert data.names == ("a", "c")
    assert data.train.x.tolist() == [[1, 2], [4, 5], [7, 8]]
    assert data.notes[:2] == (
        "2 of 5 rows lack a value and were dropped",
        "1 client had no complete row and is left out",
    )
    with pytest.raises(InvalidInput, match="Every row lacks a value"):
        FederatedDataset.from_arrays(x * np.nan, [0, 1, 0, 1, 1], list("aaabc"), missing="drop")


@pytest.mark.parametrize("algorithm", [corymb.FedAvg(rounds=2), corymb.IFCA(k=2, rounds=2), corymb.Alone(rounds=2)])
def test_clients_with_hardly_any_data_take_part(algorithm):
    rng = np.random.default_rng(0)
    client = np.repeat(["one", "two", "three", "many"], [1, 2, 3, 30])
    y = np.where(client == "many", rng.integers(0, 2, len(client)), 1)
    data = FederatedDataset.from_arrays(rng.normal(size=(len(client), 3)), y, client)
    assert data.thin == {"few_examples": 3, "one_class": 3, "no_test_example": 2}
    run = corymb.fit(algorithm, data)
    assert run.schema.clients == data.thin
    assert np.isfinite(run.metrics["test_accuracy"])
    assert run.not_scored == ()


def test_one_class_a_client_runs_and_classes_keep_their_names():
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(5), 12)
    data = FederatedDataset.from_arrays(rng.normal(size=(60, 3)) + client[:, None], client - 2, client)
    assert data.classes == ("-2", "-1", "0", "1", "2")
    run = corymb.fit(corymb.FedAvg(rounds=3), data)
    assert run.rejected == []
    assert set(run.predict(data.test.x, client="0").tolist()) <= {-2, -1, 0, 1, 2}


def test_saved_data_keep_how_they_were_prepared(tmp_path):
    frame = pd.DataFrame({"t": ["u", "v"] * 6, "x": [1.0, None] * 6, "label": [0, 1] * 6, "client": ["a", "b"] * 6})
    data = FederatedDataset.from_dataframe(frame, missing="mean")
    loaded = FederatedDataset.load(data.save(tmp_path / "d"))
    assert loaded.preparation == data.preparation
    assert (loaded.fingerprint(), loaded.notes) == (data.fingerprint(), data.notes)


def test_a_loss_of_precision_is_reported():
    rng = np.random.default_rng(0)
    x, client = np.stack([1e9 + rng.normal(size=40), rng.normal(size=40)], 1), np.repeat([0, 1], 20)
    expected = "large numbers that differ only beyond the 7 digits of float32"
    assert FederatedDataset.from_arrays(x, x[:, 1], client).notes == (f"feature 0: {expected}",)
    frame = pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "client": client, "label": x[:, 1]})
    assert FederatedDataset.from_dataframe(frame).notes == (f"column 'u': {expected}",)
    with pytest.raises(InvalidInput, match=r"7 digits of float32: subtract 1000000000 from them first"):
        FederatedDataset.from_arrays(x[:, 1:], x[:, 0], client)
    assert FederatedDataset.from_arrays(x[:, 1:], 1e4 + x[:, 1], client).notes == ()


def test_columns_of_numbers_too_large_to_be_added_up_are_refused_by_name():
    rng = np.random.default_rng(0)
    x, y, client = rng.uniform(0.5, 1, (40, 2)) * [1e19, 1], rng.integers(2, size=40), np.repeat([0, 1], 20)
    with pytest.raises(InvalidInput, match=r"Numbers of feature 0 \(such as [\d.]+e\+18\) are too large"):
        FederatedDataset.from_arrays(x, y, client)
    frame = pd.DataFrame({"u": x[:, 0].astype("uint64"), "v": x[:, 1], "client": client, "label": y})
    with pytest.raises(InvalidInput, match="Numbers of column 'u'"):
        FederatedDataset.from_dataframe(frame)
    x[5:, 0] = 1
    FederatedDataset.from_arrays(x, y, client)  # a few are some client's fault: its replies are refused
