"""Classification with any network: cross-entropy, scored by 0/1 accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from corymb.core.client import Examples
from corymb.core.objective import Draws
from corymb.keys import Key, no_transform_active
from corymb.models.network import Network
from corymb.objectives.linear_form import LinearForm, layer_form
from corymb.objectives.measures.classes import OfClasses
from corymb.objectives.shapes import wrong_shape
from corymb.settings import InvalidInput, require
from corymb.trees import Params

NO_CLASS = -(2**31)
"""An `ignore_index` that never occurs: no class is ignored, and an invalid class is an error."""


class Classification:
    """A network whose output is one logit per class.

    `class_weight` has a weight for each class, by which the loss of an example is multiplied in training only.
    `label_smoothing` is the fraction of every label that training spreads evenly over all classes, as in torch's
    cross-entropy: the loss of each class is multiplied by that class's weight.
    """

    score_name = "accuracy"
    higher_is_better = True
    squared = None

    def __init__(
        self,
        network: Network,
        classes: int,
        class_weight: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        self.network, self.classes, self.label_smoothing = network, classes, label_smoothing
        require(0 <= label_smoothing < 1, f"label_smoothing must be in [0, 1), got {label_smoothing}.")
        self.measures = OfClasses(classes)
        self.class_weight = None if class_weight is None else tuple(class_weight)
        if self.class_weight is not None and len(self.class_weight) != classes:
            raise InvalidInput(
                f"class_weight has {len(self.class_weight)} weights for {classes} classes: give one each."
            )
        self._weight = None if class_weight is None else torch.tensor(class_weight).to(network.device, network.dtype)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Classification:
        """The same objective on another device or in another precision."""
        return Classification(self.network.to(device, dtype), self.classes, self.class_weight, self.label_smoothing)

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this objective: see `corymb.objectives.recipe`."""
        arguments = {"network": self.network, "classes": self.classes, "class_weight": self.class_weight}
        return arguments if not self.label_smoothing else arguments | {"label_smoothing": self.label_smoothing}

    def init(self, key: Key) -> Params:
        """Fresh parameters of the network."""
        return self.network.init(key)

    @property
    def loss_unit(self) -> float:
        """The loss of a model that predicts all classes with equal probability."""
        return math.log(max(2, self.classes))

    @property
    def logits(self) -> LinearForm | None:
        """The linear form of the logits, if the network is a single linear layer."""
        form = layer_form(self.network)
        if form is None or (self._weight is None and not self.label_smoothing):
            return form
        one = torch.eye(self.classes).to(self.network.device, self.network.dtype)
        target = torch.lerp(one, one.new_tensor(1 / self.classes), self.label_smoothing)  # y, class
        target = target if self._weight is None else target * self._weight
        counts = target.sum(-1)
        shares = target / counts[:, None]
        form = replace(form, counts=lambda y: counts[y])
        return form if not self.label_smoothing else replace(form, shares=lambda y: shares[y])

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """The logits of each example: m classes."""
        return self._checked(self.network(params, x), x)

    def _checked(self, logits: Tensor, x: Tensor) -> Tensor:
        if logits.dim() != 2 or logits.shape[-1] != self.classes:
            meaning = f"one logit for each of the {self.classes} classes"
            raise InvalidInput(wrong_shape(logits, [len(x), self.classes], meaning))
        return logits

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """Cross-entropy of each example."""
        return cross_entropy(self.predict(params, examples.x), examples.y)

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """Cross-entropy of each example with dropout and smoothed labels, times the weight of its class."""
        logits = self._checked(self.network.training(params, examples.x, draws), examples.x)
        losses = cross_entropy(logits, examples.y)
        losses = losses if self._weight is None else losses * self._weight[examples.y]
        if not self.label_smoothing:
            return losses
        by_class = -logits.log_softmax(-1)  # m classes
        by_class = by_class if self._weight is None else by_class * self._weight
        return torch.lerp(losses, by_class.mean(-1), self.label_smoothing)

    def scores(self, params: Params, examples: Examples) -> Tensor:
        """1 if the most likely class is right, otherwise 0."""
        return self.grade(self.predict(params, examples.x), examples)

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """1 if the most likely class is right, otherwise 0; NaN if the logits give no probabilities."""
        right = (predictions.argmax(-1) == examples.y).to(examples.weight.dtype)
        return torch.where(predictions.log_softmax(-1).isnan().any(-1), torch.nan, right)

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """The logarithms of the classes' probabilities under the mixture: m classes."""
        return torch.logsumexp(predictions.log_softmax(-1) + weights.log()[:, None, None], 0)

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        weighed = "" if self.class_weight is None else f", classes weighed {list(self.class_weight)}"
        smooth = "" if not self.label_smoothing else f", labels smoothed by {self.label_smoothing}"
        return f"classification of {self.classes} classes by {self.network.describe()}{weighed}{smooth}"


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each example. Under vmap torch's own is avoided, since its `ignore_index` imports sympy."""
    if no_transform_active():
        return torch.nn.functional.cross_entropy(logits, y, reduction="none", ignore_index=NO_CLASS)
    return (-logits.log_softmax(-1)).gather(-1, y.unsqueeze(-1)).squeeze(-1)
