"""Affine flows: z = A x + c with a full matrix, a diagonal one, or none. Their densities are Gaussians.

The report on UIFCA calls the full one a one-layer planar flow, g(z) = Wz + b; here the map from data to normals has the
parameters (A = W⁻¹), so that a likelihood takes no matrix inversion.
"""

from __future__ import annotations

import torch
from torch import Tensor

from corymb.keys import Key, fold, normal
from corymb.models.flows.base import Plain
from corymb.trees import Params

SPREAD = 0.1  # standard deviation of initial parameters around those of the identity


class Affine(Plain):
    """z = A x + c: a Gaussian with any covariance."""

    def init(self, key: Key) -> Params:
        """Random parameters near the identity."""
        d = self.inputs
        drawn = normal(fold(key, "matrix"), (d, d)) * (SPREAD / d**0.5)
        return {"matrix": torch.eye(d) + drawn, "shift": normal(fold(key, "shift"), (d,)) * SPREAD}

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """A x + c, and log |det A| for every example."""
        z = x @ params["matrix"].mT + params["shift"]
        log_det = torch.linalg.slogdet(params["matrix"]).logabsdet
        return z, log_det.expand(x.shape[0])

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """A⁻¹ (z − c)."""
        solved: Tensor = torch.linalg.solve(params["matrix"], (z - params["shift"]).mT).mT
        return solved

    @staticmethod
    def gaussian(mean: Tensor, covariance: Tensor) -> Params:
        """The parameters under which the density is the Gaussian with this mean and covariance: ... d, ... d d."""
        root = torch.linalg.cholesky(covariance)
        matrix = torch.linalg.solve_triangular(root, torch.eye(root.shape[-1]).to(root).expand_as(root), upper=False)
        return {"matrix": matrix, "shift": -(matrix @ mean.unsqueeze(-1)).squeeze(-1)}


class Diagonal(Plain):
    """z = exp(s) x + c, coordinate by coordinate: a Gaussian whose covariance is diagonal."""

    def init(self, key: Key) -> Params:
        """Random parameters near the identity."""
        return {name: normal(fold(key, name), (self.inputs,)) * SPREAD for name in ("log_scale", "shift")}

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """exp(s) x + c, and the sum of s for every example."""
        z = x * params["log_scale"].exp() + params["shift"]
        return z, params["log_scale"].sum(-1).expand(x.shape[0])

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """exp(−s) (z − c)."""
        return (z - params["shift"]) * (-params["log_scale"]).exp()


class Shift(Plain):
    """z = x + c: a Gaussian with covariance I; the most likely of several is the one with the nearest centre."""

    def init(self, key: Key) -> Params:
        """A random centre near 0."""
        return {"shift": normal(key, (self.inputs,)) * SPREAD}

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """x + c, and log-determinants of 0."""
        return x + params["shift"], x.new_zeros(x.shape[0])

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """z − c."""
        return z - params["shift"]

    @staticmethod
    def centred(centre: Tensor) -> Params:
        """The parameters under which the density has this centre."""
        return {"shift": -centre}
