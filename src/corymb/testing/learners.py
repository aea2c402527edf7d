"""The objectives of the engine laws, with small data, all in float64.

`kernels` names the kernels that must do the work if requested; the others must fall back, which is a law too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from corymb.core.client import Objective
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression, Regression
from corymb.testing.small_data import SmallData, classification, regression, tokens

DOUBLE = torch.float64


class Learner(NamedTuple):
    """An objective, data for it, and the kernels that support it."""

    objective: Callable[[], Objective]
    data: Callable[..., SmallData]
    kernels: tuple[str, ...] = ("foreach", "serial")


def network(make: Callable[[], nn.Module]) -> Callable[[], Objective]:
    """Classification in three classes by a network."""
    return lambda: Classification(Network(make, dtype=DOUBLE), 3)


def cnn() -> nn.Module:
    """A small convolutional network with normalisation and pooling."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3)
    )


class Reader(nn.Module):
    """Classifies a sequence of words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(7, 3), nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(self.embed(x))[0][:, -1])
        return out


class Twice(nn.Module):
    """A network that uses one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.inner(self.inner(x).tanh()).tanh())
        return out


class Shared(nn.Module):
    """A network in which two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.second(self.first(x).tanh()).tanh())
        return out


class Turning(nn.Module):
    """A weight that is used twice, once transposed, as in autoencoders."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(linear(self.inner(x).tanh(), self.inner.weight.T))
        return out


class Unused(nn.Module):
    """A network with an unused layer, and a parameter that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.idle = nn.Linear(4, 3), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) * self.scale
        return out


class Turned(nn.Module):
    """A parameter in the place of a linear layer's input."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.arange(12.0).reshape(3, 4) / 12)

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.rows, x).T


class Steps(nn.Module):
    """A linear layer along a second axis of each example, without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(2, 3, bias=False), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.inner(x).relu().flatten(1))
        return out


class Dropping(nn.Module):
    """Dropout in all common forms, of features and of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.drop, self.channels, self.alpha = nn.Dropout(0.3), nn.Dropout2d(0.4), nn.AlphaDropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.channels(self.drop(self.first(x).tanh()).reshape(-1, 3, 2, 1)).flatten(1)
        x = dropout(self.alpha(self.second(x).tanh()), 0.3, training=self.training)
        each = self.drop(x.reshape(-1, 2))  # several rows per example
        out: Tensor = self.out(each.reshape(x.shape))
        return out


def squares(x: Tensor) -> Tensor:
    """The features and their squares."""
    return torch.cat([x, x**2], -1)


FUSED = ("fused", "foreach", "serial")
LEARNERS = {
    "linear": Learner(lambda: LinearRegression(3, dtype=DOUBLE), regression, FUSED),
    "features": Learner(lambda: LinearRegression(3, features=squares, half=True, dtype=DOUBLE), regression, FUSED),
    "regression": Learner(lambda: Regression(Network(mlp(3, [4], 1), dtype=DOUBLE)), regression, FUSED),
    "mlp": Learner(network(mlp(4, [5, 4], 3)), classification, FUSED),
    "steps": Learner(network(Steps), functools.partial(classification, shape=(2, 2)), FUSED),
    "cnn": Learner(network(cnn), functools.partial(classification, shape=(1, 4, 4))),
    "lstm": Learner(network(Reader), tokens),
    "layer used twice": Learner(network(Twice), classification),
    "shared weight": Learner(network(Shared), classification),
    "transposed weight": Learner(network(Turning), classification),
    "unused parameter": Learner(network(Unused), classification),
    "turned linear": Learner(network(Turned), classification),
    "dropout": Learner(  # also class weights and label smoothing: everything specific to the training loss
        lambda: Classification(Network(Dropping, dtype=DOUBLE), 3, (0.5, 1.0, 3.0), 0.1), classification, FUSED
    ),
}
