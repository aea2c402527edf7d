"""Algorithms: frozen settings with a loop of their own, one file each."""

from corymb.algorithms.alone import Alone
from corymb.algorithms.fedavg import FedAvg
from corymb.algorithms.fedprox import FedProx
from corymb.algorithms.ifca import IFCA
from corymb.algorithms.one_shot import OneShot
from corymb.algorithms.oracle import Oracle
from corymb.algorithms.stability import Saving

__all__ = ["IFCA", "Alone", "FedAvg", "FedProx", "OneShot", "Oracle", "Saving"]
