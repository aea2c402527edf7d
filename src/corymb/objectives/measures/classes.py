"""Metrics of predicted classes: accuracy, balanced accuracy, macro F1, AUC, log loss; calibration of all examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.core.objective import Examples
from corymb.objectives.measures import METRICS, Metric, Values, mean_where, ratio, wide
from corymb.objectives.measures.ranking import areas, binned_area, bins_for, histogram
from corymb.trees import Params

MOST_CLASSES_RANKED = 256
"""With more classes there is no AUC: its histograms would be larger than most models."""
CONFIDENCES = 15
"""Bins of the calibration error."""
LEAST_LOG = -745.0
"""The logarithm of a probability of 0: that of the smallest number above it."""


@dataclass(frozen=True)
class OfClasses:
    """Metrics of logits, m classes."""

    classes: int

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All of them; no AUC for very many classes."""
        names = ["accuracy", "balanced_accuracy", "macro_f1", *(["auc"] if self._ranked else []), "log_loss"]
        return tuple(METRICS[name] for name in names)

    @property
    def _ranked(self) -> bool:
        return self.classes <= MOST_CLASSES_RANKED

    def labels(self, examples: Examples) -> Tensor:
        """The share of each class."""
        weight = wide(examples.weight)
        return self._each(examples.y).to(weight).mul(weight[:, None]).sum(0) / weight.sum().clamp_min(1)

    def trivial(self, labels: Tensor) -> Tensor:
        """The logarithms of the shares of all classes: the most frequent is the likeliest."""
        return labels.log().clamp_min(LEAST_LOG)

    def repeated(self, trivial: Tensor, m: int) -> Tensor:
        """The same logits for every example."""
        return trivial.expand(m, self.classes)

    def values(self, predictions: Tensor, examples: Examples) -> Values:
        """The metrics of a client's test examples, those with a mean over classes over the classes that it has."""
        logs, y, weight = wide(predictions).log_softmax(-1), examples.y, wide(examples.weight)
        right, true, said = self._counts(logs, y, weight)
        total = weight.sum()
        log_loss = torch.where(weight > 0, -_log_of(logs, y) * weight, 0).sum()
        found = {
            "accuracy": ratio(right.sum(), total),
            "balanced_accuracy": _recall(right, true),
            "macro_f1": _f1(right, true, said),
            "log_loss": ratio(log_loss, total),
        }
        defined = dict.fromkeys(found, total > 0)
        if self._ranked:
            positive, negative = self._sides(y, weight)
            both = (positive.sum(0) > 0) & (negative.sum(0) > 0)
            found["auc"] = mean_where(areas(self._column(logs.exp()), positive, negative), both)
            defined["auc"] = both.any()
        names = [metric.name for metric in self.metrics]
        return Values(torch.stack([found[name] for name in names]), torch.stack([defined[name] for name in names]))

    def sums(self, predictions: Tensor, trivial: Tensor, examples: Examples) -> Params:
        """For each class how many examples are of it, are said to be and both; histograms of probabilities."""
        logs, y, weight = wide(predictions).log_softmax(-1), examples.y, wide(examples.weight)
        right, true, said = self._counts(logs, y, weight)
        found = {"right": right, "true": true, "said": said, "confidence": _confidences(logs, y, weight)}
        if self._ranked:
            odds, usual = (_log_odds(self._column(rows)) for rows in (logs, wide(trivial).log_softmax(-1)[None]))
            found["histogram"] = histogram(odds, usual[0], *self._sides(y, weight), bins_for(self.classes))
        return found

    def if_constant(self, sums: Params, trivial: Tensor) -> Params:
        """All said to be of the likeliest class, and all in one bin."""
        true, answer = sums["true"], trivial.to(sums["true"]).argmax()
        chosen = torch.arange(self.classes, device=true.device) == answer
        found = {"true": true, "right": torch.where(chosen, true, 0), "said": torch.where(chosen, true.sum(), 0)}
        if self._ranked:
            found["histogram"] = sums["histogram"].sum(-1, keepdim=True)
        return found

    def over_examples(
        self, sums: Params, means: Mapping[str, float], trivial_means: Mapping[str, float]
    ) -> dict[str, float]:
        """Over all examples: balanced accuracy, macro F1, AUC with its largest error, and the calibration error."""
        found = {
            "balanced_accuracy": float(_recall(sums["right"], sums["true"])),
            "macro_f1": float(_f1(sums["right"], sums["true"], sums["said"])),
        }
        if self._ranked and (area := binned_area(sums["histogram"])) is not None:
            found |= {"auc": area.value, "auc_error": area.error}
        if "confidence" in sums:
            count, confidence, right = sums["confidence"]
            found["calibration_error"] = float(ratio((confidence - right).abs().sum(), count.sum()))
        return found

    # ---- at a client

    def _each(self, y: Tensor) -> Tensor:
        """Which class each example has: m classes."""
        return y[:, None] == torch.arange(self.classes, device=y.device)

    def _counts(self, logs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each class how many examples are rightly said to be of it, are of it, and are said to be."""
        is_of = self._each(y) & (weight > 0)[:, None]
        said_to_be = self._each(logs.argmax(-1)) & (weight > 0)[:, None]
        right, true, said = (
            torch.where(which, weight[:, None], 0).sum(0) for which in (is_of & said_to_be, is_of, said_to_be)
        )
        return right, true, said

    def _sides(self, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of the examples that are of each class, and of those that are not: m columns."""
        is_of = self._column(self._each(y))
        return torch.where(is_of, weight[:, None], 0), torch.where(is_of, 0, weight[:, None])

    def _column(self, rows: Tensor) -> Tensor:
        """Of two classes the second alone: one against the other is the other against the one."""
        return rows[:, 1:] if self.classes == 2 else rows


def _log_of(logs: Tensor, y: Tensor) -> Tensor:
    return logs.gather(-1, y[:, None])[:, 0].clamp_min(LEAST_LOG)


def _log_odds(logs: Tensor) -> Tensor:
    """log p − log (1 − p), of finite numbers."""
    return (logs - (-torch.expm1(logs)).log()).clamp(LEAST_LOG, -LEAST_LOG)


def _recall(right: Tensor, true: Tensor) -> Tensor:
    """The mean share of the examples of a class that are found, over the classes that occur."""
    return mean_where(ratio(right, true), true > 0)


def _f1(right: Tensor, true: Tensor, said: Tensor) -> Tensor:
    """The mean of 2 right / (true + said) over the classes that occur, in truth or in what is said."""
    return mean_where(ratio(2 * right, true + said), true + said > 0)


def _confidences(logs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """How many examples, with what sum of probabilities of the likeliest class, and how many right: 3 bins."""
    log, answer = logs.max(-1)
    confidence = log.exp()
    place = (confidence * CONFIDENCES).ceil().long() - 1
    inside = place.clamp(0, CONFIDENCES - 1)[:, None] == torch.arange(CONFIDENCES, device=y.device)
    each = torch.stack([torch.ones_like(confidence), confidence, (answer == y).to(confidence)])
    counted = torch.where(weight > 0, each * weight, 0)
    return torch.where(inside, counted[..., None], 0).sum(1)
