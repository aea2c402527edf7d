"""ResNet9 with group normalisation, for small pictures: Page's network for CIFAR-10 without batch normalisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

CENTRE, SPREAD = 0.5, 0.25
"""The mean and the standard deviation used to standardise pixels. Without it, a group's variance is mostly that between
its channels' means, normalisation leaves little of what differs between pictures, and the network learns far more
slowly."""
GROUP = 4
"""Channels per normalisation group."""


class ResNet9(nn.Module):
    """Four widening convolutions and two residual blocks, then global max pooling and a linear layer."""

    def __init__(self, channels: int, outputs: int, width: int, scale: float) -> None:
        super().__init__()
        w, self.scale = width, scale
        self.start = nn.Sequential(_block(channels, w), _block(w, 2 * w, pool=True))
        self.first = nn.Sequential(_block(2 * w, 2 * w), _block(2 * w, 2 * w))
        self.middle = nn.Sequential(_block(2 * w, 4 * w, pool=True), _block(4 * w, 8 * w, pool=True))
        self.second = nn.Sequential(_block(8 * w, 8 * w), _block(8 * w, 8 * w))
        self.out = nn.Linear(8 * w, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each class, for pixels from 0 to 1."""
        x = self.start((x - CENTRE) / SPREAD)
        x = self.middle(x + self.first(x))
        x = x + self.second(x)
        logits: Tensor = self.out(x.amax(dim=(-2, -1))) * self.scale
        return logits


class Standardised(nn.Conv2d):
    """A convolution with filters of mean 0 and norm 1 (weight standardisation, Qiao et al. 2019).

    With it, group normalisation trains about as fast as batch normalisation; without it, far more slowly.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with the standardised filters."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        filters = centred * torch.rsqrt(centred.square().sum((1, 2, 3), keepdim=True) + 1e-4)
        return nn.functional.conv2d(x, filters, padding=self.padding)


def _block(into: int, out: int, *, pool: bool = False) -> nn.Sequential:
    layers = [Standardised(into, out, 3, padding=1, bias=False), nn.GroupNorm(max(1, out // GROUP), out), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


@dataclass(frozen=True)
class Residual:
    """Creates the network; has plain values only, so that it can be sent to a node."""

    channels: int
    outputs: int
    width: int
    scale: float

    def __call__(self) -> nn.Module:
        """A module with fresh parameters."""
        return ResNet9(self.channels, self.outputs, self.width, self.scale)


def resnet9(channels: int = 3, outputs: int = 10, *, width: int = 64, scale: float = 0.2) -> Residual:
    """A function that creates ResNet9 with group normalisation; `scale` multiplies the logits.

    >>> sum(p.numel() for p in resnet9()().parameters())
    6573120
    """
    return Residual(channels, outputs, width, scale)
