"""Completes custom objectives that define only part of the protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from corymb.core.objective import Draws, Examples, Objective, has_training_losses
from corymb.keys import Key
from corymb.local.reference import training_losses
from corymb.models.network import Network
from corymb.objectives.measures import measures_of
from corymb.settings import InvalidInput
from corymb.trees import Params


class PartialObjective:
    """A custom objective with the missing members of the protocol added; only `init` and `losses` are required."""

    def __init__(self, inner: Any, like: Tensor | None = None, described: str | None = None) -> None:
        self.inner, self._like = inner, like
        # Computed now, because attributes may change later.
        self._described = _description(inner) if described is None else described
        self.name = type(inner).__qualname__
        self.movable = hasattr(inner, "to")
        self.score_name: str = getattr(inner, "score_name", "score")
        self.higher_is_better: bool = getattr(inner, "higher_is_better", True)
        self.squared: float | None = getattr(inner, "squared", None)
        self.measures = measures_of(inner)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> PartialObjective:
        """The same objective on another device or in another precision; without its own `to`, only models are moved."""
        if self.movable:
            return PartialObjective(self.inner.to(device, dtype), described=self._described)
        return PartialObjective(self.inner, torch.empty(0, device=device, dtype=dtype), self._described)

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this objective: see `corymb.objectives.recipe`."""
        return {"inner": self.inner}

    def init(self, key: Key) -> Params:
        """A fresh model."""
        params: Params = self.inner.init(key)
        return params if self._like is None else {name: value.to(self._like) for name, value in params.items()}

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The loss of each example."""
        losses: Tensor = self.inner.losses(params, examples)
        return losses

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """The training loss of each example: the loss, unless the objective has `training_losses`."""
        return training_losses(self.inner, params, examples, draws)

    def scores(self, params: Params, examples: Examples) -> Tensor:
        """The score of each example."""
        return cast(Tensor, self._own("scores", "(params, examples): it cannot be scored")(params, examples))

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """The prediction for each example."""
        return cast(Tensor, self._own("predict", "(params, x): it cannot predict")(params, x))

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """The mixture of several models' predictions."""
        return cast(Tensor, self._own("mix", "(predictions, weights): models cannot be mixed")(predictions, weights))

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """The score of each example, from predictions."""
        return cast(
            Tensor, self._own("grade", "(predictions, examples): models cannot be mixed")(predictions, examples)
        )

    def describe(self) -> str:
        """The objective's own description, or the name of its class with its public attributes."""
        return self._described

    def _own(self, member: str, lack: str) -> Any:
        if not hasattr(self.inner, member):
            raise InvalidInput(f"{self.name} has no {member}{lack}.")
        return getattr(self.inner, member)


def _description(inner: Any) -> str:
    """Distinguishes objectives of the same class, so that a run is not resumed with a different one."""
    if hasattr(inner, "describe"):
        return str(inner.describe())
    own = {name: value for name, value in getattr(inner, "__dict__", {}).items() if not name.startswith("_")}
    parts = ", ".join(f"{name}={_as_text(value)}" for name, value in sorted(own.items()))
    return type(inner).__qualname__ + (f"({parts})" if parts else "")


def _as_text(value: Any) -> str:
    """An attribute as text, the same in every process."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, Tensor):
        held = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype}{list(value.shape)} {hashlib.sha256(held).hexdigest()[:16]}"
    if isinstance(value, (np.ndarray, np.generic)):
        return _as_text(value.tolist())
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {_as_text(inside)}" for name, inside in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_as_text, value))}]"
    if hasattr(value, "describe") and not isinstance(value, type):
        return str(value.describe())
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def completed(objective: Any) -> Objective:
    """The objective itself if it has every member of the protocol, else wrapped in a `PartialObjective`."""
    _refuse_silent_dropout(objective)
    members = [name for name in vars(Objective) if not name.startswith("_")]
    if all(hasattr(objective, name) for name in members):
        return cast(Objective, objective)
    return PartialObjective(objective)


def _refuse_silent_dropout(objective: Any) -> None:
    """Raise InvalidInput for an objective with a dropout network but no `training_losses`: dropout would be ignored."""
    if has_training_losses(objective):
        return
    for held in (getattr(objective, "__dict__", {})).values():
        network = held if isinstance(held, Network) else getattr(held, "network", None)
        if isinstance(network, Network) and network.drops:
            raise InvalidInput(
                f"{type(objective).__qualname__} has a network with dropout, which its losses ignore: give it a "
                "training_losses(params, examples, draws), or create the network with dropout='off'."
            )
