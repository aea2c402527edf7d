"""A contrastive objective: distorted copies of one picture must be told apart from those of others.

van den Oord et al. 2018 (InfoNCE), Chen et al. 2020 (SimCLR), Khosla et al. 2020 (several positives).

A contrastive loss compares pictures with one another, but an example's loss must not depend on other examples. So an
example here is a group of pictures of one client, with several views of each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from corymb.core.objective import Examples
from corymb.keys import Key
from corymb.models.network import Network
from corymb.trees import Params


class Contrastive:
    """An example has the shape [pictures, views, ...]; a network embeds every view of every picture."""

    score_name = "contrast"
    higher_is_better = False
    squared = None

    def __init__(self, network: Network, temperature: float = 0.2) -> None:
        self.network, self.temperature = network, temperature

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Contrastive:
        """The same objective on another device or in another precision."""
        return Contrastive(self.network.to(device, dtype), self.temperature)

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this objective: see `corymb.objectives.recipe`."""
        return {"network": self.network, "temperature": self.temperature}

    def init(self, key: Key) -> Params:
        """Fresh parameters of the network."""
        return self.network.init(key)

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """The embedding of every view, of length 1: m pictures views d."""
        embedded: Tensor = normalize(self.network(params, x.flatten(0, 2)), dim=-1).unflatten(0, x.shape[:3])
        return embedded

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The InfoNCE loss of each group: the mean over its views; other views of the same picture are positives."""
        embedded = self.predict(params, examples.x)
        views = embedded.shape[2]
        flat = embedded.flatten(1, 2)  # m pv d
        alike = flat @ flat.mT / self.temperature
        place = torch.arange(flat.shape[1], device=flat.device)
        other = place[:, None] != place
        same = other & (place[:, None] // views == place // views)
        share = alike - torch.logsumexp(torch.where(other, alike, -torch.inf), -1, keepdim=True)
        return -torch.where(same, share, 0).sum((-1, -2)) / (flat.shape[1] * max(views - 1, 1))

    scores = losses

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """The mean of the embeddings."""
        mean: Tensor = torch.tensordot(weights.to(predictions), predictions, dims=1)
        return mean

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """Zeros, since embeddings have no right answer."""
        return torch.zeros_like(examples.weight)

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        return f"contrasts at temperature {self.temperature} by {self.network.describe()}"
