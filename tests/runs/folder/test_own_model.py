"""A run is loaded and resumed with its own model: one with other parameters, or with another `forward`, is refused."""

import numpy as np
import pytest
import torch
from torch import nn

import corymb
from corymb.data.schema import DataSchema, schema_of
from corymb.runs.folder.own_model import answers_of, bounds_of, check_answers
from corymb.runs.learners import learner_for
from corymb.settings import InvalidInput

FEW = corymb.FedAvg(rounds=2)
TABLE = DataSchema(task="classification", features=(3,), classes=("a", "b"))
TEXTS = TABLE._replace(features=(5,), codes=True)
ANOTHER = r"The model is not the run's \(own\): with the same parameters it gives different outputs"


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.two(self.one(x).relu())


class Renamed(Plain):
    """The same model in other words."""

    def forward(self, x):
        return torch.nn.functional.linear(self.one(x).clamp_min(0), self.two.weight, self.two.bias)


class Smooth(Plain):
    def forward(self, x):
        return self.two(nn.functional.gelu(self.one(x)))


class Random(Plain):
    def forward(self, x):
        return super().forward(x) + torch.rand(1)


class Particular(Plain):
    """It accepts only examples with large values."""

    def forward(self, x):
        if x.abs().max() < 100:
            raise ValueError("not mine")
        return super().forward(x)


class Chaotic(Plain):
    """Rounding grows until it is all there is."""

    def forward(self, x):
        state = self.one(x)
        for _ in range(200):
            state = (4 * state + self.one.bias).sin()
        return self.two(state)


class Words(nn.Module):
    def __init__(self, rows=2) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(rows, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.embed(x).mean(1))


def answers(model, schema=TABLE, **options):
    return answers_of(learner_for(model, schema, **options).objective, schema)


def deep():
    return nn.Sequential(
        nn.Linear(3, 8), *(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(30)), nn.Linear(8, 2)
    )


