import json
import shlex
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import corymb
from corymb.cli.app import main
from tests.runs import small


def test_an_exported_model_predicts_without_the_library(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small.folder(tmp_path / "clinic")
    assert main(shlex.split("run clinic ifca --k 2 --label outcome --model mlp --rounds 3 -q --json --out run")) == 0
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


@pytest.mark.parametrize("data", [small.arrays, small.prices])
def test_an_onnx_file_gives_the_same_predictions_for_any_number_of_examples(data, tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    run = corymb.fit(corymb.FedAvg(rounds=2), data())
    run.save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--cluster", "0", "--format", "onnx"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'run' / 'cluster-0.onnx'}\n"
    assert err == ""
    proto = onnx.load(out.strip())
    x = data()[0][:7].astype(np.float32)
    for some in (x, x[:1]):
        (output,) = ReferenceEvaluator(proto).run(None, {"x": some})
        want = run.module(0)(torch.as_tensor(some)).detach().numpy()
        assert output.shape == want.shape
        assert np.allclose(output, want, rtol=1e-5, atol=1e-5)
    about = json.loads({prop.key: prop.value for prop in proto.metadata_props}["corymb"])
    assert about["classes"] == list(run.schema.classes)


def test_without_onnx_there_is_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnx", None)
    corymb.fit(corymb.FedAvg(rounds=1), small.arrays()).save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--cluster", "0", "--format", "onnx"]) == 2
    assert capsys.readouterr().err == "corymb: ONNX is not installed: pip install 'corymb[onnx]'.\n"


def test_models_that_cannot_be_exported_are_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    corymb.fit(corymb.FedAvg(rounds=1), small.arrays()).save("run")
    corymb.fit(corymb.Alone(rounds=1), small.arrays()).save("alone")
    corymb.fit(corymb.IFCA(k=2, rounds=1), small.arrays()).save("two")
    for line, what in (
        ("export run --cluster 1", "no cluster 1"),
        ("export alone --cluster 0", "Each client of this run has its own model: give --client NAME"),
        ("export alone", "Each client of this run has its own model: give --client NAME"),
        ("export alone --client nobody", "no client 'nobody'"),
        ("export run --client nobody", "no client 'nobody'"),
        ("export run --client 1 --cluster 0", "not both"),
        ("export two", "--cluster NUMBER (0 to 1) or --client NAME"),
        ("export run --cluster 0 --format pickle", "safetensors"),
        ("export run --cluster 0 --out run", "is a folder"),
    ):
        assert main(shlex.split(line)) == 2
        printed = capsys.readouterr().err
        assert what in printed
        assert printed.count("\n") == 1


def test_a_clients_own_model_is_exported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = corymb.fit(corymb.Alone(rounds=2), small.arrays(), out="alone")
    assert main(["export", "alone", "--client", "3"]) == 0
    assert capsys.readouterr().out == "alone/client-3.safetensors\n"
    parameters = load_file("alone/client-3.safetensors")
    want = run.module("3").state_dict()
    assert all(torch.equal(parameters[name], value) for name, value in want.items())
    with safe_open("alone/client-3.safetensors", "pt") as file:
        about = json.loads(file.metadata()["corymb"])
    assert (about["client"], about["clients"], about["algorithm"]) == (3, 1, "alone")


def test_a_client_has_the_model_of_its_cluster_and_one_cluster_needs_no_number(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = corymb.fit(corymb.IFCA(k=2, rounds=1), small.arrays())
    run.save("two")
    name, number = next(iter(run.labels.items()))
    assert main(["export", "two", "--client", name, "--out", "mine"]) == 0
    assert main(["export", "two", "--cluster", str(number)]) == 0
    mine, its = load_file("mine"), load_file(f"two/cluster-{number}.safetensors")
    assert all(torch.equal(mine[name], its[name]) for name in mine | its)
    corymb.fit(corymb.FedAvg(rounds=1), small.arrays()).save("one")
    assert main(["export", "one"]) == 0
    assert capsys.readouterr().out.endswith("one/cluster-0.safetensors\n")
