"""A client's work on a model in one round, and its weight in the average."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from corymb.algorithms.parts.linear import proximal_step
from corymb.core.client import Client, Examples, Share, on_client
from corymb.core.federation import Federation, Sums
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, descend, descend_from, descend_with_loss, gradient, loss, one_hot
from corymb.trees import Params, map_tensors, take

log = logging.getLogger(__name__)
Averaging = Literal["models", "gradients"]
Weights = Literal["clients", "examples"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """A round's work: local training or a gradient, and how clients are weighted."""

    local: Descent
    averaging: Averaging = "models"
    weights: Weights = "clients"
    proximal: bool = False
    """Whether to solve FedProx's local problem in closed form instead of by descent; for linear models."""

    def on(self, client: Client, model: Params, examples: Examples) -> Params:
        """The model trained on these examples, or its gradient there."""
        if self.proximal:
            return proximal_step(client, model, self.local.lr)
        if self.averaging == "models":
            return descend(client, model, self.local, on=examples)
        return gradient(client, model, on=examples)

    def on_chosen(self, client: Client, models: Params, label: Tensor, examples: Examples) -> Params:
        """The result of work on one of several models, chosen by `label`."""
        if self.averaging == "models" and not self.proximal:
            return descend_from(client, models, label, self.local, on=examples)
        return self.on(client, take(models, label), examples)

    def with_loss(self, client: Client, model: Params) -> tuple[Params, Tensor]:
        """The result of work on all of the client's examples, and the model's training loss before it.

        Descent takes that loss from its first step, on that step's examples; otherwise it is measured on all examples.
        """
        if self.averaging == "models" and not self.proximal:
            return descend_with_loss(client, model, self.local)
        return self.on(client, model, client.train), loss(client, model)

    def weight(self, client: Client) -> Tensor | float:
        """1, or the client's number of examples."""
        return 1.0 if self.weights == "clients" else client.train.weight.sum()


@on_client
def work_on_own(client: Client, model: Params, label: Tensor, *, k: int, work: Work) -> Share[Tensor]:
    """Train (or take the gradient of) the only model sent, that of the client's cluster; note: its loss before."""
    value, before = work.with_loss(client, model)
    return Share(value, weight=one_hot(label, k) * work.weight(client), label=label, note=before.unsqueeze(0))


def started_from(models: Params, work: Work) -> Params:
    """The reference that replies are compared with: the models for trained models, zeros for gradients."""
    return models if work.averaging == "models" else map_tensors(torch.zeros_like, models)


def warn_of_long_step(fed: Federation, at: Snapshot, step: float, sums: Sums[Tensor]) -> dict[str, Tensor]:
    """Warn once in a run if a step along the sum of gradients is too long; returns the carry that remembers it."""
    largest = step * float(sums.weight.max())
    if fed.objective.squared is None or (largest < 1 and "long_step" not in at.carry):
        return {}
    if "long_step" not in at.carry:
        log.warning(
            "lr × the largest cluster's share is %.2g, and with squared loss 1 or more diverges: lower lr", largest
        )
    return {"long_step": torch.tensor(True)}
