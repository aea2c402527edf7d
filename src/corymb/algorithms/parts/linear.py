"""What linear models allow that networks do not: features in the open, curvature, the proximal step in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Client, on_client
from corymb.core.federation import Federation
from corymb.objectives.regression import LinearForm, linear_form
from corymb.settings import InvalidInput
from corymb.trees import Params


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


def linear_or_refuse(fed: Federation, what: str, instead: str = "") -> LinearForm:
    """The linear form of what is learned; without one, `what` is refused."""
    form = linear_form(fed.objective)
    if form is None:
        raise InvalidInput(f"{what} is for linear regression: take model 'linear-regression' or 'linear'{instead}.")
    return form


def _form(client: Client) -> LinearForm:
    form = linear_form(client.objective)
    assert form is not None
    return form
