"""What linear models allow that networks do not: features in the open, curvature, the proximal step in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from corymb.core.client import Client, on_client
from corymb.objectives.regression import LinearRegression
from corymb.trees import Params


@on_client
def curvature(client: Client) -> Tensor:
    """‖φ(x)‖² / m, the largest eigenvalue of the client's second moment of features."""
    x, real = linear_features(client)
    norm: Tensor = torch.linalg.matrix_norm(torch.where(real[:, None], x, 0), 2)
    return norm.square() / real.sum().clamp_min(1)


def linear_features(client: Client) -> tuple[Tensor, Tensor]:
    """φ(x) of the client's training examples (m d), and which rows are not padding (m)."""
    objective = client.objective
    assert isinstance(objective, LinearRegression)
    x = client.train.x if objective.features is None else objective.features(client.train.x)
    return x, client.train.weight > 0


def proximal_step(client: Client, model: Params, lr: float) -> Params:
    """argmin of ‖y − xθ‖² / 2m + ‖θ − θ_old‖² / 2η: θ_old − c xᵀ (I + c x xᵀ)⁻¹ (x θ_old − y), where c = η / m."""
    x, real = linear_features(client)
    c = lr / real.sum().clamp_min(1).to(x.dtype)
    x = torch.where(real[:, None], x, 0)
    residual = torch.where(real, x @ model["weight"] - client.train.y, 0)
    m, d = x.shape
    if m <= d:
        step = x.mT @ torch.linalg.solve(torch.eye(m).to(x) + c * (x @ x.mT), residual)
    else:
        step = torch.linalg.solve(torch.eye(d).to(x) + c * (x.mT @ x), x.mT @ residual)
    return {"weight": model["weight"] - c * step}
