"""Classification with any network: cross-entropy, scored by 0/1 accuracy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from corymb.core.client import Examples
from corymb.keys import Key
from corymb.models.network import Network
from corymb.objectives.measures.classes import OfClasses
from corymb.settings import InvalidInput
from corymb.trees import Params


class Classification:
    """A network whose output is one logit a class."""

    score_name = "accuracy"
    higher_is_better = True
    squared = None

    def __init__(self, network: Network, classes: int) -> None:
        self.network, self.classes = network, classes
        self.measures = OfClasses(classes)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Classification:
        """The same objective elsewhere, or in another precision."""
        return Classification(self.network.to(device, dtype), self.classes)

    def init(self, key: Key) -> Params:
        """Fresh parameters of the network."""
        return self.network.init(key)

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """The logits of each example: m classes."""
        logits = self.network(params, x)
        if logits.dim() != 2 or logits.shape[-1] != self.classes:
            raise InvalidInput(
                f"The model's output for {len(x)} examples has shape {list(logits.shape)}, wanted "
                f"[{len(x)}, {self.classes}]: one logit for each of the {self.classes} classes."
            )
        return logits

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """Cross-entropy of each example."""
        return cross_entropy(self.predict(params, examples.x), examples.y, reduction="none")

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
        return f"classification of {self.classes} classes by {self.network.describe()}"
