"""Algorithms: each is a frozen dataclass of settings with its own loop, in one file; imported when first used."""

from typing import TYPE_CHECKING

from corymb.lazy import lazily

if TYPE_CHECKING:
    from corymb.algorithms.alone import Alone
    from corymb.algorithms.cfl import CFL
    from corymb.algorithms.clustergan import ClusterGAN
    from corymb.algorithms.fedavg import FedAvg
    from corymb.algorithms.fedprox import FedProx
    from corymb.algorithms.fedsoft import FedSoft
    from corymb.algorithms.fedx import FedX
    from corymb.algorithms.ifca import IFCA
    from corymb.algorithms.kfed import KFed
    from corymb.algorithms.local_kmeans import LocalKMeans
    from corymb.algorithms.moment_descent import MomentDescent
    from corymb.algorithms.one_shot import OneShot
    from corymb.algorithms.one_shot_ifca import OneShotIFCA
    from corymb.algorithms.oracle import Oracle
    from corymb.algorithms.parts.restarts import Restarts
    from corymb.algorithms.parts.saving import Saving
    from corymb.algorithms.parts.then import Then
    from corymb.algorithms.sr_fca import SRFCA
    from corymb.algorithms.uifca import UIFCA

__all__ = [
    "CFL",
    "IFCA",
    "SRFCA",
    "UIFCA",
    "Alone",
    "ClusterGAN",
    "FedAvg",
    "FedProx",
    "FedSoft",
    "FedX",
    "KFed",
    "LocalKMeans",
    "MomentDescent",
    "OneShot",
    "OneShotIFCA",
    "Oracle",
    "Restarts",
    "Saving",
    "Then",
]
__getattr__ = lazily(
    __name__,
    {
        "Alone": "corymb.algorithms.alone",
        "CFL": "corymb.algorithms.cfl",
        "ClusterGAN": "corymb.algorithms.clustergan",
        "FedAvg": "corymb.algorithms.fedavg",
        "FedProx": "corymb.algorithms.fedprox",
        "FedSoft": "corymb.algorithms.fedsoft",
        "FedX": "corymb.algorithms.fedx",
        "IFCA": "corymb.algorithms.ifca",
        "KFed": "corymb.algorithms.kfed",
        "LocalKMeans": "corymb.algorithms.local_kmeans",
        "MomentDescent": "corymb.algorithms.moment_descent",
        "OneShot": "corymb.algorithms.one_shot",
        "OneShotIFCA": "corymb.algorithms.one_shot_ifca",
        "Oracle": "corymb.algorithms.oracle",
        "Restarts": "corymb.algorithms.parts.restarts",
        "Saving": "corymb.algorithms.parts.saving",
        "Then": "corymb.algorithms.parts.then",
        "SRFCA": "corymb.algorithms.sr_fca",
        "UIFCA": "corymb.algorithms.uifca",
    },
)
