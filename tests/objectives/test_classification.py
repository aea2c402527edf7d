import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import corymb
from corymb.core.objective import Draws, Examples
from corymb.keys import root
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.objectives.class_weight import smoothed
from corymb.objectives.recipe import made_from, recipe_of
from corymb.runs.fit import fit
from corymb.settings import InvalidInput
from tests.runs import small
from tests.tiny import ENGINES, classification, farthest, federation

SMOOTH = 0.2
WEIGHTS = (0.5, 1.0, 3.0)
FAST = corymb.FedAvg(rounds=2, local=Descent(lr=0.3, steps=5))
ON = Examples(torch.arange(10.0).reshape(5, 2).sin(), torch.tensor([0, 2, 1, 1, 0]), torch.ones(5))


@pytest.mark.parametrize("weight", [None, WEIGHTS])
@pytest.mark.parametrize("smoothing", [0.0, SMOOTH, 0.9])
def test_what_training_makes_smaller_is_the_cross_entropy_of_torch(weight, smoothing):
    objective = Classification(Network(lambda: nn.Linear(2, 3)), 3, weight, smoothing)
    params = objective.init(root(0))
    got = objective.training_losses(params, ON, Draws(root(0)))
    weights = None if weight is None else torch.tensor(weight)
    logits = objective.predict(params, ON.x)
    want = cross_entropy(logits, ON.y, weights, reduction="none", label_smoothing=smoothing)
    assert torch.allclose(got, want, atol=1e-6)
    assert torch.equal(objective.losses(params, ON), Classification(objective.network, 3).losses(params, ON))


def _trained(engine, smoothing, weight):
    objective = Classification(Network(mlp(4, [5], 3), dtype=torch.float64), 3, weight, smoothing)
    fed = federation(engine, objective, classification((6, 9)))
    algorithm = corymb.FedAvg(rounds=3, local=Descent(lr=0.5, steps=20))
    *_, at = algorithm.run(fed)
    return at.models


@pytest.mark.parametrize("weight", [None, WEIGHTS])
@pytest.mark.parametrize("engine", [*ENGINES, "wired"])
def test_every_engine_trains_with_smooth_labels_alike(engine, weight):
    models, loop = (_trained(kind, SMOOTH, weight) for kind in (engine, "loop"))
    assert farthest(models, loop) < 1e-9
    assert farthest(models, _trained(engine, 0.0, weight)) > 1e-2


def test_the_objective_is_rebuilt_from_its_recipe_and_describes_itself():
    objective = Classification(Network(mlp(2, [3], 3)), 3, WEIGHTS, SMOOTH)
    there = made_from(recipe_of(objective), allow=("corymb",))
    assert there.describe() == objective.describe()
    assert "labels smoothed by 0.2" in objective.to("cpu", torch.float64).describe()
    plain = Classification(Network(mlp(2, [3], 3)), 3)
    assert "smooth" not in plain.describe()
    assert "label_smoothing" not in plain.recipe()  # so that a node of an older version still reads it


def test_a_linear_form_asks_for_what_training_asks_for():
    objective = Classification(Network(lambda: nn.Linear(2, 3)), 3, WEIGHTS, SMOOTH)
    params, form = objective.init(root(0)), objective.logits
    surprise = -objective.predict(params, ON.x).log_softmax(-1)
    got = form.counts(ON.y) * (surprise * form.shares(ON.y)).sum(-1)
    assert torch.allclose(got, objective.training_losses(params, ON, Draws(root(0))), atol=1e-6)
    assert Classification(objective.network, 3, WEIGHTS).logits.shares is None
    assert Classification(objective.network, 3).logits.counts is None


def test_linear_models_that_are_solved_for_are_smooth_too():
    alone = corymb.Alone(keep="penalised")
    plain, smooth = (fit(alone, small.arrays(), model="linear", label_smoothing=part) for part in (0.0, 0.4))
    assert smooth.metrics["train_loss"] > plain.metrics["train_loss"] + 0.05  # the loss of labels as they are


def test_an_option_of_runs_smooths_and_a_resumed_run_is_the_same(tmp_path):
    settings = {"label_smoothing": SMOOTH, "class_weight": "balanced"}
    want, plain = fit(FAST, small.arrays(), **settings), fit(FAST, small.arrays(), class_weight="balanced")
    assert farthest(want.models, plain.models) > 1e-3
    fit(FAST, small.arrays(), **settings, out=tmp_path / "run", max_seconds=0)
    got = fit(FAST, small.arrays(), resume=tmp_path / "run")
    assert all(torch.equal(got.models[name], want.models[name]) for name in want.models)
    assert corymb.Run.load(tmp_path / "run").config["label_smoothing"] == SMOOTH


def test_invalid_label_smoothing_is_refused_in_a_line():
    network = Network(mlp(2, [], 3))
    for amount in (-0.1, 1.0, float("nan")):
        with pytest.raises(InvalidInput, match=r"label_smoothing must be in \[0, 1\), got"):
            Classification(network, 3, label_smoothing=amount)
    with pytest.raises(InvalidInput, match="label_smoothing is for classification by a network: numbers have no"):
        fit(FAST, small.prices(), label_smoothing=0.1)
    assert smoothed(Classification(network, 3, WEIGHTS), 0.1).class_weight == WEIGHTS
