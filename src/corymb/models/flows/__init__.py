"""Normalising flows: invertible maps with an exact log-determinant, as pure functions of their parameters.

Every flow works example by example, keeps no statistics, and runs under vmap and grad.
"""

from corymb.models.flows.affine import Affine, Diagonal, Shift
from corymb.models.flows.base import Flow
from corymb.models.flows.coupling import RealNVP
from corymb.models.flows.pixels import Pixels
from corymb.models.flows.planar import Planar
from corymb.models.flows.projected import Projected

__all__ = ["Affine", "Diagonal", "Flow", "Pixels", "Planar", "Projected", "RealNVP", "Shift"]
