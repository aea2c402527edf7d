"""Algorithms: frozen settings with a loop of their own, one file each."""

from corymb.algorithms.fedavg import FedAvg
from corymb.algorithms.ifca import IFCA

__all__ = ["IFCA", "FedAvg"]
