"""The networks in plain torch, for libraries that train torch modules."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.peers.work import Model
from torch import nn


def network(name: str) -> nn.Sequential:
    """The same layers as `corymb.models.mlp(784, [200], 10)` and `cnn(1, 28, 62)`."""
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    convolutions = [
        layer
        for channels in ((1, 32), (32, 64))
        for layer in (nn.Conv2d(*channels, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    ]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 62))


@torch.no_grad()
def put(module: nn.Module, model: Model) -> nn.Module:
    """The module with these parameters."""
    for parameter, values in zip(module.parameters(), model, strict=True):
        parameter.copy_(torch.from_numpy(np.asarray(values)))
    return module


def of(module: nn.Module) -> Model:
    """A module's parameters, copied."""
    return [parameter.detach().numpy().copy() for parameter in module.parameters()]
