"""Multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> Callable[[], nn.Module]:
    """A function that makes a perceptron with ReLU between its layers: `mlp(784, [200], 10)`.

    >>> mlp(64, [32], 10)()
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=32, bias=True)
      (2): ReLU()
      (3): Linear(in_features=32, out_features=10, bias=True)
    )
    """

    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for i, o in pairwise([inputs, *hidden, outputs]):
            layers += [nn.Linear(i, o), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return make
