"""Weight sharing: parameters that all clusters have in common travel once and are averaged over all participants."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor

from corymb.core.snapshot import Snapshot
from corymb.core.sums import Sums
from corymb.settings import require
from corymb.trees import Params, add, count


class Sent(NamedTuple):
    """k models as sent to a client: common parameters once, the others k times."""

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
    if at.round or not shared:
        return at
    for pattern in shared:
        hit = [name for name in at.models if fnmatchcase(name, pattern)]
        require(bool(hit), f"shared: no parameter is called {pattern!r}. The model has: {', '.join(at.models)}.")
    require(
        not all(is_shared(name, shared) for name in at.models),
        "shared covers every parameter, which leaves a single model: use FedAvg, or share fewer layers.",
    )
    models = {name: _first(value) if is_shared(name, shared) else value for name, value in at.models.items()}
    return replace(at, models=models)


def _first(value: Tensor) -> Tensor:
    return value[:1].expand_as(value).clone()


def mean_models(models: Params, sums: Sums[Tensor], shared: tuple[str, ...]) -> Params:
    """Means within clusters (an empty one keeps its model); shared parameters are the mean over all participants."""
    means = sums.mean(empty=models)
    mean = {name: total.sum(0) / sums.weight.sum() for name, total in _shared(sums, shared).items()}
    return means | {name: value.expand_as(models[name]).clone() for name, value in mean.items()}


def step_along(models: Params, sums: Sums[Tensor], step: float, shared: tuple[str, ...]) -> Params:
    """Models after a step against the sum of each cluster's gradients; shared parameters against the sum of all."""
    total = {name: value.sum(0).expand_as(models[name]) for name, value in _shared(sums, shared).items()}
    return add(models, {**sums.total, **total}, alpha=-step)


def _shared(sums: Sums[Tensor], shared: tuple[str, ...]) -> Params:
    return {name: total for name, total in sums.total.items() if is_shared(name, shared)}
