"""Multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn


@dataclass(frozen=True)
class Perceptron:
    """Creates a perceptron with ReLU between its layers; has plain values only, so that it can be sent to a node."""

    inputs: int
    hidden: tuple[int, ...]
    outputs: int

    def __call__(self) -> nn.Module:
        """A module with fresh parameters."""
        layers: list[nn.Module] = [nn.Flatten()]
        for i, o in pairwise([self.inputs, *self.hidden, self.outputs]):
            layers += [nn.Linear(i, o), nn.ReLU()]
        return nn.Sequential(*layers[:-1])


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> Perceptron:
    """A function that creates a perceptron with ReLU between its layers: `mlp(784, [200], 10)`.

    >>> mlp(64, [32], 10)()
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=32, bias=True)
      (2): ReLU()
      (3): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    return Perceptron(inputs, tuple(hidden), outputs)
