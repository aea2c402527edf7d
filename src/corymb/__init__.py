"""Corymb: clustered federated learning. Finds groups of clients and trains one model per group, at the same time.

    >>> import corymb
    >>> data = corymb.datasets.digits(clients=8, train=20, test=10)
    >>> run = corymb.fit(corymb.IFCA(k=4, rounds=2), data)
    >>> len(run.labels)
    8

Everything here is imported when it is first used, so that `import corymb` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corymb import datasets, models, objectives
    from corymb.algorithms import (
        CFL,
        IFCA,
        SRFCA,
        UIFCA,
        Alone,
        ClusterGAN,
        FedAvg,
        FedProx,
        FedSoft,
        FedX,
        KFed,
        LocalKMeans,
        MomentDescent,
        OneShot,
        OneShotIFCA,
        Oracle,
        Saving,
    )
    from corymb.core.client import Client, Examples, Objective, Share, Shares, on_client
    from corymb.core.federation import Cohort, Federation, Replies, Sums, each
    from corymb.core.snapshot import Algorithm, Snapshot
    from corymb.data import FederatedDataset
    from corymb.local import Descent
    from corymb.models import cnn, mlp
    from corymb.privacy import Privacy
    from corymb.runs.advising.advice import Advice
    from corymb.runs.advising.advise import advise
    from corymb.runs.defaults import configure
    from corymb.runs.fit import fit
    from corymb.runs.later.refresh import refresh
    from corymb.runs.own.callbacks import StopRun
    from corymb.runs.run import Run
    from corymb.runs.settings import RunSettings
    from corymb.runs.tuning.study import tune
    from corymb.settings import InvalidInput

__version__ = "0.1.0"

_HOMES = {
    "corymb.algorithms": [
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
        "Saving",
    ],
    "corymb.core.client": ["Client", "Examples", "Objective", "Share", "Shares", "on_client"],
    "corymb.data": ["FederatedDataset"],
    "corymb.runs.advising.advice": ["Advice"],
    "corymb.runs.advising.advise": ["advise"],
    "corymb.runs.defaults": ["configure"],
    "corymb.runs.fit": ["fit"],
    "corymb.runs.later.refresh": ["refresh"],
    "corymb.runs.own.callbacks": ["StopRun"],
    "corymb.runs.run": ["Run"],
    "corymb.runs.settings": ["RunSettings"],
    "corymb.runs.tuning.study": ["tune"],
    "corymb.core.federation": ["Cohort", "Federation", "Replies", "Sums", "each"],
    "corymb.local": ["Descent"],
    "corymb.models": ["cnn", "mlp"],
    "corymb.privacy": ["Privacy"],
    "corymb.settings": ["InvalidInput"],
    "corymb.core.snapshot": ["Algorithm", "Snapshot"],
}
_MODULES = ("datasets", "models", "objectives")

__all__ = [
    "CFL",
    "IFCA",
    "SRFCA",
    "UIFCA",
    "Advice",
    "Algorithm",
    "Alone",
    "Client",
    "ClusterGAN",
    "Cohort",
    "Descent",
    "Examples",
    "FedAvg",
    "FedProx",
    "FedSoft",
    "FedX",
    "FederatedDataset",
    "Federation",
    "InvalidInput",
    "KFed",
    "LocalKMeans",
    "MomentDescent",
    "Objective",
    "OneShot",
    "OneShotIFCA",
    "Oracle",
    "Privacy",
    "Replies",
    "Run",
    "RunSettings",
    "Saving",
    "Share",
    "Shares",
    "Snapshot",
    "StopRun",
    "Sums",
    "__version__",
    "advise",
    "cnn",
    "configure",
    "datasets",
    "each",
    "fit",
    "mlp",
    "models",
    "objectives",
    "on_client",
    "refresh",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"corymb.{name}")
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(home), name)
            return value
    raise AttributeError(f"module 'corymb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
