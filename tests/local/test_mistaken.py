"""Client functions that pass k models where one is expected, or the reverse, or differentiate an operation."""

import pytest
import torch
from torch import nn
from torch.func import vmap

from corymb import keys
from corymb.core.client import on_client
from corymb.core.federation import Federation
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.local import Descent, descend, descend_from, gradient, loss, losses, point_losses, score, scores
from corymb.models import Network
from corymb.objectives import LinearRegression, Regression
from corymb.testing.engines import DOUBLE
from corymb.testing.small_data import regression
from corymb.trees import take

HOW = Descent(lr=0.1, steps=2)
OBJECTIVES = {
    "line": LinearRegression(3, dtype=torch.float64),
    "intercept": LinearRegression(3, intercept=True, dtype=torch.float64),
    "network": Regression(Network(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))).to("cpu", torch.float64)),
}


def leaves(models):
    return {name: value.detach().requires_grad_() for name, value in models.items()}


@on_client
def descend_stack(client, models):
    return descend(client, models, HOW)


@on_client
def gradient_of_stack(client, models):
    return gradient(client, models)


@on_client
def loss_of_stack(client, models):
    return loss(client, models)


@on_client
def score_of_stack(client, models):
    return score(client, models)


@on_client
def losses_of_one(client, models):
    return losses(client, take(models, 0))


@on_client
def scores_of_one(client, models):
    return scores(client, take(models, 0))


@on_client
def points_of_one(client, models):
    return point_losses(client, take(models, 0)).sum()


@on_client
def descend_from_one(client, models):
    return descend_from(client, take(models, 0), torch.tensor(0), HOW)


WRONG = {
    descend_stack: "descend takes one model, got {k} .*, wanted .*: train one of them, descend",
    gradient_of_stack: "gradient takes one model, got {k} .*: take one of them, gradient",
    loss_of_stack: "loss takes one model, got {k} .*: losses",
    score_of_stack: "score takes one model, got {k} .*: scores",
    losses_of_one: "losses takes k stacked models, got one .*, wanted k × .*: loss",
    scores_of_one: "scores takes k stacked models, got one .*: score",
    points_of_one: "point_losses takes k stacked models, got one .*: stack the model first",
    descend_from_one: "descend_from takes k stacked models, got one .*: descend",
}


def federation(engine, name, k):
    """A federation, and k models for it."""
    objective = OBJECTIVES[name]
    rows = [objective.init(keys.root(j)) for j in range(k)]
    models = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return Federation(engine(objective, regression(), DOUBLE)), models


@pytest.mark.parametrize("engine", [LoopEngine, VectorisedEngine])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("fn", WRONG, ids=lambda fn: fn.body.__name__)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_wrong_number_of_models_is_reported_in_one_line_with_advice(fn, name, engine, k, caplog):
    fed, models = federation(engine, name, k)
    several = f"{k} stacked models" if k > 1 else "a stack of one model"
    with pytest.raises(TypeError, match=WRONG[fn].format(k=several)) as ended:
        fed.clients.map(fn, models)
    assert "\n" not in str(ended.value)
    assert not caplog.records


@on_client
def grad_of_loss(client, models):
    params = leaves(take(models, 0))
    return dict(zip(params, torch.autograd.grad(loss(client, params), list(params.values())), strict=True))


@on_client
def grad_of_losses(client, models):
    params = leaves(models)
    return dict(zip(params, torch.autograd.grad(losses(client, params).sum(), list(params.values())), strict=True))


@on_client
def backward_of_descent(client, models):
    params = leaves(take(models, 0))
    sum(value.square().sum() for value in descend(client, params, HOW).values()).backward()
    return {name: value.grad for name, value in params.items()}


@on_client
def constant_beside_a_gradient(client, models):
    """The losses only weigh the models: a constant, as `detach` says."""
    params = leaves(models)
    weight = losses(client, params).detach().softmax(0)
    mixed = sum((weight.view(-1, *[1] * (p.dim() - 1)) * p).sum() for p in params.values())
    return dict(zip(params, torch.autograd.grad(mixed, list(params.values())), strict=True))


@pytest.mark.parametrize("engine", [LoopEngine, VectorisedEngine])
@pytest.mark.parametrize("fn", [grad_of_loss, grad_of_losses, backward_of_descent])
def test_autograd_through_an_operation_raises_with_advice(fn, engine):
    fed, models = federation(engine, "network", 2)
    with pytest.raises(RuntimeError, match=r"have no backward.*use gradient\(client, params\), or") as ended:
        fed.clients.map(fn, models)
    assert "\n" not in str(ended.value)


@on_client
def train_each(client, models):
    return vmap(lambda model: descend(client, model, HOW))(models)


@pytest.mark.parametrize("engine", [LoopEngine, VectorisedEngine])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_the_lines_advise_works(name, engine, caplog):
    fed, models = federation(engine, name, 2)
    assert all(len(value) == 6 for value in fed.clients.map(train_each, models).value.values())
    assert not caplog.records
    weights = fed.clients.map(constant_beside_a_gradient, models).value
    assert all(torch.allclose(value.sum(1), torch.ones_like(value[:, 0])) for value in weights.values())


@on_client
def misnamed(client, models):
    return descend(client, {f"my {name}": value for name, value in models.items()}, HOW)


def test_other_errors_keep_their_messages():
    fed, models = federation(LoopEngine, "line", 2)
    with pytest.raises(KeyError, match="weight"):
        fed.clients.map(misnamed, models)
