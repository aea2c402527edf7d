"""Feature maps φ for linear models: polynomials and random Fourier features.

Each is a frozen dataclass that is called with a batch of x (m inputs) and returns a batch of features (m width):
`LinearRegression(5, features=Polynomial(degree=2))`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Literal

import torch
from torch import Tensor

from corymb.keys import fold, normal, root, uniform
from corymb.settings import require


@dataclass(frozen=True, kw_only=True)
class Polynomial:
    """All products of up to `degree` inputs.

    In the Hermite basis every power is replaced by the normalised Hermite polynomial of its degree: for standard normal
    x the features are then uncorrelated with second moment 1, the case in which moment descent works best.

    >>> Polynomial(degree=2)(torch.tensor([[2.0, 3.0]]))
    tensor([[1., 2., 3., 4., 6., 9.]])
    """

    degree: int = 2
    basis: Literal["monomial", "hermite"] = "monomial"
    constant: bool = True
    """Whether the first feature is 1."""

    def __post_init__(self) -> None:
        require(self.degree >= 1, f"degree must be at least 1, got {self.degree}.")

    def __call__(self, x: Tensor) -> Tensor:
        """m inputs -> m width."""
        factors = _factors(x.shape[-1], self.degree, self.constant).to(x.device)  # degree width
        powers = self._powers(x)
        return math.prod((powers[..., wanted] for wanted in factors[1:]), start=powers[..., factors[0]])

    def _powers(self, x: Tensor) -> Tensor:
        """1, then all inputs, then all of their second powers, ...: m (1 + inputs degree)."""
        powers = [torch.ones_like(x), x]
        for n in range(1, self.degree):
            if self.basis == "monomial":
                powers.append(powers[-1] * x)
            else:  # √(n+1) h_{n+1} = x h_n − √n h_{n−1}
                powers.append((x * powers[-1] - n**0.5 * powers[-2]) / (n + 1) ** 0.5)
        return torch.cat([powers[0][..., :1], *powers[1:]], dim=-1)


@lru_cache(maxsize=32)
def _factors(inputs: int, degree: int, constant: bool) -> Tensor:
    """The powers that each feature is the product of, as indices into `_powers`; 0 is the factor 1: degree width."""
    columns = []
    for order in range(0 if constant else 1, degree + 1):
        for chosen in combinations_with_replacement(range(inputs), order):
            places = [1 + (n - 1) * inputs + i for i, n in Counter(chosen).items()]
            columns.append(places + [0] * (degree - len(places)))
    return torch.tensor(columns).T


@dataclass(frozen=True, kw_only=True)
class RandomFourier:
    """√(2/width) cos(w·x + b), w ~ N(0, 1/scale²), b uniform: approximates a Gaussian kernel of width `scale`.

    The same seed gives the same map everywhere. Rahimi, Recht: Random Features for Large-Scale Kernel Machines (2007).
    """

    width: int = 100
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.width >= 1, f"width must be at least 1, got {self.width}.")
        require(self.scale > 0, f"scale must be positive, got {self.scale}.")

    def __call__(self, x: Tensor) -> Tensor:
        """m inputs -> m width."""
        weight, shift = (t.to(x) for t in _frequencies(x.shape[-1], self.width, self.seed))
        return torch.cos(x @ weight / self.scale + shift) * math.sqrt(2 / self.width)


@lru_cache(maxsize=32)
def _frequencies(inputs: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    key = fold(root(seed), "random Fourier features")
    weight = normal(fold(key, "weight"), (inputs, width), torch.float64)
    return weight, 2 * torch.pi * uniform(fold(key, "shift"), (width,), torch.float64)
