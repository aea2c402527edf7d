import json
import shlex

import numpy as np
import torch
from safetensors import safe_open
from torch import nn

import corymb
from corymb.cli.app import main
from tests.runs import small


def test_an_exported_model_predicts_without_the_library(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small.folder(tmp_path / "clinic")
    assert main(shlex.split("run clinic ifca --k 2 --label outcome --rounds 3 -q --json --out run")) == 0
    capsys.readouterr()
    assert main(shlex.split("export run --cluster 1")) == 0
    assert capsys.readouterr().out == "run/cluster-1.safetensors\n"
    with safe_open("run/cluster-1.safetensors", "pt") as file:
        about = json.loads(file.metadata()["corymb"])
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    assert about["classes"] == ["ill", "well"]
    assert about["schema"]["feature_names"] == ["age", "dose"]
    assert about["standardising"]["features"] == "(x - mean) / scale"
    assert not any("hospital" in str(value) for value in about.values())  # clients are not named
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    inner = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
    network.load_state_dict(inner)
    x = torch.as_tensor(small.arrays()[0]).float()
    logits = network((x - state["mean"]) / state["scale"])
    want = corymb.Run.load("run").predict_proba(x.numpy(), cluster=1)
    assert np.allclose(logits.softmax(-1).detach().numpy(), want, atol=1e-5)


def test_what_cannot_be_exported_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    corymb.fit(corymb.FedAvg(rounds=1), small.arrays()).save("run")
    corymb.fit(corymb.Alone(rounds=1), small.arrays()).save("alone")
    for line, what in (
        ("export run --cluster 1", "no cluster 1"),
        ("export alone --cluster 0", "models of their own"),
        ("export run --cluster 0 --format onnx", "safetensors"),
        ("export run --cluster 0 --out run", "is a folder"),
    ):
        assert main(shlex.split(line)) == 2
        printed = capsys.readouterr().err
        assert what in printed
        assert printed.count("\n") == 1
