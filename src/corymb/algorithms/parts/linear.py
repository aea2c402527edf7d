"""Client work specific to linear models: features, curvature, and the proximal step in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Client, Examples, on_client
from corymb.core.federation import Federation
from corymb.keys import root
from corymb.local.penalised import logistic, ridge
from corymb.objectives.classification import Classification
from corymb.objectives.linear_form import LinearForm, linear_form, logit_form
from corymb.settings import InvalidInput
from corymb.trees import Params

MOST = 200
"""The most coefficients (per logit) for which a client's own model is solved for with penalties."""


class Design(NamedTuple):
    """A client's training examples as a linear model sees them."""

    x: Tensor  # m d, φ(x); 0 for padding
    y: Tensor  # m
    real: Tensor  # m, which rows are not padding


@on_client
def curvature(client: Client) -> Tensor:
    """‖φ(x)‖² / m, the largest eigenvalue of the client's second moment of features."""
    x, _, real = design(client)
    norm: Tensor = torch.linalg.matrix_norm(x, 2)
    return norm.square() / real.sum().clamp_min(1)


def design(client: Client) -> Design:
    """φ(x) and y of the client's training examples."""
    form, real = _form(client), client.train.weight > 0
    x = torch.where(real[:, None], form.features(client.train.x), 0)
    return Design(x, torch.where(real, form.targets(client.train.y), 0), real)


def proximal_step(client: Client, model: Params, lr: float) -> Params:
    """argmin of ‖y − xθ‖² / 2m + ‖θ − θ_old‖² / 2η: θ_old − c xᵀ (I + c x xᵀ)⁻¹ (x θ_old − y), where c = η / m."""
    form, (x, y, real) = _form(client), design(client)
    c, theta = lr / real.sum().clamp_min(1).to(x.dtype), form.coefficients(model)
    residual = x @ theta - y
    m, d = x.shape
    if m <= d:
        step = x.mT @ torch.linalg.solve(torch.eye(m).to(x) + c * (x @ x.mT), residual)
    else:
        step = torch.linalg.solve(torch.eye(d).to(x) + c * (x.mT @ x), x.mT @ residual)
    return form.parameters(theta - c * step)


def can_penalise(fed: Federation) -> bool:
    """Whether `penalised` applies: models are linear, with at most `MOST` features."""
    form, objective = linear_form(fed.objective) or logit_form(fed.objective), fed.objective
    return form is not None and form.coefficients(objective.init(root(0))).shape[-1] <= MOST


def penalised(client: Client, like: Params) -> Params:
    """The client's own linear model, in the shape of `like`, with penalties chosen for its examples."""
    on, line = client.train, linear_form(client.objective)
    form = line or logit_form(client.objective)
    assert form is not None
    x, weight = form.features(on.x), on.weight if form.counts is None else on.weight * form.counts(on.y)
    x = torch.where((weight > 0)[:, None], x, 0)
    if line is not None:
        y = torch.where(weight > 0, line.targets(on.y), 0)
        return line.parameters(ridge(Examples(_features(line, x), y, weight), intercept=line.intercept))
    shares = None if form.shares is None else form.shares(on.y)
    examples = Examples(_features(form, x), on.y, weight)
    return form.parameters(logistic(examples, len(form.coefficients(like)), shares=shares))


def _features(form: LinearForm, x: Tensor) -> Tensor:
    return x[:, :-1] if form.intercept else x


def linear_or_refuse(fed: Federation, what: str, instead: str = "") -> LinearForm:
    """The objective's linear form; raises InvalidInput, naming `what`, if it has none."""
    form = linear_form(fed.objective)
    if form is None and fed.objective.score_name == Classification.score_name:
        classes = "but these labels are classes: use another algorithm, or task='regression' if they are numbers"
        raise InvalidInput(f"{what} needs linear regression, {classes}{instead}.")
    if form is None:
        raise InvalidInput(f"{what} needs linear regression: use model 'linear-regression' or 'linear'{instead}.")
    return form


def _form(client: Client) -> LinearForm:
    form = linear_form(client.objective)
    assert form is not None
    return form
