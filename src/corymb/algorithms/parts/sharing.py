"""Weight sharing: parameters that all clusters have in common travel once and are averaged over all participants."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor

from corymb.core.snapshot import Snapshot
from corymb.core.sums import Sums
from corymb.settings import require
from corymb.trees import Params, count


class Sent(NamedTuple):
    """k models on the way to a client: what they have in common once, the rest k times."""

    own: Params  # k rows
    common: Params

    def models(self) -> Params:
        """The k models."""
        k = count(self.own)
        return self.own | {name: value.expand(k, *value.shape) for name, value in self.common.items()}


def is_shared(name: str, shared: tuple[str, ...]) -> bool:
    """Whether a parameter's name matches one of the patterns (`*` and `?` as in file names)."""
    return any(fnmatchcase(name, pattern) for pattern in shared)


def pack(models: Params, shared: tuple[str, ...]) -> Sent:
    """The models as they are sent."""
    own = {name: value for name, value in models.items() if not is_shared(name, shared)}
    common = {name: value[0] for name, value in models.items() if is_shared(name, shared)}
    return Sent(own, common)


def tie(at: Snapshot, shared: tuple[str, ...]) -> Snapshot:
    """A start in which the shared parameters of all models are those of the first."""
    for pattern in shared:
        hit = [name for name in at.models if fnmatchcase(name, pattern)]
        require(bool(hit), f"shared: no parameter is called {pattern!r}. The model has: {', '.join(at.models)}.")
    require(
        not all(is_shared(name, shared) for name in at.models),
        "shared covers every parameter: then there is one model only. Use FedAvg, or share fewer layers.",
    )
    models = {name: _first(value) if is_shared(name, shared) else value for name, value in at.models.items()}
    return replace(at, models=models)


def _first(value: Tensor) -> Tensor:
    return value[:1].expand_as(value).clone()


def average_shared(models: Params, sums: Sums[Tensor], shared: tuple[str, ...]) -> Params:
    """Models whose shared parameters are the mean over all participants, whatever their cluster."""
    if not shared:
        return models
    mean = {name: total.sum(0) / sums.weight.sum() for name, total in sums.total.items() if is_shared(name, shared)}
    return models | {name: value.expand_as(models[name]).clone() for name, value in mean.items()}
