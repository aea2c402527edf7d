"""Planar flows (Rezende, Mohamed 2015): z = x + u tanh(w·x + b), layer after layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from corymb.keys import Key, fold, normal
from corymb.models.flows.base import Plain
from corymb.trees import Params

BISECTIONS = 60  # more than the 53 bits of a float64


class Planar(Plain):
    """Layers of z = x + u tanh(w·x + b), each bending space along one direction, after a scale and shift.

    Invertible for w·u > −1; `u` is moved to satisfy this, as by the authors.
    """

    def __init__(self, inputs: int, layers: int = 8) -> None:
        super().__init__(inputs)
        self.layers = layers

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this flow: see `corymb.objectives.recipe`."""
        return {"inputs": self.inputs, "layers": self.layers}

    def init(self, key: Key) -> Params:
        """Small steps in random directions."""
        d, layers = self.inputs, self.layers
        return {
            "log_scale": normal(fold(key, "log_scale"), (d,)) * 0.1,
            "shift": normal(fold(key, "shift"), (d,)) * 0.1,
            "u": normal(fold(key, "u"), (layers, d)) * (0.1 / d**0.5),
            "w": normal(fold(key, "w"), (layers, d)) / d**0.5,
            "b": normal(fold(key, "b"), (layers,)) * 0.1,
        }

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the layers in order; each has the determinant 1 + (1 − tanh²) w·u."""
        z = x * params["log_scale"].exp() + params["shift"]
        log_det = params["log_scale"].sum(-1).expand(x.shape[0])
        for layer in range(self.layers):
            u, w, b = self._layer(params, layer)
            bend = torch.tanh(z @ w + b)
            log_det = log_det + torch.log1p((1 - bend.square()) * (w @ u))
            z = z + bend.unsqueeze(-1) * u
        return z, log_det

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """Invert the layers: along w, each is an increasing scalar function, inverted by bisection."""
        for layer in reversed(range(self.layers)):
            u, w, b = self._layer(params, layer)
            slope, target = w @ u, z @ w
            low, high = target - slope.abs(), target + slope.abs()
            for _ in range(BISECTIONS):
                middle = (low + high) / 2
                below = middle + slope * torch.tanh(middle + b) < target
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
            z = z - torch.tanh((low + high) / 2 + b).unsqueeze(-1) * u
        return (z - params["shift"]) * (-params["log_scale"]).exp()

    def _layer(self, params: Params, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """u moved along w so that w·u > −1, w and b."""
        u, w, b = params["u"][layer], params["w"][layer], params["b"][layer]
        along = w @ u
        wanted = softplus(along + 0.5413) - 1  # maps 0 to 0, so that a fresh layer is near the identity
        return u + (wanted - along) * w / w.square().sum().clamp_min(1e-12), w, b

    def describe(self) -> str:
        """The flow's layers and size."""
        return f"planar flow of {self.layers} layers on {self.inputs} numbers"
