"""An objective of which only the essentials are written: `init`, `losses` and `scores`."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor

from corymb.core.objective import Examples, Objective
from corymb.keys import Key
from corymb.settings import InvalidInput
from corymb.trees import Params

MEMBERS = ("score_name", "higher_is_better", "squared", "predict", "mix", "grade", "to", "describe")


class Essentials(Protocol):
    """The least that an objective must have."""

    def init(self, key: Key) -> Params: ...
    def losses(self, params: Params, examples: Examples) -> Tensor: ...
    def scores(self, params: Params, examples: Examples) -> Tensor: ...


def completed(objective: Essentials) -> Objective:
    """The objective itself if nothing is missing, else one in which what is missing has a plain default.

    Without `score_name` and `higher_is_better` scores are called `score`, and larger ones are better; without `to` it
    stays on the CPU in float32; without `predict` a run cannot predict; without `mix` and `grade` clients cannot be
    served several models at once.
    """
    if all(hasattr(objective, name) for name in MEMBERS):
        return cast(Objective, objective)
    return _Completed(objective)


class _Completed:
    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.score_name: str = getattr(inner, "score_name", "score")
        self.higher_is_better: bool = getattr(inner, "higher_is_better", True)
        self.squared: float | None = getattr(inner, "squared", None) or None
        self.init, self.losses, self.scores = inner.init, inner.losses, inner.scores

    def predict(self, params: Params, x: Tensor) -> Tensor:
        return cast(Tensor, self._own("predict", "it cannot predict")(params, x))

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        return cast(Tensor, self._own("mix", "its predictions cannot be mixed")(predictions, weights))

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        return cast(Tensor, self._own("grade", "its predictions cannot be scored")(predictions, examples))

    def to(self, device: torch.device | str, dtype: torch.dtype) -> _Completed:
        if hasattr(self.inner, "to"):
            return _Completed(self.inner.to(device, dtype))
        if torch.device(device).type != "cpu" or dtype != torch.float32:
            self._own("to", "it can run on device='cpu' with float32 only")
        return self

    def describe(self) -> str:
        return str(self.inner.describe()) if hasattr(self.inner, "describe") else type(self.inner).__qualname__

    def _own(self, member: str, otherwise: str) -> Any:
        if not hasattr(self.inner, member):
            raise InvalidInput(f"{type(self.inner).__name__} has no {member}: {otherwise}.")
        return getattr(self.inner, member)
