import sys

import numpy as np
import pytest
import torch
from torch import nn

import corymb
from corymb.data.schema import DataSchema
from corymb.keys import root
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression, Regression
from corymb.runs.learners import MODELS, default_model, learner_for
from corymb.settings import InvalidInput

CLASSES = tuple("0123456789")
PICTURE = DataSchema(task="classification", features=(1, 28, 28), classes=CLASSES)
FLAT = DataSchema(task="classification", features=(784,), classes=CLASSES)
DIGITS = DataSchema(task="classification", features=(64,), classes=CLASSES)
TABLE = DataSchema(task="regression", features=(5,), standardise=True)
MIXTURE = DataSchema(task="regression", features=(5,), linear=True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (PICTURE, "cnn"),
        (PICTURE._replace(features=(1, 8, 8)), "mlp"),
        (PICTURE._replace(features=(1, 28, 20)), "mlp"),
        (FLAT, "mlp"),
        (DIGITS, "mlp"),
        (TABLE, "linear"),
        (MIXTURE, "linear-regression"),
        (TABLE._replace(task="classification", classes=("a", "b")), "linear"),
    ],
)
def test_every_kind_of_data_has_a_model(kind, name):
    assert default_model(kind, examples=1000) == name
    objective = learner_for(None, kind).objective
    params = objective.init(root(0))
    out = objective.predict(params, torch.zeros(3, *kind.features))
    assert out.shape == ((3, len(kind.classes)) if kind.task == "classification" else (3,))


def test_a_table_of_classes_gets_a_perceptron_where_there_are_enough_examples():
    table = TABLE._replace(task="classification", classes=("a", "b"))
    parameters = 32 * 6 + 2 * 33
    assert default_model(table, examples=10 * parameters - 1) == "linear"
    assert default_model(table, examples=10 * parameters) == "mlp"


def test_a_linear_model_starts_near_zero_but_clusters_start_apart():
    objective = learner_for("linear", TABLE).objective
    first, second = (objective.init(root(seed))["1.weight"] for seed in (0, 1))
    assert 0 < first.abs().max() < 0.1
    assert not torch.equal(first, second)


def test_sizes_of_the_default_networks():
    digits, flat = (learner_for(None, kind).objective.init(root(0)) for kind in (DIGITS, FLAT))
    assert digits["1.weight"].shape == (32, 64)
    assert flat["1.weight"].shape == (200, 784)


def test_codes_have_no_default_model():
    with pytest.raises(InvalidInput, match="embeds"):
        default_model(FLAT._replace(codes=True), examples=1000)


TEXT = DataSchema(task="classification", features=(7,), classes=CLASSES, codes=True)


@pytest.mark.parametrize(
    ("name", "kind", "line"),
    [
        ("char-lstm", TEXT, ""),
        ("char-lstm", TEXT._replace(codes=False), "needs text"),
        ("resnet9", PICTURE, ""),
        ("resnet9", PICTURE._replace(features=(3, 7, 8)), r"shape \[3, 7, 8\]"),
        ("resnet9", FLAT, r"shape \[784\]"),
        ("ifca-cifar", PICTURE._replace(features=(3, 32, 32)), ""),
        ("ifca-cifar", PICTURE, r"colour images .*shape \[1, 28, 28\]"),
        ("ifca-cifar", PICTURE._replace(features=(3, 32, 20)), r"at least 24 x 24.*shape \[3, 32, 20\]"),
        ("ifca-cifar", FLAT, r"shape \[784\]"),
    ],
)
def test_networks_of_the_papers_by_name(name, kind, line):
    if line:
        with pytest.raises(InvalidInput, match=line):
            learner_for(name, kind)
        return
    objective = learner_for(name, kind).objective
    x = torch.zeros(2, *kind.features, dtype=torch.int64 if kind.codes else torch.float32)
    assert objective.predict(objective.init(root(0)), x).shape == (2, 10)


def test_the_task_decides_what_is_learned():
    assert isinstance(learner_for(nn.Linear(5, 1), TABLE).objective, Regression)
    assert isinstance(learner_for(nn.Linear(64, 10), DIGITS).objective, Classification)
    assert isinstance(learner_for("linear-regression", TABLE).objective, LinearRegression)
    own = LinearRegression(5)
    assert learner_for(own, TABLE).objective is own


def test_names_are_kept():
    assert learner_for(None, DIGITS).name == learner_for("mlp", DIGITS).name == "mlp"
    assert learner_for(nn.Linear(64, 10), DIGITS).name == "own"


WRONG = {
    "cnn": (("cnn", DIGITS), "square images"),
    "linear-regression": (("linear-regression", DIGITS), "for regression"),
    "unknown": (("mlpp", DIGITS), "Did you mean 'mlp'"),
    "no module": (("nowhere.at_all:model", DIGITS), "no module 'nowhere.at_all'"),
    "no name": (("torch.nn:Linnear", DIGITS), "Did you mean 'Linear'"),
    "no place": ((":model", DIGITS), "not of the form"),
    "not a model": (("math:pi", DIGITS), "The model is a float"),
}


@pytest.mark.parametrize(("asked", "line"), WRONG.values(), ids=WRONG)
def test_models_that_are_not_there_are_refused(asked, line):
    with pytest.raises(InvalidInput, match=line):
        learner_for(*asked)


def test_a_module_in_the_working_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "corymb_test_nets.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(64, 10)\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert learner_for("corymb_test_nets:make", DIGITS).name == "corymb_test_nets:make"
    assert sys.path == before
    del sys.modules["corymb_test_nets"]


