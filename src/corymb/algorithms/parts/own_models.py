"""Clients' own models: trained alone, kept in client memory, published, and served until there are cluster models."""

from __future__ import annotations

import torch
from torch import Tensor

from corymb.core.client import Client, on_client
from corymb.local import Descent, descend, loss, serve_assigned
from corymb.trees import Params, tree_map


@on_client
def train_alone(client: Client, model: Params, *, alone: Descent) -> Tensor:
    """Train the common start and keep the result; only the loss afterwards is sent."""
    own = descend(client, model, alone)
    client.memory.set("own", own)
    return loss(client, own)


@on_client
def publish_own(client: Client) -> Params:
    """The model that the client trained alone."""
    own: Params = client.memory.get("own")
    return own


@on_client
def serve_refined(client: Client, models: Params, label: Tensor, share: Tensor | None) -> Params:
    """The client's own model until it has been compared with the clusters' models; then its cluster's model."""
    assigned = serve_assigned(client, models, label, share)
    own: Params = client.memory.get("own", assigned)
    refined = client.memory.get("refined", torch.zeros((), dtype=torch.bool, device=client.train.weight.device))
    return tree_map(lambda theirs, mine: torch.where(refined, theirs, mine), assigned, own)


def is_refined(stage: str) -> bool:
    """Whether clients have been compared with the clusters' models in an SR-FCA run that is at this stage.

    >>> [is_refined(stage) for stage in ("alone", "train-1", "refine/refine-1", "train-2", "finish")]
    [False, False, True, True, True]
    """
    kind, _, number = stage.rpartition("/")[2].partition("-")
    return kind in ("refine", "finish") or (kind == "train" and number != "1")
