"""The additional members of objectives whose models assign every example, not every client, to a cluster."""

from __future__ import annotations

from typing import Protocol, TypeGuard

from torch import Tensor

from corymb.keys import Key
from corymb.trees import Params


class PointModel(Protocol):
    """An objective whose models cluster examples; it needs no labels."""

    def label_points(self, models: Params, x: Tensor) -> Tensor:
        """The cluster of each example."""
        ...

    def sample_cluster(self, models: Params, cluster: int, key: Key, n: int) -> Tensor:
        """n new examples of a cluster, as vectors."""
        ...

    def space(self, params: Params, x: Tensor) -> Tensor:
        """Examples as vectors in the coordinates that they are compared in."""
        ...


def models_points(model: object) -> TypeGuard[PointModel]:
    """Whether an objective, or the one it wraps, is a `PointModel`."""
    return all(hasattr(model, name) for name in ("label_points", "sample_cluster", "space"))
