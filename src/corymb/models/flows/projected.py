"""A flow of a few coordinates of the examples: what lies across them is left out of the density.

The basis and its origin are parameters that no gradient reaches: an algorithm finds them for all clusters at once.
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
    """The flow `inner` of (x − origin) · basis. Its density is one of the projection, not of the whole example."""

    def __init__(self, inner: Flow, inputs: int) -> None:
        require(inner.inputs <= inputs, f"{inputs} numbers cannot be projected to {inner.inputs}.")
        self.inner, self.inputs, self.latent = inner, inputs, inner.inputs

    def recipe(self) -> dict[str, Any]:
        """What makes the same flow elsewhere: see `corymb.objectives.recipe`."""
        return {"inner": self.inner, "inputs": self.inputs}

    def init(self, key: Key) -> Params:
        """The first coordinates as they are, until an algorithm finds better ones."""
        place = {ORIGIN: torch.zeros(self.inputs), BASIS: torch.eye(self.inputs, self.latent)}
        return {**self.inner.init(key), **place}

    def space(self, params: Params, x: Tensor) -> Tensor:
        """The projection."""
        return (x - params[ORIGIN].detach()) @ params[BASIS].detach()

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Normals, and the determinant of the flow within the projection."""
        return self.inner.forward(params, self.space(params, x))

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """The example in the span of the basis that has these normals."""
        return self.inner.inverse(params, z) @ params[BASIS].mT + params[ORIGIN]

    def describe(self) -> str:
        """The flow within, and what it is projected from."""
        return f"{self.inner.describe()}, a projection of {self.inputs}"