def test_a_missing_dependency_of_a_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "corymb_test_broken.py").write_text("import not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="not_installed_anywhere"):
        learner_for("corymb_test_broken:make", DIGITS)


def test_all_models_are_described():
    assert all(model.description for model in MODELS.values())


@pytest.mark.parametrize("kind", [PICTURE, TABLE, MIXTURE])
def test_a_kind_survives_json(kind):
    import json

    assert DataSchema.read(json.loads(json.dumps(kind.describe()))) == kind


# ---- codes


def embedding(words=6):
    return lambda: nn.Sequential(nn.Embedding(words, 4), nn.Flatten(), nn.Linear(8, 2))


def worded(top=6, scale="codes"):
    """Six clients with pairs of words; what those of the second half say means the opposite."""
    rng = np.random.default_rng(0)
    words, client = rng.integers(6, size=(240, 2)), np.arange(240) // 40
    y = (words[:, 0] < 3) ^ (client >= 3)
    words[client == 5, 1] += top - 6
    return corymb.FederatedDataset.from_arrays(words, y.astype(int), client, scale=scale), words


@pytest.mark.parametrize("engine", ["vectorised", "loop"])
def test_words_reach_a_model_that_embeds_them(engine):
    data, words = worded()
    run = corymb.fit(corymb.IFCA(k=2, rounds=8), data, embedding(), engine=engine)
    assert run.clusters == 2
    assert run.metrics["test_accuracy"] > 0.95
    assert (run.predict(words[:5], client="0") == (words[:5, 0] < 3)).all()
    with pytest.raises(InvalidInput, match="codes go up to 9: its embedding needs more rows"):
        run.predict(words[:5] * 0 + 9, client="0")
    with pytest.raises(InvalidInput, match="integers from 0"):
        run.assign(words[:5] - 0.5, [0] * 5)


MISREAD = {
    "numbers": (worded(scale="none"), embedding(), r"it embeds codes: declare the features as such \(scale='codes'"),
    "a model of numbers": (worded(), "mlp", "the features are codes: use a model that embeds them"),
    "too few rows": (worded(), embedding(2), r"codes go up to \d: its embedding needs more rows"),
    "no model": (worded(), None, "The features are codes, not numbers: give a model"),
}


@pytest.mark.parametrize(("data", "model", "line"), MISREAD.values(), ids=MISREAD)
def test_a_model_that_does_not_fit_codes_is_reported(data, model, line):
    with pytest.raises(InvalidInput, match=line) as error:
        corymb.fit(corymb.FedAvg(rounds=1), data[0], model)
    assert "\n" not in str(error.value)


class Windows(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.layer(x)[0][:, -1])


@pytest.mark.parametrize(
    "model", [lambda: Windows(nn.GRU(3, 4, batch_first=True)), lambda: nn.Conv1d(8, 4, 2)], ids=["GRU", "Conv1d"]
)
def test_windows_that_were_taken_for_pictures_are_spoken_of(model):
    x, y, client = np.zeros((24, 8, 3)), [0, 1] * 12, [0, 1, 2] * 8
    with pytest.raises(
        InvalidInput, match=r"read as pictures: for windows of a signal use scale='none' \(--scale none"
    ):
        corymb.fit(corymb.FedAvg(rounds=1), (x, y, client), model)


class Looked(nn.Module):
    """It takes a number and a code out of each example."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(torch.cat([x[:, :1], self.embed(x[:, 1].long())], 1))


def test_codes_among_numbers_require_unstandardised_features():
    x, y, client = np.stack([np.linspace(0, 1, 30), np.arange(30) % 5], 1), [0, 1] * 15, [0, 1, 2] * 10
    with pytest.raises(InvalidInput, match=r"features are standardised: where the model takes codes .* scale='none'"):
        corymb.fit(corymb.FedAvg(rounds=1), (x, y, client), Looked)
    data = corymb.FederatedDataset.from_arrays(x, y, client, scale="none")
    assert corymb.fit(corymb.FedAvg(rounds=1), data, Looked).metrics["test_accuracy"] >= 0


def test_a_client_with_words_that_nobody_else_has_does_not_end_the_run():
    data, _ = worded(top=50)
    run = corymb.fit(corymb.FedAvg(rounds=2), data, embedding())
    assert run.not_scored == ("5",)
    assert {row["client"] for row in run.rejected} == {"5"}
    assert all(row["replied"] == 5 for row in run.history)


class Halved:
    """An objective, as short as one can be."""

    def __init__(self, part=0.5):
        self.part, self.network = part, Network(mlp(64, [], 10))

    def init(self, key):
        return self.network.init(key)

    def losses(self, params, examples):
        return self.part * self.network(params, examples.x).square().sum(-1)


class Parted(Halved):
    def __init__(self, part):
        super().__init__(part)


def made_halved():
    return Halved(0.25)


def test_an_objective_is_made_by_its_class_or_by_a_function():
    for given, part in ((Halved(0.1), 0.1), (Halved, 0.5), (made_halved, 0.25)):
        assert learner_for(given, DIGITS).objective.inner.part == part
    assert learner_for(f"{__name__}:Halved", DIGITS).name == f"{__name__}:Halved"
    with pytest.raises(InvalidInput, match=r"Parted cannot be created without arguments.*missing 1.*Parted\(\.\.\.\)"):
        learner_for(Parted, DIGITS)


def test_a_function_that_makes_a_module_is_tried_without_touching_the_global_generator():
    before = torch.get_rng_state()
    objective = learner_for(lambda: nn.Linear(64, 10), DIGITS).objective
    assert isinstance(objective, Classification)
    assert torch.equal(torch.get_rng_state(), before)