def data():
    rng = np.random.default_rng(0)
    return corymb.FederatedDataset.from_arrays(rng.normal(size=(40, 3)), np.arange(40) % 2, np.arange(40) // 20)


def test_answers_are_those_of_the_forward_whatever_the_parameters_were_at_first():
    assert len(answers(Plain)) == 4
    assert answers(Plain) == answers(Plain()) == pytest.approx(answers(Renamed), rel=1e-5)
    assert len(answers(deep)) == 4
    assert answers(Plain) != pytest.approx(answers(Smooth), rel=1e-2)
    assert len(answers(Words, TEXTS)) == 4


@pytest.mark.parametrize(
    ("model", "schema"), [(Random, TABLE), (Particular, TABLE), (Chaotic, TABLE), (lambda: Words(1), TEXTS)]
)
def test_where_answers_say_nothing_there_are_none(model, schema):
    assert answers(model, schema) == []


def test_dropout_does_not_make_answers_random():
    dropping = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    assert len(answers(dropping)) == 4


@pytest.mark.parametrize("recorded", [None, [], "text", [None], [1.0, "two"], 3])
def test_what_was_not_recorded_is_not_held_against_a_model(recorded):
    check_answers([1.0, 2.0], recorded, "own")
    check_answers([], [1.0, 2.0], "own")


def test_rounding_is_no_other_model():
    check_answers([1.0, -2.0], [1.0001, -2.0001], "own")
    with pytest.raises(InvalidInput, match=ANOTHER):
        check_answers([1.0, -2.0], [1.01, -2.0], "own")


def test_another_forward_is_refused_when_a_run_is_loaded_or_resumed(tmp_path):
    run = corymb.fit(FEW, data(), Plain, out=tmp_path / "run", precision="float64")
    assert corymb.Run.load(run.folder, Renamed).predict([[1.0, 2, 3]], cluster=0) == run.predict(
        [[1.0, 2, 3]], cluster=0
    )
    with pytest.raises(InvalidInput, match=ANOTHER):
        corymb.Run.load(run.folder, Smooth)
    with pytest.raises(InvalidInput, match=ANOTHER):
        corymb.fit(corymb.FedAvg(rounds=3), data(), Smooth, resume=run.folder)
    again = corymb.Run.load(run.folder).save(tmp_path / "copy")
    with pytest.raises(InvalidInput, match=ANOTHER):
        corymb.Run.load(again, Smooth)


def test_runs_that_recorded_no_answers_still_load(tmp_path):
    run = corymb.fit(FEW, data(), Plain)
    del run.config["record"]["answers"]
    assert corymb.Run.load(run.save(tmp_path / "old"), Smooth).objective is not None


def test_a_built_in_model_is_checked_again(tmp_path):
    class Bent(nn.Sequential):
        def forward(self, x):
            return super().forward(x).tanh()

    run = corymb.fit(FEW, data(), "linear", out=tmp_path / "run")
    assert "answers" not in run.config["record"]
    with pytest.raises(InvalidInput, match=r"is not the run's \(linear\): with the same parameters"):
        corymb.Run.load(run.folder, lambda: Bent(nn.Flatten(), nn.Linear(3, 2)))
    assert corymb.Run.load(run.folder, lambda: nn.Sequential(nn.Flatten(), nn.Linear(3, 2))).objective is not None


@pytest.mark.parametrize(("last", "warned"), [(nn.Softmax(-1), True), (nn.LogSoftmax(-1), False), (nn.ReLU(), False)])
def test_a_model_that_ends_in_a_softmax_is_reported(last, warned, caplog):
    data = (np.random.default_rng(0).normal(size=(30, 2)), [0, 1, 2] * 10, [0, 0, 1, 1, 2] * 6)
    corymb.fit(corymb.FedAvg(rounds=1), data, lambda: nn.Sequential(nn.Linear(2, 3), last))
    assert ("remove its last softmax" in caplog.text) == warned


HEADS = [
    (nn.Sigmoid(), "one"),
    (nn.Tanh(), "one"),
    (nn.Softplus(), "sign"),
    (nn.ReLU(), "sign"),
    (nn.Identity(), "none"),
]


@pytest.mark.parametrize(("head", "bounds"), HEADS)
def test_targets_are_centred_only_for_a_model_that_can_learn_them_then(head, bounds, caplog):
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(120, 2)), np.arange(120) % 3
    y = 1 / (1 + np.exp(-2 * x[:, 0]))  # from 0 to 1: half of them are below their mean
    y = y if bounds == "one" else 100 * y

    def model():
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1), head)

    data = corymb.FederatedDataset.from_arrays(x, y, client, test=0)
    assert bounds_of(learner_for(model, schema_of(data)).objective, schema_of(data)) == bounds
    run = corymb.fit(corymb.FedAvg(rounds=30, local=corymb.Descent(lr=0.3, steps=20)), data, model, evaluate_every=0)
    assert ("not standardised" in caplog.text) == (bounds == "one")
    assert ("not centred" in caplog.text) == (bounds == "sign")
    if not isinstance(head, nn.ReLU):  # which may die
        assert np.corrcoef(run.predict(x, cluster=0), y)[0, 1] > 0.97
        assert np.quantile(run.predict(x, cluster=0), 0.1) < np.quantile(y, 0.2)


def test_other_models_have_no_bounds_that_matter():
    classes = DataSchema(task="classification", features=(2,), classes=("a", "b"), standardise=True)
    assert (
        bounds_of(learner_for(lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), classes).objective, classes) == "none"
    )


def test_redrawing_a_trained_object_is_reported(caplog):
    data = (np.random.default_rng(0).normal(size=(30, 2)), [0, 1] * 15, [0, 1, 2] * 10)
    fresh = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 2, 8), nn.Flatten())
    corymb.fit(corymb.FedAvg(rounds=1), data, fresh)
    corymb.fit(corymb.FedAvg(rounds=1), data, lambda: trained(2.0))
    frozen = nn.Sequential(trained(2.0).requires_grad_(False), nn.Linear(2, 2))
    corymb.fit(corymb.FedAvg(rounds=1), data, frozen)
    assert "reinitialised" not in caplog.text
    corymb.fit(corymb.FedAvg(rounds=1), data, nn.Sequential(nn.Linear(2, 2), nn.ReLU(), trained(2.0)))
    assert "reinitialised, but those of layer '2' are not as torch draws them" in caplog.text
    assert "lambda: model" in caplog.text


def trained(weight):
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, weight)
    return layer
