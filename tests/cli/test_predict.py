import csv
import io
import json
import shlex

import numpy as np
import pytest

import corymb
from corymb.cli.app import main
from corymb.data.prepare.pipeline import Preparation
from tests.runs import small

IFCA = corymb.IFCA(k=2, rounds=3)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A run on tables with named columns, and one on a table with a column of clients."""
    monkeypatch.chdir(tmp_path)
    small.folder(tmp_path / "clinic")
    assert main(shlex.split("run clinic ifca --k 2 --label outcome --rounds 3 -q --json --out named")) == 0
    return tmp_path


def output_of(line, capsys):
    capsys.readouterr()
    assert main(shlex.split(line)) == 0
    return capsys.readouterr().out


def test_a_table_is_read_by_the_names_of_its_columns(here, capsys):
    x = small.arrays()[0][:5].astype(np.float32)
    run = corymb.Run.load("named")
    want, chances = run.predict(x, client="hospital-3"), run.predict_proba(x, client="hospital-3")
    (here / "in-order.csv").write_text("age,dose\n" + "".join(f"{a},{d}\n" for a, d in x))
    (here / "turned.csv").write_text("dose,outcome,age\n" + "".join(f"{d},well,{a}\n" for a, d in x))
    for name in ("in-order.csv", "turned.csv"):
        found = json.loads(output_of(f"predict named {name} --client hospital-3 --json", capsys))
        assert found["predictions"] == want.tolist()
        assert found["classes"] == ["ill", "well"]
        assert np.allclose(found["probabilities"], chances, atol=1e-6)
        rows = list(csv.DictReader(io.StringIO(output_of(f"predict named {name} --client hospital-3", capsys))))
        assert [row["prediction"] for row in rows] == want.tolist()
        assert np.allclose([float(row["p_well"]) for row in rows], chances[:, 1], atol=1e-6)


def test_a_cluster_predicts_into_a_file_from_any_kind_of_file(here, capsys):
    import pyarrow
    from pyarrow import parquet

    x = small.arrays()[0][:4].astype(np.float32)
    want = corymb.Run.load("named").predict(x, cluster=1).tolist()
    np.savez("new.npz", x=x)
    parquet.write_table(pyarrow.table({"dose": x[:, 1], "age": x[:, 0]}), "new.parquet")
    for name in ("new.npz", "new.parquet"):
        assert output_of(f"predict named {name} --cluster 1 --out {name}.csv", capsys) == ""
        rows = list(csv.DictReader(io.StringIO((here / f"{name}.csv").read_text())))
        assert [row["prediction"] for row in rows] == want


def test_rows_go_by_their_column_of_clients_and_one_model_needs_no_choice(here, capsys):
    x, y, client = small.prices(clients=4)
    lines = [f"town-{c},{a},{d},{p}" for c, (a, d), p in zip(client, x, y, strict=True)]
    (here / "prices.csv").write_text("\n".join(["town,area,distance,price", *lines[::-1], ""]))
    table = "prices.csv {} --client town --label price --rounds 2 -q --json --out {}"
    for name, algorithm in (("many", "ifca --k 2"), ("one", "fedavg")):
        output_of("run " + table.format(algorithm, name), capsys)
    run, turned = corymb.Run.load("many"), x[::-1].astype(np.float32)
    found = json.loads(output_of("predict many prices.csv --json", capsys))
    want = [run.predict(row, client=f"town-{c}")[0] for row, c in zip(turned, client[::-1], strict=True)]
    assert np.allclose(found["predictions"], want)
    assert "classes" not in found
    (here / "new.csv").write_text("area,distance\n100,3\n")
    assert output_of("predict one new.csv", capsys).splitlines()[0] == "prediction"


BAD = {
    "a column is missing": (
        "age\n1\n",
        "--cluster 0",
        "bad.csv lacks columns 'dose': the run's columns are 'age', 'dose'.",
    ),
    "a column is called otherwise": ("age,dosage\n1,2\n", "--cluster 0", "lacks columns 'dose' and has extra 'dosage'"),
    "text": ("age,dose\n1,2\n3,much\n", "--cluster 0", "column 'dose': bad.csv, row 3 is 'much', wanted numbers"),
    "not finite": ("age,dose\n1,2\n3,nan\n", "--cluster 0", "column 'dose': bad.csv, row 3 is missing"),
    "no rows": ("age,dose\n", "--cluster 0", "has no rows"),
    "nobody": ("age,dose\n1,2\n", "", "--client NAME or --cluster NUMBER"),
    "both": ("age,dose\n1,2\n", "--cluster 0 --client hospital-1", "not both"),
    "no such cluster": ("age,dose\n1,2\n", "--cluster 2", "no cluster 2"),
    "a column": ("age,dose\n1,2\n", "--client client", "'client' is the client column"),
    "no such client": ("age,dose\n1,2\n", "--client hospital-9", "There is no client 'hospital-9'. Did you mean"),
}


def test_errors_are_one_line(here, capsys):
    for text, options, line in BAD.values():
        (here / "bad.csv").write_text(text)
        capsys.readouterr()
        assert main(shlex.split(f"predict named bad.csv {options}")) == 2
        printed = capsys.readouterr()
        assert line in printed.err
        assert (printed.err.count("\n"), printed.out) == (1, "")
    for name, line in (("nothing.csv", "is not a file"), ("named/config.toml", "unknown type")):
        assert main(["predict", "named", name, "--cluster", "0"]) == 2
        assert line in capsys.readouterr().err


def test_columns_that_are_not_used_are_named(here, capsys):
    (here / "more.csv").write_text("patient,age,dose\nx-1,50,100\n")
    capsys.readouterr()
    assert main(shlex.split("predict named more.csv --cluster 0")) == 0
    assert capsys.readouterr().err == "corymb: columns not used: patient\n"


def test_without_names_the_order_of_the_columns_counts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = small.arrays()[0]
    run = corymb.fit(IFCA, small.arrays())
    run.save("unnamed")
    (tmp_path / "new.csv").write_text("p,q,label\n" + "".join(f"{a},{d},1\n" for a, d in x[:3]))
    found = json.loads(output_of("predict unnamed new.csv --cluster 0 --json", capsys))
    assert found["predictions"] == run.predict(x[:3], cluster=0).tolist()
    (tmp_path / "wide.csv").write_text("p,q,r\n1,2,3\n")
    assert main(shlex.split("predict unnamed wide.csv --cluster 0")) == 2
    assert "3 feature columns ('p', 'q', 'r'), but the run's examples have shape [2]" in capsys.readouterr().err


def test_rows_get_their_own_cluster_where_examples_have_clusters(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "sites"
    folder.mkdir()
    for site, number in (("one", 1), ("few", 3), ("many", 30)):
        rows = "".join(f"{10 * (i % 2) + 0.01 * i},{500 * (i % 2) + i}\n" for i in range(number))
        (folder / f"{site}.csv").write_text("age,dose\n" + rows)
    line = "run sites uifca --k 2 --density gaussian --init kfed --json -q --out points"
    found = json.loads(output_of(line, capsys))
    assert sum(found["points"]) > 25
    assert found["clusters"] == 2
    (tmp_path / "new.csv").write_text("age,dose\n0,1\n10,510\n0.1,3\n")
    head, *labels = output_of("predict points new.csv", capsys).split()
    assert head == "cluster"
    assert labels[0] == labels[2] != labels[1]
    assert json.loads(output_of("predict points new.csv --json", capsys))["clusters"] == [
        int(label) for label in labels
    ]
    assert main(shlex.split("assign points new.csv")) == 2
    assert "corymb predict points new.csv" in capsys.readouterr().err
    assert main(shlex.split("predict points new.csv --cluster 1")) == 2
    assert main(shlex.split("run sites kfed --k 2 -q --out kfed")) == 0
    printed = capsys.readouterr().out
    assert "examples" in printed
    assert "clients" not in printed.split("test score")[0]
    assert "corymb run sites uifca --k 2" in printed


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_rows_that_lack_a_value_are_left_empty_after_a_run_that_dropped_them(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    of = {"numbers": "{}.5", "classes": "c{}"}[kind]
    rows = [f"{'ab'[i % 2]},{i % 7},{'' if i == 3 else i % 3},{of.format(i % 2)}" for i in range(24)]
    (tmp_path / "t.csv").write_text("client,u,v,label\n" + "\n".join(rows) + "\n")
    assert main(shlex.split(f"run t.csv fedavg --rounds 2 --missing drop --out {kind} -q")) == 0
    capsys.readouterr()
    (tmp_path / "new.csv").write_text("client,u,v\na,1,2\na,,2\nb,3,1\n")
    assert main(["predict", kind, "new.csv", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == "corymb: 1 of 3 rows lack a value and are left out: new.csv, row 3\n"
    found = json.loads(out)
    assert [value is None for value in found["predictions"]] == [False, True, False]
    assert [one is None for one in found.get("probabilities", [0, None, 0])] == [False, True, False]
    table = list(csv.reader(io.StringIO(output_of(f"predict {kind} new.csv", capsys))))
    assert (len(table), set(table[2])) == (4, {""})
    (tmp_path / "told.csv").write_text(f"client,u,v,label\na,1,2,{of.format(1)}\na,,2,\na,3,1,\nb,1,1,{of.format(0)}\n")
    assert main(["assign", kind, "told.csv", "--json"]) == 0
    out, err = capsys.readouterr()
    assert set(json.loads(out)) == {"a", "b"}
    assert err == "corymb: 2 of 4 rows lack a value and are left out: told.csv, rows 3, 4\n"
    (tmp_path / "none.csv").write_text("client,u,v\na,,2\n")
    assert main(["predict", kind, "none.csv"]) == 2
    assert "Every row of none.csv lacks a value" in capsys.readouterr().err


def test_clients_whose_names_do_not_print_are_found_in_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, y, client = small.arrays()
    rows = [
        ["who", "age", "dose", "outcome"],
        *([f"a\n{c}", a, d, o] for (a, d), o, c in zip(x, y, client, strict=True)),
    ]
    with open("t.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert main(shlex.split("run t.csv ifca --k 2 --client who --label outcome --rounds 3 -q --out run")) == 0
    run = corymb.Run.load("run")
    assert run.names[0] == "a\\n0"
    found = json.loads(output_of("predict run t.csv --json", capsys))["predictions"]
    want = [run.predict([row], client=f"a\\n{c}")[0] for row, c in zip(x, client, strict=True)]
    assert found == want
    assert len(output_of("assign run t.csv", capsys).splitlines()) == 6


def test_clients_of_one_cluster_predict_together(here, monkeypatch, capsys):
    x, y, client = small.arrays()
    rows = "".join(f"{c},{a},{d},{o}\n" for (a, d), o, c in zip(x, y, client, strict=True))
    (here / "t.csv").write_text(f"client,age,dose,label\n{rows}")
    assert main(shlex.split("run t.csv ifca --k 2 --rounds 3 -q --out run")) == 0
    calls, plain = [], corymb.Run.answers
    monkeypatch.setattr(corymb.Run, "answers", lambda *args, **how: calls.append(how) or plain(*args, **how))
    output_of("predict run t.csv", capsys)
    assert len(calls) <= 2  # clusters, not six clients


def test_rows_are_prepared_together_and_predicted_once(here, monkeypatch, capsys):
    """The first preparation reads the file, the second checks what it gave, however many clients there are."""
    x, y, client = small.arrays()
    rows = "".join(f"{c},{a},{d},{o}\n" for (a, d), o, c in zip(x, y, client, strict=True))
    (here / "t.csv").write_text(f"client,age,dose,label\n{rows}")
    assert main(shlex.split("run t.csv alone --rounds 3 -q --out run")) == 0
    run = corymb.Run.load("run")
    prepared, predicted, apply, predictions = [], [], Preparation.apply, corymb.runs.run.predictions
    monkeypatch.setattr(Preparation, "apply", lambda self, x, *where: prepared.append(x) or apply(self, x, *where))
    monkeypatch.setattr("corymb.runs.run.predictions", lambda *given: predicted.append(given) or predictions(*given))
    found = json.loads(output_of("predict run t.csv --json", capsys))
    assert (len(prepared), len(predicted)) == (2, 6)
    assert sum(len(features) for _, _, features in predicted) == len(x)
    for name in run.names:
        mine = client == int(name)
        assert np.array_equal(np.array(found["predictions"])[mine], run.predict(x[mine], client=name))
        assert np.array_equal(np.array(found["probabilities"])[mine], run.predict_proba(x[mine], client=name))


def test_booleans_are_written_as_their_classes_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{client},{x},{x > 0}\n" for client in "ab" for x in range(-5, 6))
    (tmp_path / "t.csv").write_text(f"client,x,label\n{rows}")
    assert main(shlex.split("run t.csv fedavg --rounds 5 -q --json --out run")) == 0
    written = list(csv.DictReader(io.StringIO(output_of("predict run t.csv", capsys))))
    assert {row["prediction"] for row in written} == {"false", "true"}
    assert {f"p_{row['prediction']}" for row in written} < set(written[0])
    assert set(json.loads(output_of("predict run t.csv --json", capsys))["predictions"]) == {False, True}
