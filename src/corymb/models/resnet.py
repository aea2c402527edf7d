"""ResNet9 with group normalisation, for small pictures: Page's network for CIFAR-10 without what couples examples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

CENTRE, SPREAD = 0.5, 0.25
"""Of pixels. Without this a group's variance is mostly that between its channels' means, and little of what differs
from picture to picture is left after normalising: the network then learns far more slowly."""


class ResNet9(nn.Module):
    """Four convolutions that widen and two residual blocks; the largest of what is left goes to the classes."""

    def __init__(self, channels: int, outputs: int, width: int, scale: float, group: int) -> None:
        super().__init__()
        w, self.scale, convolution = width, scale, partial(_convolution, group=group)
        self.start = nn.Sequential(convolution(channels, w), convolution(w, 2 * w, pool=True))
        self.first = nn.Sequential(convolution(2 * w, 2 * w), convolution(2 * w, 2 * w))
        self.middle = nn.Sequential(convolution(2 * w, 4 * w, pool=True), convolution(4 * w, 8 * w, pool=True))
        self.second = nn.Sequential(convolution(8 * w, 8 * w), convolution(8 * w, 8 * w))
        self.out = nn.Linear(8 * w, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each class, for pixels from 0 to 1."""
        x = self.start((x - CENTRE) / SPREAD)
        x = self.middle(x + self.first(x))
        x = x + self.second(x)
        logits: Tensor = self.out(x.amax(dim=(-2, -1))) * self.scale
        return logits


def _convolution(into: int, out: int, *, group: int, pool: bool = False) -> nn.Sequential:
    layers = [nn.Conv2d(into, out, 3, padding=1, bias=False), nn.GroupNorm(max(1, out // group), out), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


@dataclass(frozen=True)
class Residual:
    """Makes the network; plain values, so that it can travel to a node."""

    channels: int
    outputs: int
    width: int
    scale: float
    group: int

    def __call__(self) -> nn.Module:
        """A module with fresh parameters."""
        return ResNet9(self.channels, self.outputs, self.width, self.scale, self.group)


def resnet9(channels: int = 3, outputs: int = 10, *, width: int = 64, scale: float = 0.2, group: int = 4) -> Residual:
    """A function that makes ResNet9 with normalisation over groups of channels; `scale` multiplies the logits.

    >>> sum(p.numel() for p in resnet9()().parameters())
    6573120
    """
    return Residual(channels, outputs, width, scale, group)
