"""Metrics of predicted classes: accuracy, balanced accuracy, macro F1, AUC, log loss, and the calibration error."""

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
"""The most classes with an AUC: with more, its histograms would be larger than most models."""
CONFIDENCES = 15
"""Bins of the calibration error."""
LEAST_LOG = -745.0
"""Stands for log 0: the logarithm of the smallest positive float64."""


@dataclass(frozen=True)
class OfClasses:
    """Metrics of logits, m classes."""

    classes: int

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics of classes; without AUC for more than `MOST_CLASSES_RANKED` classes."""
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
        """The logarithms of the classes' shares, as logits that predict the most frequent class."""
        return labels.log().clamp_min(LEAST_LOG)

    def repeated(self, trivial: Tensor, m: int) -> Tensor:
        """The same logits for every example."""
        return trivial.expand(m, self.classes)

    def values(self, predictions: Tensor, examples: Examples) -> Values:
        """The metrics of a client's test examples; means over classes are over the classes that it has."""
        logs, y, weight = wide(predictions).log_softmax(-1), examples.y, wide(examples.weight)
        right, true, predicted = self._counts(logs, y, weight)
        total = weight.sum()
        log_loss = torch.where(weight > 0, -_log_of(logs, y) * weight, 0).sum()
        found = {
            "accuracy": ratio(right.sum(), total),
            "balanced_accuracy": _recall(right, true),
            "macro_f1": _f1(right, true, predicted),
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
        """Counts of true, predicted and correct examples for each class, and histograms of probabilities."""
        logs, y, weight = wide(predictions).log_softmax(-1), examples.y, wide(examples.weight)
        right, true, predicted = self._counts(logs, y, weight)
        found = {"right": right, "true": true, "said": predicted, "confidence": _confidences(logs, y, weight)}
        if self._ranked:
            odds, usual = (_log_odds(self._column(rows)) for rows in (logs, wide(trivial).log_softmax(-1)[None]))
            found["histogram"] = histogram(odds, usual[0], *self._sides(y, weight), bins_for(self.classes))
        return found

    def if_constant(self, sums: Params, trivial: Tensor) -> Params:
        """The sums if all examples were predicted to be of the most likely class, and all fell into one bin."""
        true, answer = sums["true"], trivial.to(sums["true"]).argmax()
        chosen = torch.arange(self.classes, device=true.device) == answer
        found = {"true": true, "right": torch.where(chosen, true, 0), "said": torch.where(chosen, true.sum(), 0)}
        if self._ranked:
            found["histogram"] = sums["histogram"].sum(-1, keepdim=True)
        return found

    def over_examples(
        self, sums: Params, means: Mapping[str, float], trivial_means: Mapping[str, float]
    ) -> dict[str, float]:
        """Balanced accuracy, macro F1, AUC with a bound on its error, and the calibration error, over all examples."""
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
        """The class of each example, one-hot: m classes."""
        return y[:, None] == torch.arange(self.classes, device=y.device)

    def _counts(self, logs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each class, the numbers of examples correctly predicted to be of it, of it, and predicted to be of it."""
        is_true = self._each(y) & (weight > 0)[:, None]
        is_predicted = self._each(logs.argmax(-1)) & (weight > 0)[:, None]
        right, true, predicted = (
            torch.where(which, weight[:, None], 0).sum(0) for which in (is_true & is_predicted, is_true, is_predicted)
        )
        return right, true, predicted

    def _sides(self, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of the examples that are of each class, and of those that are not: m columns each."""
        is_of = self._column(self._each(y))
        return torch.where(is_of, weight[:, None], 0), torch.where(is_of, 0, weight[:, None])

    def _column(self, rows: Tensor) -> Tensor:
        """All columns; for two classes only the second, since both have the same ROC curve."""
        return rows[:, 1:] if self.classes == 2 else rows


def _log_of(logs: Tensor, y: Tensor) -> Tensor:
    return logs.gather(-1, y[:, None])[:, 0].clamp_min(LEAST_LOG)


def _log_odds(logs: Tensor) -> Tensor:
    """log p − log (1 − p), clamped to finite values."""
    return (logs - (-torch.expm1(logs)).log()).clamp(LEAST_LOG, -LEAST_LOG)


def _recall(right: Tensor, true: Tensor) -> Tensor:
    """The mean recall over the classes that occur."""
    return mean_where(ratio(right, true), true > 0)


def _f1(right: Tensor, true: Tensor, predicted: Tensor) -> Tensor:
    """The mean F1, 2 right / (true + predicted), over the classes that occur among labels or predictions."""
    return mean_where(ratio(2 * right, true + predicted), true + predicted > 0)


def _confidences(logs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """For each bin of confidence: the number of examples, the sum of confidences, and the number right: 3 bins."""
    log, answer = logs.max(-1)
    confidence = log.exp()
    place = (confidence * CONFIDENCES).ceil().long() - 1
    inside = place.clamp(0, CONFIDENCES - 1)[:, None] == torch.arange(CONFIDENCES, device=y.device)
    each = torch.stack([torch.ones_like(confidence), confidence, (answer == y).to(confidence)])
    counted = torch.where(weight > 0, each * weight, 0)
    return torch.where(inside, counted[..., None], 0).sum(1)
