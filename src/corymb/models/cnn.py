"""The convolutional network of McMahan et al. (2017) for small pictures."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def cnn(channels: int, side: int, outputs: int, *, width: int = 512) -> Callable[[], nn.Module]:
    """A function that makes conv5×5-32, pool, conv5×5-64, pool, fc-`width`, fc-`outputs`: `cnn(1, 28, 10)`.

    >>> sum(p.numel() for p in cnn(1, 28, 10)().parameters())
    1663370
    """

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (side // 4) ** 2, width),
            nn.ReLU(),
            nn.Linear(width, outputs),
        )

    return make
