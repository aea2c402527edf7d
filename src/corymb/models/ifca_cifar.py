"""The network of IFCA's experiment on CIFAR-10, from an old TensorFlow tutorial, with local response normalisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

SIDE = 24
"""The side of the central crop that the network uses."""
NEIGHBOURS = 4
"""Channels on either side in local response normalisation."""


class CentredStandardised(nn.Module):
    """Crops the centre of every picture, and standardises it to mean 0 and standard deviation 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [examples, channels, height, width] as [examples, channels, 24, 24]."""
        top, left = (x.shape[-2] - SIDE) // 2, (x.shape[-1] - SIDE) // 2
        x = x[..., top : top + SIDE, left : left + SIDE]
        pixels = x.shape[-3] * SIDE * SIDE
        centred = x - x.mean((-3, -2, -1), keepdim=True)
        deviation = centred.square().mean((-3, -2, -1), keepdim=True).clamp_min(1 / pixels).sqrt()
        return centred / deviation


class LocalResponse(nn.Module):
    """Local response normalisation: x / (1 + 0.001/9 · Σ x²)^0.75 over nine neighbouring channels.

    The sum is a product with a band matrix of ones: torch's own uses three-dimensional pooling, whose backward pass is
    slow for a stack of clients.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [examples, channels, height, width], keeping the shape."""
        place = torch.arange(x.shape[-3], device=x.device)
        band = ((place[:, None] - place).abs() <= NEIGHBOURS).to(x.dtype)
        near = torch.einsum("oc,mchw->mohw", band, x.square())
        return x * (1 + 0.001 / (2 * NEIGHBOURS + 1) * near) ** -0.75


def _layer(layer: nn.Conv2d | nn.Linear, deviation: float, bias: float) -> nn.Module:
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    assert layer.bias is not None
    nn.init.constant_(layer.bias, bias)
    return layer


@dataclass(frozen=True)
class TutorialNetwork:
    """Creates the network; has plain values only, so that it can be sent to a node."""

    outputs: int = 10

    def __call__(self) -> nn.Module:
        """A module with fresh parameters."""
        return nn.Sequential(
            CentredStandardised(),
            _layer(nn.Conv2d(3, 64, 5, padding=2), 0.05, 0.0),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            LocalResponse(),
            _layer(nn.Conv2d(64, 64, 5, padding=2), 0.05, 0.1),
            nn.ReLU(),
            LocalResponse(),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Flatten(),
            _layer(nn.Linear(64 * 36, 384), 0.04, 0.1),
            nn.ReLU(),
            _layer(nn.Linear(384, 192), 0.04, 0.1),
            nn.ReLU(),
            _layer(nn.Linear(192, self.outputs), 1 / 192, 0.0),
        )


def ifca_cifar(outputs: int = 10) -> TutorialNetwork:
    """A function that creates conv5×5-64, pool, norm, conv5×5-64, norm, pool, fc-384, fc-192, fc-`outputs`.

    >>> sum(p.numel() for p in ifca_cifar()().parameters())
    1068298
    """
    return TutorialNetwork(outputs)
