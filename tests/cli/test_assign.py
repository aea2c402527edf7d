import json
import re
import shlex
from pathlib import Path

import corymb
from corymb.cli.app import main
from tests.runs import small


def test_the_csv_that_the_user_came_with_is_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small.folder(tmp_path / "clinic", rows=40)
    assert main(shlex.split("run clinic ifca --k 2 --label outcome --restarts 3 --rounds 10 -q --json --out run")) == 0
    labels = json.loads(capsys.readouterr().out)["labels"]
    assert main(shlex.split("assign run clinic/hospital-3.csv --json")) == 0
    assert json.loads(capsys.readouterr().out)["cluster"] == labels["hospital-3"]
    text = (tmp_path / "clinic" / "hospital-3.csv").read_text()
    (tmp_path / "renamed.csv").write_text(text.replace("outcome", "result"))
    assert main(shlex.split("assign run renamed.csv --label result --json")) == 0
    assert json.loads(capsys.readouterr().out)["cluster"] == labels["hospital-3"]
    assert main(shlex.split("assign run renamed.csv")) == 2
    assert "no labels 'outcome'" in capsys.readouterr().err
    (tmp_path / "other.csv").write_text(text.replace("well", "dead"))
    assert main(shlex.split("assign run other.csv")) == 2
    assert "no class 'dead'" in capsys.readouterr().err


def test_numbers_are_assigned_from_a_table_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, y, client = small.prices(clients=4)
    data = corymb.FederatedDataset.from_arrays(x, y, client, standardise=True, feature_names=("area", "distance"))
    corymb.fit(corymb.configure("ifca", data, k=2, restarts=2, rounds=10), data).save("run")
    rows = "".join(f"{d},{a},{p}\n" for (a, d), p in zip(x[:20], y[:20], strict=True))
    (tmp_path / "new.csv").write_text(f"distance,area,label\n{rows}")
    assert main(["assign", "run", "new.csv"]) == 0
    assert capsys.readouterr().out.startswith("new: cluster ")
    several = "".join(f"{d},{a},{p},town-{i % 2}\n" for i, ((a, d), p) in enumerate(zip(x[:20], y[:20], strict=True)))
    (tmp_path / "towns.csv").write_text(f"distance,area,label,client\n{several}")
    assert main(["assign", "run", "towns.csv"]) == 0  # each by itself, not as one client
    assert [line.split(", ")[0][:-1] for line in capsys.readouterr().out.splitlines()] == [
        "town-0: cluster ",
        "town-1: cluster ",
    ]
    assert main(["assign", "run", "towns.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["town-1"]["probability"] > 0.5
    (tmp_path / "bad.csv").write_text("distance,area,label\n1,2,many\n")
    assert main(["assign", "run", "bad.csv"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_readme_makes_the_file_that_it_assigns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "README.md").read_text()
    exec(compile(re.search(r"(?ms)^```python\n(.*?)^```", text)[1], "README", "exec"), {})  # noqa: S102
    lines = re.findall(r"^\$ corymb ((?:assign|predict|export) [^#\n]*)", text, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        assert main(shlex.split(line.replace("runs/second", "runs/first"))) == 0, line
    assert "new: " in capsys.readouterr().out
