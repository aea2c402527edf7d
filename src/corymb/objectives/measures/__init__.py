"""Metrics of an objective's predictions, besides its own score.

An objective may have `measures`: one of the classes here, or a custom one. Without it, only its own score is reported.
Metrics are defined in `docs/metrics.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from corymb.core.objective import Examples, Objective
from corymb.settings import InvalidInput
from corymb.trees import Params


class Metric(NamedTuple):
    """A metric's name and properties."""

    name: str
    title: str
    """Its name as written in a sentence."""
    higher_is_better: bool
    of_examples: bool
    """Whether a client's value is a mean over its examples; weighted by examples, clients' values then give the mean
    over all examples."""
    trivial: str
    """A description of the best constant prediction, to follow "no better than"."""


_MOST_FREQUENT = "always answering the most frequent class"
_SHARES = "always giving every class its share of all examples"
_MEAN = "always answering the mean"
METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("accuracy", "accuracy", True, True, _MOST_FREQUENT),
            Metric("balanced_accuracy", "balanced accuracy", True, False, _MOST_FREQUENT),
            Metric("macro_f1", "macro F1", True, False, _MOST_FREQUENT),
            Metric("auc", "AUC", True, False, "giving every example the same chance"),
            Metric("log_loss", "log loss", False, True, _SHARES),
            Metric("squared_error", "squared error", False, True, _MEAN),
            Metric("r2", "R²", True, False, _MEAN),
            Metric("mae", "mean absolute error", False, True, _MEAN),
            Metric("rmse", "root mean squared error", False, False, _MEAN),
        )
    }
)
"""Every metric of the library, by name."""


class Values(NamedTuple):
    """A client's own values of all metrics."""

    value: Tensor
    """One for each metric; 0 if it is not defined."""
    defined: Tensor
    """Whether each metric is defined for the labels that the client has."""


class Measures(Protocol):
    """Metrics of one kind of prediction.

    `labels`, `repeated`, `values` and `sums` are called at a client: tensors have a row for each of its m examples, and
    rows of weight 0 are ignored. The others are called with sums over all clients.
    """

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics, in the order of `Values`."""
        ...

    def labels(self, examples: Examples) -> Tensor:
        """The statistic for the trivial prediction: a mean over examples."""
        ...

    def repeated(self, trivial: Tensor, m: int) -> Tensor:
        """The trivial prediction for m examples."""
        ...

    def values(self, predictions: Tensor, examples: Examples) -> Values:
        """The client's own metrics."""
        ...

    def sums(self, predictions: Tensor, trivial: Tensor, examples: Examples) -> Params:
        """Statistics whose sums over clients give the metrics over all clients' examples."""
        ...

    def trivial(self, labels: Tensor) -> Tensor:
        """The best constant prediction, from the mean of `labels` over all training examples."""
        ...

    def if_constant(self, sums: Params, trivial: Tensor) -> Params:
        """The sums as they would be if every prediction were the trivial one."""
        ...

    def over_examples(
        self, sums: Params, means: Mapping[str, float], trivial_means: Mapping[str, float]
    ) -> dict[str, float]:
        """The metrics over all examples that are not means over examples; the latter are given as `means`.

        Names that are not among `metrics` are further details of the predictions' quality.
        """
        ...


def measures_of(objective: Objective) -> Measures | None:
    """The measures that an objective has, if any."""
    measures: Measures | None = getattr(objective, "measures", None)
    return measures


def metric_names(objective: Objective) -> tuple[str, ...]:
    """The names of an objective's metrics, its own score first."""
    measures = measures_of(objective)
    others = () if measures is None else tuple(metric.name for metric in measures.metrics)
    return (objective.score_name, *(name for name in others if name != objective.score_name))


def higher_is_better(objective: Objective, name: str) -> bool:
    """Whether higher values of one of an objective's metrics are better."""
    return objective.higher_is_better if name == objective.score_name else METRICS[name].higher_is_better


def chosen_metric(objective: Objective, name: str | None) -> str:
    """The given metric, or the objective's own score; raises InvalidInput for one that does not fit the objective."""
    fitting = metric_names(objective)
    if name is not None and name not in fitting:
        what = f"Metric {name!r} does not fit what is learned" if name in METRICS else f"There is no metric {name!r}"
        raise InvalidInput(f"{what}: choose {listed(fitting)}.")
    return name or objective.score_name


def listed(names: Sequence[str]) -> str:
    """Names to choose from, as written in a sentence.

    >>> listed(["accuracy", "auc", "log_loss"])
    'accuracy, auc or log_loss'
    """
    return " or ".join(([", ".join(names[:-1])] if names[1:] else []) + list(names[-1:])) or "none"


def wide(values: Tensor) -> Tensor:
    """Values in float64, which sums of many examples need; unchanged on Apple GPUs, which do not support it."""
    return values if values.device.type == "mps" else values.double()


def ratio(over: Tensor, under: Tensor) -> Tensor:
    """over / under; 0 if `under` is 0."""
    return torch.where(under > 0, over / torch.where(under > 0, under, 1), 0)


def mean_where(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over the last axis of the values where `mask` is true; 0 if it is true nowhere."""
    return ratio(torch.where(mask, values, 0).sum(-1), mask.to(values).sum(-1))
