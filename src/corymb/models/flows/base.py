"""The protocol of flows."""

from __future__ import annotations

import math
from typing import Any, Protocol

from torch import Tensor

from corymb.keys import Key
from corymb.trees import Params

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Flow(Protocol):
    """An invertible map from examples (vectors of length `inputs`) to standard normals (of length `latent`)."""

    @property
    def inputs(self) -> int:
        """The length of an example."""
        ...

    @property
    def latent(self) -> int:
        """The length of its normal image: equal to `inputs`, except for a flow of a projection."""
        ...

    def init(self, key: Key) -> Params:
        """Fresh parameters, in float32 on the CPU."""
        ...

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Examples (m d) to normals (m d), and the log of the Jacobian's absolute determinant at each (m)."""
        ...

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """Normals to examples: the inverse of `forward`."""
        ...

    def space(self, params: Params, x: Tensor) -> Tensor:
        """Examples in the coordinates in which the density is defined: x itself, or its projection."""
        ...

    def describe(self) -> str:
        """A description of the flow, for fingerprints and run records."""
        ...


class Plain:
    """The common part of flows whose density is defined on the examples themselves."""

    def __init__(self, inputs: int) -> None:
        self.inputs = self.latent = inputs

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this flow: see `corymb.objectives.recipe`."""
        return {"inputs": self.inputs}

    def space(self, params: Params, x: Tensor) -> Tensor:
        """The examples unchanged."""
        return x

    def describe(self) -> str:
        """The flow's kind and size."""
        return f"{type(self).__name__.lower()} flow on {self.inputs} numbers"


def log_normal(z: Tensor) -> Tensor:
    """The log-density of standard normals: m d -> m."""
    return -(0.5 * z.square() + HALF_LOG_TWO_PI).sum(-1)
