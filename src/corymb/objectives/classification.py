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
from corymb.keys import Key
from corymb.local.single_vmap import stands_plain
from corymb.models.network import Network
from corymb.objectives.linear_form import LinearForm, layer_form
from corymb.objectives.measures.classes import OfClasses
from corymb.settings import InvalidInput, require
from corymb.trees import Params

NO_CLASS = -(2**31)
"""No example is left out for its class: one that there is not is an error."""


class Classification:
    """A network whose output is one logit a class.

    `class_weight` has a weight for each class: in training, and there alone, the loss of an example counts that much.
    `label_smoothing` is the part of every label that training spreads evenly over all classes, as in torch's
    cross-entropy: the loss of each class counts by that class's weight.
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
            raise InvalidInput(f"class_weight has {len(self.class_weight)} weights for {classes} classes.")
        self._weight = None if class_weight is None else torch.tensor(class_weight).to(network.device, network.dtype)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Classification:
        """The same objective on another device or in another precision."""
        return Classification(self.network.to(device, dtype), self.classes, self.class_weight, self.label_smoothing)

    def recipe(self) -> dict[str, Any]:
        """What makes the same objective elsewhere: see `corymb.objectives.recipe`."""
        told = {"network": self.network, "classes": self.classes, "class_weight": self.class_weight}
        return told if not self.label_smoothing else told | {"label_smoothing": self.label_smoothing}

    def init(self, key: Key) -> Params:
        """Fresh parameters of the network."""
        return self.network.init(key)

    @property
    def loss_unit(self) -> float:
        """The loss of a model that knows nothing."""
        return math.log(max(2, self.classes))

    @property
    def logits(self) -> LinearForm | None:
        """Of a network that is one linear layer."""
        form = layer_form(self.network)
        if form is None or (self._weight is None and not self.label_smoothing):
            return form
        one = torch.eye(self.classes).to(self.network.device, self.network.dtype)
        asked = torch.lerp(one, one.new_tensor(1 / self.classes), self.label_smoothing)  # y, class
        asked = asked if self._weight is None else asked * self._weight
        counts = asked.sum(-1)
        shares = asked / counts[:, None]
        form = replace(form, counts=lambda y: counts[y])
        return form if not self.label_smoothing else replace(form, shares=lambda y: shares[y])

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """The logits of each example: m classes."""
        return self._checked(self.network(params, x), x)

    def _checked(self, logits: Tensor, x: Tensor) -> Tensor:
        if logits.dim() != 2 or logits.shape[-1] != self.classes:
            raise InvalidInput(
                f"The model's output for {len(x)} examples has shape {list(logits.shape)}, wanted "
                f"[{len(x)}, {self.classes}]: one logit for each of the {self.classes} classes."
            )
        return logits

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """Cross-entropy of each example."""
        return cross_entropy(self.predict(params, examples.x), examples.y)

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """Cross-entropy of each example with dropout, with smooth labels and times the weight of its class."""
        logits = self._checked(self.network.training(params, examples.x, draws), examples.x)
        losses = cross_entropy(logits, examples.y)
        losses = losses if self._weight is None else losses * self._weight[examples.y]
        if not self.label_smoothing:
            return losses
        surprise = -logits.log_softmax(-1)  # m classes
        everywhere = surprise if self._weight is None else surprise * self._weight
        return torch.lerp(losses, everywhere.mean(-1), self.label_smoothing)

    def scores(self, params: Params, examples: Examples) -> Tensor:
        """1 where the likeliest class is right, otherwise 0."""
        return self.grade(self.predict(params, examples.x), examples)

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """1 where the likeliest class is right, otherwise 0; NaN where the logits give no probabilities."""
        right = (predictions.argmax(-1) == examples.y).to(examples.weight.dtype)
        return torch.where(predictions.log_softmax(-1).isnan().any(-1), torch.nan, right)

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """The logarithms of the classes' probabilities under the mixture: m classes."""
        return torch.logsumexp(predictions.log_softmax(-1) + weights.log()[:, None, None], 0)

    def describe(self) -> str:
        """What is learned, for fingerprints and run records."""
        weighed = "" if self.class_weight is None else f", classes weighed {list(self.class_weight)}"
        smooth = "" if not self.label_smoothing else f", labels smoothed by {self.label_smoothing}"
        return f"classification of {self.classes} classes by {self.network.describe()}{weighed}{smooth}"


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each example: torch's own, which under vmap would import sympy for the class to ignore."""
    if stands_plain():
        return torch.nn.functional.cross_entropy(logits, y, reduction="none", ignore_index=NO_CLASS)
    return (-logits.log_softmax(-1)).gather(-1, y.unsqueeze(-1)).squeeze(-1)
