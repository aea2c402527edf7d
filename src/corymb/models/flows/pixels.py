"""Maps pixels in [0, 1] to unbounded numbers, for flows with a normal base distribution.

Pixels are quantised in steps of 1/levels, and a density on discrete values can be arbitrarily large. So every pixel is
moved by a random fraction of a step (dequantisation). The noise is drawn from a hash of the example itself and the
pixel's position: an example always has the same likelihood, whatever else is in its batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from corymb.keys import Key, bits, fold, root, uniform
from corymb.models.flows.base import Flow
from corymb.trees import Params

ALPHA = 0.05  # the distance that pixels are kept from 0 and 1, where the logit is infinite


class Pixels:
    """The flow `inner` of logit(α + (1 − 2α) · dequantised pixel)."""

    def __init__(self, inner: Flow, levels: int = 256) -> None:
        self.inner, self.levels = inner, levels
        self.inputs = self.latent = inner.inputs

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this flow: see `corymb.objectives.recipe`."""
        return {"inner": self.inner, "levels": self.levels}

    def init(self, key: Key) -> Params:
        """The parameters of the inner flow."""
        return self.inner.init(key)

    def space(self, params: Params, x: Tensor) -> Tensor:
        """The pixels unchanged."""
        return x

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Normals, and log-determinants that include the logit's."""
        inside = ALPHA + (1 - 2 * ALPHA) * self.dequantised(x)
        logit = inside.log() - (1 - inside).log()
        stretch = math.log(1 - 2 * ALPHA) - inside.log() - (1 - inside).log()
        z, log_det = self.inner.forward(params, logit)
        return z, log_det + stretch.sum(-1)

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """Dequantised pixels from normals."""
        return (torch.sigmoid(self.inner.inverse(params, z)) - ALPHA) / (1 - 2 * ALPHA)

    def dequantised(self, x: Tensor) -> Tensor:
        """Each pixel moved by a fraction of a step, within [0, 1)."""
        places = bits(root(0).to(x.device), (x.shape[-1],))
        steps = (x.detach() * (self.levels - 1)).round().to(torch.int64)
        noise = uniform(fold(fold(places, steps).sum(-1, keepdim=True), places), (), x.dtype)
        return (steps.to(x.dtype) + noise) / self.levels

    def describe(self) -> str:
        """The inner flow, and the number of steps."""
        return f"{self.inner.describe()}, of pixels in {self.levels} steps"
