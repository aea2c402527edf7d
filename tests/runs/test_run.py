import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import corymb
from corymb.cli.app import main
from corymb.local import Descent
from corymb.objectives import LinearRegression
from corymb.runs.fit import as_dataset, fit
from corymb.runs.folder import layout as run_folder
from corymb.runs.folder.layout import OWN
from corymb.settings import InvalidInput
from corymb.wire import pack, unpack
from tests.runs import small

FAST = corymb.IFCA(k=2, rounds=3, local=Descent(lr=0.3, steps=5))


@pytest.fixture(scope="module")
def run():
    return fit(FAST, small.arrays())


def test_a_saved_run_keeps_no_dict_of_all_clients(tmp_path):
    saved = fit(FAST, small.arrays(), out=tmp_path / "run")
    assert "labels" not in vars(saved)
    assert saved.to_dict()["labels"] == saved.labels


class Unsearched(tuple):
    """Names of clients in which nothing is searched one by one."""

    def __contains__(self, name):
        raise AssertionError("a search through all clients")

    index = __contains__


def test_predictions_for_all_clients_do_not_search_for_each(run):
    many = replace(run, names=Unsearched(run.names))
    x = torch.zeros(1, *run.schema.features).numpy()
    assert [many.predict(x, client=name)[0] for name in run.names] == [run.predict(x, client=n)[0] for n in run.names]
    assert many._position(1) == 1


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A run whose clients and classes have names."""
    data = corymb.datasets.from_folder(small.folder(tmp_path_factory.mktemp("data") / "clinic"), label="outcome")
    return fit(FAST, data)


def test_labels_are_by_name_and_index_the_models(words):
    assert list(words.labels) == [f"hospital-{i}" for i in range(6)]
    assert words.clusters == len(set(words.labels.values()))
    assert sum(words.sizes.values()) == 6
    label = words.labels["hospital-3"]
    for name, value in words.model("hospital-3").items():
        assert torch.equal(value, words.models[name][label])
        assert torch.equal(value, words.model(label)[name])


def test_predictions_are_class_names_or_numbers(words, run):
    x = small.arrays()[0]
    named = words.predict(x[:5], client="hospital-2")
    assert set(named) <= {"ill", "well"}
    assert np.array_equal(named, words.predict(x[:5], client=2))
    numbered = run.predict(x[:5], client="2")
    assert numbered.dtype == np.int64
    assert run.predict(x[0], client=0).shape == (1,)
    assert run.predict(torch.tensor(x[:5]), client=0).shape == (5,)
    assert run.predict(x[:5].tolist(), client=0).shape == (5,)


LABELS = {"booleans": [True, False], "integers": [-3, 7], "names": ["no", "yes"], "days": ["2024-01-01", "2024-02-01"]}


@pytest.mark.parametrize("two", LABELS.values(), ids=LABELS)
def test_predictions_can_be_compared_with_the_labels(two, tmp_path):
    x = np.linspace(-1, 1, 40)[:, None]
    y = np.array([two[int(value > 0)] for value in x[:, 0]])
    run = corymb.fit(corymb.FedAvg(rounds=5), (x, y, ["a", "b"] * 20), "linear")
    run.save(tmp_path / "run")
    for one in (run, corymb.Run.load(tmp_path / "run")):
        predicted = one.predict(x, client="a")
        assert predicted.dtype == y.dtype
        assert (predicted == y).mean() > 0.8


def test_predictions_are_those_that_were_scored(run):
    data = as_dataset(small.arrays(), seed=0)
    hits = [
        (run.predict(x.numpy(), client=c) == y.numpy()).mean() for c, (x, y) in enumerate(map(data.test.of, range(6)))
    ]
    assert np.mean(hits) == pytest.approx(run.metrics["test_accuracy"])


def test_a_clusters_predictions_are_those_of_its_clients(words):
    x = small.arrays()[0]
    for name, label in words.labels.items():
        assert np.array_equal(words.predict(x, cluster=label), words.predict(x, client=name))
        assert np.array_equal(words.predict_proba(x, cluster=label), words.predict_proba(x, client=name))


def test_probabilities_are_of_each_class_and_the_likeliest_is_predicted(words, run):
    x = small.arrays()[0]
    for which, classes in ((words, np.array(words.schema.classes)), (run, np.arange(2))):
        chances = which.predict_proba(x, client=3)
        assert chances.shape == (len(x), 2)
        assert np.allclose(chances.sum(1), 1)
        assert np.array_equal(classes[chances.argmax(1)], which.predict(x, client=3))


def test_a_new_client_gets_the_model_of_its_cluster():
    run = fit(corymb.IFCA(k=2, rounds=20, restarts=3, local=FAST.local), small.arrays(rows=60))
    x, y, client = small.arrays(clients=2, rows=40, seed=5)
    for number in range(2):
        few, rest = np.flatnonzero(client == number)[:20], np.flatnonzero(client == number)[20:]
        label = run.assign(x[few], y[few]).cluster
        assert label == run.labels[str(number)]
        told = (x[few], y[few])
        assert np.array_equal(run.predict(x[rest], new=told), run.predict(x[rest], cluster=label))
        assert np.array_equal(run.predict_proba(x[rest], new=told), run.predict_proba(x[rest], cluster=label))
        assert (run.predict(x[rest], new=told) == y[rest]).mean() > 0.8
    with pytest.raises(InvalidInput, match="no cluster fits: the nearest"):
        run.predict(x, new=(x, np.random.default_rng(0).integers(0, 2, len(x))))


def test_there_are_no_probabilities_of_numbers():
    run = fit(corymb.FedAvg(rounds=1), small.prices(clients=2))
    with pytest.raises(InvalidInput, match="predicts numbers"):
        run.predict_proba([[1.0, 2.0]], client=0)
    assert run.predict([[1.0, 2.0]], cluster=0).shape == (1,)


@pytest.mark.parametrize("data", [small.arrays(), small.prices()], ids=["classes", "numbers"])
def test_a_mixture_predicts_the_same_live_and_from_its_folder(data, tmp_path):
    run = fit(corymb.FedSoft(k=2, rounds=3, local=Descent(lr=0.1, steps=5)), data)
    assert run.served == "mixture"
    again = corymb.Run.load(run.save(tmp_path / "run"))
    x, shares = data[0], run.snapshot.shares
    assert bool(((shares > 0).sum(1) == 2).all())
    ask = run.predict_proba if run.schema.task == "classification" else run.predict
    of_each = np.stack([ask(x, cluster=j) for j in range(2)])  # a mixture of probabilities, or of numbers
    for client in range(6):
        weight = (shares[client] / shares[client].sum()).numpy()
        assert np.allclose(ask(x, client=client), np.tensordot(weight, of_each, 1), rtol=1e-4, atol=1e-6)
        assert np.array_equal(run.predict(x, client=client), again.predict(x, client=client))
        if run.schema.task == "classification":
            assert np.array_equal(run.predict_proba(x, client=client), again.predict_proba(x, client=client))


def test_pictures_are_taken_as_the_data_were():
    rng = np.random.default_rng(0)
    x, y, client = rng.integers(0, 255, (12, 6, 6), dtype=np.uint8), np.arange(12) % 2, np.arange(12) % 3
    data = corymb.FederatedDataset.from_arrays(x[:, None], y, client)
    run = fit(corymb.FedAvg(rounds=1), data)
    assert run.schema.features == (1, 6, 6)
    assert np.array_equal(run.predict(x, client=0), run.predict(x[:, None], client=0))
    chances = run.predict_proba(x, client=0)
    for one in (x[3], x[3][None], x[3][..., None]):
        assert run.predict_proba(one, client=0) == pytest.approx(chances[3:4], abs=1e-6)
    colour = rng.integers(0, 255, (12, 6, 6, 3), dtype=np.uint8)
    run = fit(corymb.FedAvg(rounds=1), (colour, y, client))
    chances = run.predict_proba(colour, client=0)
    assert run.predict_proba(colour[3], client=0) == pytest.approx(chances[3:4], abs=1e-6)  # channels last, as in all


WRONG = {
    "a client": (lambda run: run.predict([[1.0, 2.0]], client="12"), "no client '12'"),
    "a position": (lambda run: run.predict([[1.0, 2.0]], client=6), "no client 6"),
    "a fraction of a position": (lambda run: run.predict([[1.0, 2.0]], client=0.5), "client=0.5: wanted the name"),
    "a fraction of a cluster": (lambda run: run.predict([[1.0, 2.0]], cluster=0.5), "cluster=0.5: wanted its number"),
    "a shape": (
        lambda run: run.predict([[1.0, 2.0, 3.0]], client=0),
        r"shape \[3\], but those of the run have shape \[2\]",
    ),
    "a cluster": (lambda run: run.model(2), "no cluster 2"),
    "a cluster to predict with": (lambda run: run.predict([[1.0, 2.0]], cluster=2), "no cluster 2"),
    "nobody": (lambda run: run.predict([[1.0, 2.0]]), "one of client=, cluster= and new="),
    "two": (lambda run: run.predict([[1.0, 2.0]], 1, cluster=0), "one of client=, cluster= and new="),
    "nobody's probabilities": (lambda run: run.predict_proba([[1.0, 2.0]]), "one of client=, cluster= and new="),
}


@pytest.mark.parametrize(("ask", "line"), WRONG.values(), ids=WRONG)
def test_requests_for_what_a_run_lacks_are_refused(ask, line, run):
    with pytest.raises(InvalidInput, match=line):
        ask(run)


def test_a_number_that_is_one_clients_name_and_anothers_position_is_refused():
    x, y, client = small.arrays()
    run = fit(corymb.FedAvg(rounds=1), (x, y, client + 1))
    assert run.names[:2] == ("1", "2")
    assert len(run.predict(x[:2], client="1")) == 2
    assert len(run.predict(x[:2], client=0)) == 2  # nobody is called 0
    line = "client=1 is ambiguous: it is the position of client '2', and there is a client '1'. Give the name as text"
    with pytest.raises(InvalidInput, match=line):
        run.predict(x[:2], client=1)


def test_a_client_is_known_by_its_name_as_it_was_given():
    """Line breaks in names are kept as they are shown, escaped."""
    x, y, client = small.arrays()
    run = fit(corymb.FedAvg(rounds=1), (x, y, [f"row\n{number}" for number in client]))
    assert run.names[1] == "row\\n1"
    assert (run.predict(x[:2], client="row\n1") == run.predict(x[:2], client="row\\n1")).all()


def test_a_number_that_is_a_name_with_zeros_in_front_is_refused():
    x, y, client = small.arrays()
    run = fit(corymb.FedAvg(rounds=1), (x, y, [f"{number + 1:04}" for number in client]))
    assert run.names[1] == "0002"
    with pytest.raises(
        InvalidInput, match="client=1 is ambiguous: it is the position of client '0002', and there is a client '0001'"
    ):
        run.predict(x[:2], client=1)
    last = len(run.names)
    with pytest.raises(InvalidInput, match=f"no client {last}: .* the name is text, client='000{last}'"):
        run.predict(x[:2], client=last)


def test_rows_by_name_are_examples():
    frame = pd.DataFrame(
        {"client": list("ab") * 20, "age": range(40), "sex": list("fmm" * 13 + "f"), "label": [0, 1] * 20}
    )
    run = fit(corymb.FedAvg(rounds=1), frame)
    rows = frame[["sex", "age"]][:4]
    wanted = run.predict_proba(frame[:4], client="a")
    assert np.array_equal(run.predict_proba(rows.to_dict("records"), client="a"), wanted)
    assert np.array_equal(run.predict_proba({"sex": "f", "age": 0}, client="a"), wanted[:1])
    assert np.array_equal(run.predict_proba(rows.iloc[1], client="a"), wanted[1:2])  # by name, in another order
    with pytest.raises(InvalidInput, match="no column 'sex'"):
        run.predict([{"age": 3}], client="a")


def test_a_client_that_never_took_part_has_no_model():
    run = fit(corymb.IFCA(k=2, rounds=1, participants=2), small.arrays())
    name = next(name for name, label in run.labels.items() if label < 0)
    best = int(run.losses[run.names.index(name)].argmin())
    with pytest.raises(InvalidInput, match=rf"no reply of it was accepted in a round.*: {best} fits its training"):
        run.predict([[1.0, 2.0]], client=name)


def test_the_model_of_an_empty_cluster_predicts_with_a_warning(caplog):
    run = fit(corymb.IFCA(k=3, rounds=2, repair=False), small.arrays())
    (empty,) = {0, 1, 2} - set(run.sizes)
    for _ in range(2):
        run.predict([[1.0, 2.0]], cluster=empty)
        run.predict([[1.0, 2.0]], cluster=next(iter(run.sizes)))
    assert [line for line in caplog.messages if "no client is in" in line] == [
        f"no client is in cluster {empty}: its model may not be trained (run.sizes has the others)"
    ]


def test_one_model_is_also_that_of_a_client_that_never_took_part(tmp_path):
    run = fit(corymb.FedAvg(rounds=1, participants=2), small.arrays())
    name = next(name for name, label in run.labels.items() if label < 0)
    for one in (run, corymb.Run.load(run.save(tmp_path / "run"))):
        assert all(torch.equal(value, run.models[key][0]) for key, value in one.model(name).items())
        assert (one.predict([[1.0, 2.0]], client=name) == run.predict([[1.0, 2.0]], cluster=0)).all()


def test_the_result_is_plain_json(run):
    result = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    keys = ["labels", "metrics", "not_scored", "clusters", "ledger", "rejected", "seconds", "config", "seed"]
    assert list(result) == keys
    assert set(result["ledger"]) == {"bytes_down", "bytes_up", "rounds"}
    assert result["labels"] == run.labels
    assert result["clusters"] == run.clusters


def test_a_run_describes_itself(run):
    text = repr(run)
    assert text.startswith("Run of ifca on arrays with linear, seed 0")
    assert "test_accuracy" in text


def test_a_run_is_loaded_from_its_folder(words, tmp_path):
    again = corymb.Run.load(words.save(tmp_path / "new" / "run"))
    assert again.to_dict() == words.to_dict() | {"config": again.config}
    assert again.history == words.history
    assert again.ledger == words.ledger
    assert again.schema == words.schema
    x = small.arrays()[0]
    assert np.array_equal(again.predict(x, client="hospital-1"), words.predict(x, client="hospital-1"))
    data = corymb.datasets.from_folder(small.folder(tmp_path / "clinic"), label="outcome")
    longer = corymb.IFCA(k=2, rounds=4, local=FAST.local)
    one, other = (fit(longer, data, start=start.snapshot) for start in (words, again))
    assert all(torch.equal(one.models[name], other.models[name]) for name in one.models)


def test_a_run_is_never_overwritten(run, tmp_path):
    run.save(tmp_path / "run")
    with pytest.raises(InvalidInput, match="not empty"):
        run.save(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="is a file"):
        run.save(tmp_path / "file")


def test_a_folder_holds_nothing_that_is_run_when_it_is_read(run, tmp_path):
    names = sorted(path.name for path in run.save(tmp_path / "run").iterdir())
    assert names == [
        "clients.json",
        "config.toml",
        "environment.json",
        "losses.safetensors",
        "result.json",
        "rounds.jsonl",
        "snapshot.safetensors",
        "standard.safetensors",
    ]


@pytest.mark.parametrize("name", [run_folder.CONFIG, run_folder.RESULT, run_folder.ROUNDS, run_folder.SNAPSHOT])
@pytest.mark.parametrize("damage", [b"", b"\xff\xfe{", b'{"a": 1}'])
def test_a_damaged_folder_is_refused_in_a_line(name, damage, run, tmp_path):
    place = run.save(tmp_path / "run")
    if not (name == run_folder.ROUNDS and damage == b""):  # no rounds are a history, if an odd one
        (place / name).write_bytes(damage)
        with pytest.raises(InvalidInput, match="cannot be read as a run") as error:
            corymb.Run.load(place)
        assert "\n" not in str(error.value)


def test_a_folder_without_a_run_is_refused(tmp_path, run):
    with pytest.raises(InvalidInput, match=r"is not a run: it has no config\.toml"):
        corymb.Run.load(tmp_path)
    with pytest.raises(InvalidInput, match="not a folder"):
        corymb.Run.load(tmp_path / "nothing")
    place = run.save(tmp_path / "run")
    shutil.copy(place / run_folder.SNAPSHOT, place / run_folder.STANDARD)
    with pytest.raises(InvalidInput, match="cannot be read as a run"):
        corymb.Run.load(place)


def test_a_folder_of_several_runs_says_so_to_every_command(tmp_path, run, capsys):
    for seed in (0, 1):
        run.save(tmp_path / "group" / f"seed-{seed}")
    group = str(tmp_path / "group")
    for command in ("report", "resume", "audit", "export --cluster 0", "predict new.csv --client 0"):
        name, *rest = command.split()
        assert main([name, group, *rest]) == 2
        line = capsys.readouterr().err
        assert f"is not a run, but holds 2 runs: give one of them, such as {tmp_path / 'group' / 'seed-0'}." in line
        assert line.count("\n") == 1


def make():
    return nn.Linear(2, 2)


def test_a_folder_of_runs_is_reported_as_such(run, tmp_path):
    for seed in (0, 1):
        run.save(tmp_path / f"seed-{seed}")
    with pytest.raises(InvalidInput, match=r"is not a run, but holds 2 runs: give one of them, such as .*seed-0"):
        corymb.Run.load(tmp_path)


def test_a_custom_model_is_given_again(tmp_path):
    run = fit(FAST, small.arrays(), make)
    place = run.save(tmp_path / "run")
    x = small.arrays()[0]
    with pytest.raises(InvalidInput, match="give it again"):
        corymb.Run.load(place).predict(x, client=0)
    for model in (make, nn.Linear(2, 2), "tests.runs.test_run:make"):
        again = corymb.Run.load(place, model=model)
        assert np.array_equal(again.predict(x, client=0), run.predict(x, client=0))


def squares(x):
    return torch.cat([x, x.square()], 1)


class Mine:
    """A custom objective."""

    def init(self, key):
        return {"layer.weight": torch.zeros(2, 2)}

    def predict(self, params, x):
        return x @ params["layer.weight"].T

    def losses(self, params, examples):
        return nn.functional.cross_entropy(self.predict(params, examples.x), examples.y, reduction="none")

    def scores(self, params, examples):
        return (self.predict(params, examples.x).argmax(-1) == examples.y).to(examples.weight)


def pictures():
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (12, 1, 6, 6), dtype=np.uint8), np.arange(12) % 2, np.arange(12) % 3


LEARNED = {
    "mlp": (small.arrays, None),
    "linear": (small.prices, None),
    "linear-regression": (small.prices, "linear-regression"),
    "features": (small.prices, LinearRegression(2, features=squares)),
    "one's own module": (small.arrays, make),
    "one's own for numbers": (small.prices, lambda: nn.Linear(2, 1)),
    "one's own objective": (small.arrays, Mine()),
    "pictures": (pictures, None),
}


@pytest.mark.parametrize(("data", "model"), LEARNED.values(), ids=LEARNED)
def test_a_clusters_module_predicts_by_itself_in_the_units_of_the_data(data, model):
    x, y, client = data()
    run = fit(corymb.IFCA(k=2, rounds=2, local=Descent(lr=0.01, steps=2)), (x, y, client), model)
    raw = torch.as_tensor(x) if x.dtype == np.uint8 else torch.as_tensor(x).float()
    for cluster in range(2):
        module = run.module(cluster)
        assert type(module).__mro__[1] is nn.Module
        before = {name: value.clone() for name, value in run.model(cluster).items()}
        out = module(raw)
        if run.schema.task == "regression":
            assert np.allclose(out.detach().numpy(), run.predict(x, cluster=cluster), rtol=1e-5)
        else:
            assert np.allclose(out.softmax(-1).detach().numpy(), run.predict_proba(x, cluster=cluster), atol=1e-5)
        out.square().sum().backward()  # it can be trained on, and the run stays as it is
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        assert all(torch.equal(value, before[name]) for name, value in run.model(cluster).items())


def test_a_module_comes_back_from_a_folder_and_its_state_from_another(tmp_path):
    run = fit(FAST, small.arrays())
    again = corymb.Run.load(run.save(tmp_path / "run")).module(1)
    x = torch.as_tensor(small.arrays()[0]).float()
    assert torch.equal(again(x), run.module(1)(x))
    again.load_state_dict(run.module(0).state_dict())
    assert torch.equal(again(x), run.module(0)(x))
    assert not torch.equal(run.module(0)(x), run.module(1)(x))
    with pytest.raises(InvalidInput, match="no cluster 2"):
        run.module(2)


def test_models_that_stay_with_clients_in_this_process_are_saved_with_the_run(tmp_path):
    x, y, client = small.prices(clients=3)
    run = fit(corymb.Alone(rounds=10, local=Descent(lr=0.15, steps=10)), (x, y, client))
    assert "  clients   3, each with a model of its own\n" in repr(run)
    own = [run.predict(x[client == c], client=c) for c in range(3)]
    errors = [np.abs(own[c] - y[client == c]).mean() for c in range(3)]
    assert max(errors) < 3000
    assert not torch.equal(run.model("0")["1.weight"], run.model("1")["1.weight"])
    with pytest.raises(InvalidInput, match="its own model"):
        run.predict(x, cluster=0)
    saved = corymb.Run.load(run.save(tmp_path / "run"))
    for loaded in (saved, corymb.Run.load(saved.save(tmp_path / "again"))):
        assert all((loaded.predict(x[client == c], client=c) == own[c]).all() for c in range(3))
        assert torch.equal(loaded.model("1")["1.weight"], run.model("1")["1.weight"])
        module = loaded.module("1")
        assert np.allclose(module(torch.as_tensor(x[client == 1]).float()).detach(), own[1], rtol=1e-4)
        with pytest.raises(InvalidInput, match="Algorithms with clusters"):
            loaded.assign(x, y)
        with pytest.raises(InvalidInput, match="its own model"):
            loaded.predict(x, cluster=0)


@pytest.mark.parametrize("algorithm", [corymb.Alone(rounds=3, keep="best"), corymb.SRFCA(refinements=0)])
def test_models_of_clients_own_are_those_of_the_run_in_its_folder(algorithm, tmp_path):
    x, y, client = small.arrays()
    run = corymb.fit(algorithm, (x, y, client), out=tmp_path / "run")
    loaded = corymb.Run.load(tmp_path / "run")
    assert loaded.served == "own"
    for name in run.names:
        assert all(torch.equal(value, run.model(name)[part]) for part, value in loaded.model(name).items())
        assert (loaded.predict(x, client=name) == run.predict(x, client=name)).all()


def test_a_client_whose_model_is_not_in_the_folder_gets_a_line(tmp_path, monkeypatch):
    x, y, client = small.arrays()
    monkeypatch.setattr("corymb.runs.serving.MOST_OWN", 100)  # bytes
    run = corymb.fit(corymb.Alone(rounds=1), (x, y, client), out=tmp_path / "run")
    assert run.model("0")
    assert not (tmp_path / "run" / OWN).exists()
    with pytest.raises(InvalidInput, match="stayed with it and is not in the run's folder") as error:
        corymb.Run.load(tmp_path / "run").predict(x, client=0)
    assert "ifca" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_client_whose_model_stayed_at_a_node_gets_a_line_that_says_what_has_it(tmp_path):
    x, y, client = small.arrays()
    corymb.fit(corymb.Alone(rounds=1), (x, y, client), out=tmp_path / "run")
    (tmp_path / "run" / OWN).unlink()
    loaded = corymb.Run.load(tmp_path / "run")
    on_a_federation = replace(loaded, config={**loaded.config, "engine": "flower"})
    with pytest.raises(InvalidInput, match="The model of client '0' stayed at its node") as error:
        on_a_federation.predict(x, client=0)
    assert "run.predict and run.module ask the node" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "clients", "shape", "names", "no models"])
def test_a_file_of_clients_models_that_is_damaged_gets_a_line(damage, tmp_path):
    x, y, client = small.arrays()
    corymb.fit(corymb.Alone(rounds=1), (x, y, client), out=tmp_path / "run")
    place = tmp_path / "run" / OWN
    own = unpack(place.read_bytes())
    models = own["models"]
    spoiled = {
        "clients": {**own, "known": own["known"][1:]},
        "shape": {**own, "models": {name: value[..., None] for name, value in models.items()}},
        "names": {**own, "models": {f"other.{name}": value for name, value in models.items()}},
        "no models": {"known": own["known"]},
    }
    place.write_bytes(place.read_bytes()[:-9] if damage == "cut" else pack(spoiled[damage]))
    with pytest.raises(InvalidInput, match=OWN) as error:
        corymb.Run.load(tmp_path / "run").predict(x, client=0)
    assert "\n" not in str(error.value)


def test_a_longer_run_that_is_killed_does_not_predict_with_the_shorter_ones_models(tmp_path, monkeypatch):
    data, place = small.arrays(), tmp_path / "run"
    corymb.fit(corymb.Alone(rounds=1), data, out=place)

    def fail(row):
        raise KeyError("here")

    with pytest.raises(KeyError):
        corymb.fit(corymb.Alone(rounds=3), data, resume=place, callbacks=[fail])
    with pytest.raises(InvalidInput, match="not in the run's folder"):
        corymb.Run.load(place).predict(data[0], client=0)
    run = corymb.fit(corymb.Alone(rounds=3), data, resume=place)
    assert (corymb.Run.load(place).predict(data[0], client=0) == run.predict(data[0], client=0)).all()


def test_numbers_without_end_become_null():
    from corymb.runs.history import plain

    assert plain({"a": [float("nan"), 1.0, (float("inf"), "x")]}) == {"a": [None, 1.0, [None, "x"]]}


def test_many_examples_are_predicted_block_by_block(monkeypatch):
    x, y, client = small.arrays()
    run = corymb.fit(corymb.IFCA(k=2, rounds=2), (x, y, client))
    want = run.predict_proba(x, cluster=0)
    sizes, plain = [], type(run.objective).predict
    monkeypatch.setattr("corymb.runs.serving.AT_ONCE", 2 * 100)
    kind = type(run.objective)
    monkeypatch.setattr(
        kind, "predict", lambda self, params, rows: sizes.append(len(rows)) or plain(self, params, rows)
    )
    assert np.allclose(run.predict_proba(x, cluster=0), want, atol=1e-6)
    assert sizes == [100, 20]


@pytest.mark.parametrize("refinements", [0, 1])
def test_a_saved_run_of_sr_fca_predicts_and_assigns_with_its_clusters(tmp_path, refinements):
    x, y, client = small.arrays()
    local = corymb.Descent(lr=0.3, steps=5)
    finish = corymb.FedAvg(rounds=3, local=local)
    algorithm = corymb.SRFCA(threshold="gap", refinements=refinements, rounds=2, local=local, finish=finish)
    run = fit(algorithm, (x, y, client), out=tmp_path / "run")
    loaded = corymb.Run.load(tmp_path / "run")
    assert run.served == loaded.served == "assigned"
    data = corymb.datasets.FederatedDataset.from_arrays(x, y, client)
    for place, name in enumerate(run.names):
        rows, labels = data.test.of(place)
        predicted = loaded.predict(rows, client=name)
        assert np.array_equal(predicted, run.predict(rows, cluster=run.labels[name]))
        assert np.mean(predicted == labels.numpy()) == pytest.approx(float(run.scores[place]))
    assert loaded.assign(x[client == 0], y[client == 0]).nearest == run.labels["0"]


def test_a_run_of_sr_fca_that_is_not_refined_yet_serves_own_models():
    def stop(row):
        if row["stage"] == "train-1":
            raise corymb.StopRun

    run = fit(corymb.SRFCA(threshold="gap", rounds=2), small.arrays(), callbacks=stop)
    assert run.served == "own"
