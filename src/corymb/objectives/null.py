"""An objective without a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corymb.core.objective import Examples
from corymb.keys import Key
from corymb.trees import Params


class NullObjective:
    """The objective of an engine that only holds the data; it learns nothing."""

    score_name = "nothing"
    higher_is_better = True
    squared = None

    def __init__(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device, self.dtype = device, dtype

    def to(self, device: torch.device | str, dtype: torch.dtype) -> NullObjective:
        """The same objective on another device or in another precision."""
        return NullObjective(device, dtype)

    def recipe(self) -> dict[str, Any]:
        """No arguments are needed to rebuild it elsewhere."""
        return {}

    def init(self, key: Key) -> Params:
        """A single unused parameter."""
        return {"nothing": torch.zeros(1, device=self.device, dtype=self.dtype)}

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """0 for each example."""
        return params["nothing"] * torch.zeros_like(examples.weight)

    scores = losses

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """0 for each example."""
        return params["nothing"].expand(len(x))

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """0 for each example."""
        return predictions[0]

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """0 for each example."""
        return torch.zeros_like(examples.weight)

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        return "nothing"
