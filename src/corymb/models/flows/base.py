"""What a flow must be able to do."""

from __future__ import annotations

import math
from typing import Any, Protocol

from torch import Tensor

from corymb.keys import Key
from corymb.trees import Params

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Flow(Protocol):
    """An invertible map from examples, vectors of `inputs` numbers, to as many standard normals (`latent` of them)."""

    @property
    def inputs(self) -> int:
        """Numbers in an example."""
        ...

    @property
    def latent(self) -> int:
        """Numbers in its normal image: as many, but for a flow of a projection."""
        ...

    def init(self, key: Key) -> Params:
        """Fresh parameters, in float32 on the CPU."""
        ...

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Examples (m d) to normals (m d), and the log of the Jacobian's absolute determinant at each (m)."""
        ...

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """Normals to examples: the reverse of `forward`."""
        ...

    def space(self, params: Params, x: Tensor) -> Tensor:
        """Examples in the coordinates that the density is one of: x itself, or its projection."""
        ...

    def describe(self) -> str:
        """What the flow is, for fingerprints and run records."""
        ...


class Plain:
    """What flows have in common whose density is one of the examples themselves."""

    def __init__(self, inputs: int) -> None:
        self.inputs = self.latent = inputs

    def recipe(self) -> dict[str, Any]:
        """What makes the same flow elsewhere: see `corymb.objectives.recipe`."""
        return {"inputs": self.inputs}

    def space(self, params: Params, x: Tensor) -> Tensor:
        """The examples as they are."""
        return x

    def describe(self) -> str:
        """Its kind and size."""
        return f"{type(self).__name__.lower()} flow on {self.inputs} numbers"


def log_normal(z: Tensor) -> Tensor:
    """The log-density of standard normals: m d -> m."""
    return -(0.5 * z.square() + HALF_LOG_TWO_PI).sum(-1)
