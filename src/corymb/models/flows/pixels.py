"""Pixels in [0, 1] as numbers without bounds, for flows whose base is a normal.

Pixels come in steps of 1/levels; a density on steps is without bound. So every pixel is moved by a random part of a
step. The noise is drawn by a hash of the example itself and the pixel's place: an example has the same likelihood
whenever and wherever it is asked for, whatever stands beside it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from corymb.keys import Key, bits, fold, root, uniform
from corymb.models.flows.base import Flow
from corymb.trees import Params

ALPHA = 0.05  # how far from 0 and 1 pixels are kept: the logit of either is infinite


class Pixels:
    """The flow `inner` of logit(α + (1 − 2α) · dequantised pixel)."""

    def __init__(self, inner: Flow, levels: int = 256) -> None:
        self.inner, self.levels = inner, levels
        self.inputs = self.latent = inner.inputs

    def recipe(self) -> dict[str, Any]:
        """What makes the same flow elsewhere: see `corymb.objectives.recipe`."""
        return {"inner": self.inner, "levels": self.levels}

    def init(self, key: Key) -> Params:
        """Those of the flow within."""
        return self.inner.init(key)

    def space(self, params: Params, x: Tensor) -> Tensor:
        """The pixels as they are."""
        return x

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Normals; the determinant counts the logit too."""
        inside = ALPHA + (1 - 2 * ALPHA) * self.dequantised(x)
        logit = inside.log() - (1 - inside).log()
        stretch = math.log(1 - 2 * ALPHA) - inside.log() - (1 - inside).log()
        z, log_det = self.inner.forward(params, logit)
        return z, log_det + stretch.sum(-1)

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """Pixels, dequantised ones."""
        return (torch.sigmoid(self.inner.inverse(params, z)) - ALPHA) / (1 - 2 * ALPHA)

    def dequantised(self, x: Tensor) -> Tensor:
        """Each pixel moved by a part of a step, within [0, 1)."""
        places = bits(root(0).to(x.device), (x.shape[-1],))
        steps = (x.detach() * (self.levels - 1)).round().to(torch.int64)
        noise = uniform(fold(fold(places, steps).sum(-1, keepdim=True), places), (), x.dtype)
        return (steps.to(x.dtype) + noise) / self.levels

    def describe(self) -> str:
        """The flow within, and the number of steps."""
        return f"{self.inner.describe()}, of pixels in {self.levels} steps"
