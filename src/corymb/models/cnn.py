"""The convolutional network of McMahan et al. (2017) for small pictures."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Convolutional:
    """Creates the network; has plain values only, so that it can be sent to a node."""

    channels: int
    side: int
    outputs: int
    width: int = 512

    def __call__(self) -> nn.Module:
        """A module with fresh parameters."""
        return nn.Sequential(
            nn.Conv2d(self.channels, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (self.side // 4) ** 2, self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.outputs),
        )


def cnn(channels: int, side: int, outputs: int, *, width: int = 512) -> Convolutional:
    """A function that creates conv5×5-32, pool, conv5×5-64, pool, fc-`width`, fc-`outputs`: `cnn(1, 28, 10)`.

    >>> sum(p.numel() for p in cnn(1, 28, 10)().parameters())
    1663370
    """
    return Convolutional(channels, side, outputs, width)
