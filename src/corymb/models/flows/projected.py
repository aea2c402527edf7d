"""A flow of a low-dimensional projection of the examples; the orthogonal complement is left out of the density.

The basis and its origin are parameters without gradients: an algorithm finds them for all clusters at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corymb.keys import Key
from corymb.models.flows.base import Flow
from corymb.settings import require
from corymb.trees import Params

ORIGIN, BASIS = "origin", "basis"


class Projected:
    """The flow `inner` of (x − origin) · basis. Its density is that of the projection, not of the whole example."""

    def __init__(self, inner: Flow, inputs: int) -> None:
        require(
            inner.inputs <= inputs, f"{inputs} numbers cannot be projected to {inner.inputs}: wanted {inputs} or fewer."
        )
        self.inner, self.inputs, self.latent = inner, inputs, inner.inputs

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this flow: see `corymb.objectives.recipe`."""
        return {"inner": self.inner, "inputs": self.inputs}

    def init(self, key: Key) -> Params:
        """Fresh parameters, with a projection to the first coordinates until an algorithm finds a better one."""
        place = {ORIGIN: torch.zeros(self.inputs), BASIS: torch.eye(self.inputs, self.latent)}
        return {**self.inner.init(key), **place}

    def space(self, params: Params, x: Tensor) -> Tensor:
        """The projection."""
        return (x - params[ORIGIN].detach()) @ params[BASIS].detach()

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Normals, and the log-determinant of the inner flow on the projection."""
        return self.inner.forward(params, self.space(params, x))

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """The examples in the span of the basis with these normals."""
        return self.inner.inverse(params, z) @ params[BASIS].mT + params[ORIGIN]

    def describe(self) -> str:
        """The inner flow, and the dimension that it is projected from."""
        return f"{self.inner.describe()}, a projection of {self.inputs}"
